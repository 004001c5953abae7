/** The room Walk of an exported page: it picks the numbers of one token, and Python writes the answer about them. */
import { fill, type Indices } from './fill';
import type { Outputs } from './values';

/** Written by src/vitrail/server/site/answers.py. */
export interface WalkTemplate {
  numbers: { prefix: string[] };
  /** The cell in the middle of the grid. */
  middle: number;
  arrays: { name: string; from: string }[];
}

/** What is asked for, with the room's defaults: the patch in the middle, and the key with the most attention. */
export function walkIndices(template: WalkTemplate, outputs: Outputs, asked: (name: string) => number): Indices {
  const prefix = template.numbers.prefix.length;
  const [block, head, unit] = ['block', 'head', 'unit'].map(asked);
  const token = asked('token') < 0 ? prefix + template.middle : asked('token');
  const cell = token < prefix ? template.middle : token - prefix;
  const key = asked('key') < 0 ? one('walk-keys', [block, head, token], outputs) : asked('key');
  const first = 'walk-first' in outputs ? one('walk-first', [], outputs) : 0;
  return { token, cell, key, block, head, unit, patch: cell + prefix, next: block + 1, first, layer: block, query: token };
}

const one = (from: string, at: number[], outputs: Outputs) => fill({ from, at }, outputs) as number;

/** The numbers of one token, as Python in the page takes them. */
export function walkNumbers(template: WalkTemplate, outputs: Outputs, indices: Indices): unknown {
  const { token, cell, key, block, head, unit } = indices;
  return { ...(fill(template.numbers, outputs, indices) as object), token, cell, key, block, head, unit };
}
