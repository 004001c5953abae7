/** Write frames of arrays, as src/vitrail/server/arrays.py does. */
import type { Pair } from '../lib/api';
import { bytesOf, type Values } from './values';

export interface Array {
  name: string;
  values: Values;
  /** What the bytes 0 and 255 stand for, where it is not these numbers. */
  range?: Pair;
}

/** float32 values are sent as four bytes each. */
export function frame(facts: unknown, arrays: readonly Array[]): Uint8Array<ArrayBuffer> {
  const planes = arrays.map(({ name, values: { data, dims }, range = [0, 255] }) => ({
    name,
    shape: data instanceof Uint8Array ? dims : [...dims, 4],
    low: range[0],
    high: range[1],
  }));
  const header = new TextEncoder().encode(JSON.stringify({ facts, arrays: planes }));
  const parts = [new Uint8Array(Uint32Array.of(header.length).buffer), header, ...arrays.map(({ values }) => bytesOf(values))];
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let offset = 0;
  for (const part of parts) {
    whole.set(part, offset);
    offset += part.length;
  }
  return whole;
}
