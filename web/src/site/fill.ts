/** Fill the holes of an answer with the outputs of a graph; src/vitrail/server/site/answers.py describes them. */
import type { Outputs, Values } from './values';

type Place = string | number | null;
interface Hole {
  from: string;
  at?: Place[];
  digits?: number;
  words?: string[];
}
/** What is asked for, by the names that holes use. */
export type Indices = Record<string, number>;

export function fill(template: unknown, outputs: Outputs, indices: Indices = {}): unknown {
  if (Array.isArray(template)) return template.map((each) => fill(each, outputs, indices));
  if (template === null || typeof template !== 'object') return template;
  if ('each' in template) return (template.each as unknown[])[indices.token];
  if ('from' in template) return filled(template as Hole, outputs, indices);
  return Object.fromEntries(Object.entries(template).map(([name, each]) => [name, fill(each, outputs, indices)]));
}

function filled({ from, at = [], digits, words }: Hole, outputs: Outputs, indices: Indices): unknown {
  const { data, dims }: Values = outputs[from];
  const number = (value: number) => (words ? words[value] : digits === undefined ? value : Number(value.toFixed(digits)));
  const part = (axis: number, start: number): unknown => {
    if (axis === dims.length) return number(Number(data[start]));
    const each = dims.slice(axis + 1).reduce((product, side) => product * side, 1);
    const place = at[axis] ?? null;
    if (place === null) return Array.from({ length: dims[axis] }, (_, index) => part(axis + 1, start + index * each));
    const index = typeof place === 'number' ? place : indices[place];
    if (index < 0) return []; // a prefix token has no patch
    if (index >= dims[axis]) throw new Error(`${place} ${index} is not among ${dims[axis]}; use 0 to ${dims[axis] - 1}`);
    return part(axis + 1, start + index * each);
  };
  return part(0, 0);
}
