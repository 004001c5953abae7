/** Rows of attention from the server (src/vitrail/studio/rooms/attention/attention_frames.py). */
import type { Pair } from '../../lib/api';
import type { Frame, Plane } from '../../lib/frame';

/** One row: a byte a cell, 255 being the largest; that largest, and what goes to the prefix, exactly. */
export interface Row {
  bytes: Uint8Array;
  largest: number;
  prefix: number[];
}

/** A head's row. Where a frame holds every row, `token` picks one; otherwise it holds one. */
export function headRow(frame: Frame<unknown>, layer: number, head: number, token: number): Row | null {
  const bytes = frame.arrays[`heads${layer}`];
  return bytes ? pick(bytes, frame.arrays[`exact${layer}`], head * bytes.shape[1], bytes.shape[1], token) : null;
}

export function rolledRow(frame: Frame<unknown>, token: number): Row | null {
  const bytes = frame.arrays.rolled;
  return bytes ? pick(bytes, frame.arrays['exact-rolled'], 0, bytes.shape[0], token) : null;
}

export const heads = (frame: Frame<unknown>, layer: number): number => frame.arrays[`heads${layer}`]?.shape[0] ?? 0;

function pick(bytes: Plane, exact: Plane, before: number, rows: number, token: number): Row | null {
  const at = before + (rows === 1 ? 0 : token);
  const cells = bytes.shape.at(-1)!;
  const count = exact.shape.at(-2)!;
  if (token < 0 || (rows > 1 && token >= rows)) return null;
  const view = new DataView(exact.bytes.buffer, exact.bytes.byteOffset + at * count * 4, count * 4);
  const floats = Array.from({ length: count }, (_, i) => view.getFloat32(4 * i, true));
  return { bytes: bytes.bytes.subarray(at * cells, (at + 1) * cells), largest: floats[0], prefix: floats.slice(1) };
}

/** A place of the first layer's grid, in a layer whose grid is another. */
export function sameplace(cell: number, first: Pair, grid: Pair): number {
  const [row, column] = [Math.floor(cell / first[1]), cell % first[1]];
  return Math.floor((row * grid[0]) / first[0]) * grid[1] + Math.floor((column * grid[1]) / first[1]);
}
