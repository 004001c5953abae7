/** Fill the holes of an answer with the outputs of a graph; src/vitrail/server/site/answers.py describes them. */
import type { Outputs, Values } from './values';

interface Hole {
  from: string;
  row?: number;
  digits?: number;
  words?: string[];
}

/** `token` is the one that is asked for, where the answer is about one. */
export function fill(template: unknown, outputs: Outputs, token = 0): unknown {
  if (Array.isArray(template)) return template.map((each) => fill(each, outputs, token));
  if (template === null || typeof template !== 'object') return template;
  if ('each' in template) return (template.each as unknown[])[token];
  if ('from' in template) return filled(template as Hole, outputs, token);
  return Object.fromEntries(Object.entries(template).map(([name, each]) => [name, fill(each, outputs, token)]));
}

function filled({ from, row, digits, words }: Hole, outputs: Outputs, token: number): unknown {
  const values = outputs[from];
  if (row !== undefined) {
    const at = token + row;
    if (at < 0) return []; // a prefix token has no patch
    const width = values.dims.slice(1).reduce((product, side) => product * side, 1);
    const found = numbers(values, at * width, width).map((value) => rounded(value, digits));
    return values.dims.length === 1 ? found[0] : found;
  }
  const found = numbers(values, 0, values.data.length);
  if (words) return found.map((index) => words[index]);
  return values.dims.length === 0 ? found[0] : found;
}

const numbers = ({ data }: Values, start: number, count: number): number[] =>
  Array.from(data.slice(start, start + count) as ArrayLike<number>);

const rounded = (value: number, digits?: number) => (digits === undefined ? value : Number(value.toFixed(digits)));
