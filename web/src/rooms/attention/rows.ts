/** Read rows of attention from frames (src/vitrail/server/rooms/attention/attention_frames.py). */
import type { Facts, Pair, Schemas } from '../../lib/api';
import type { Frame, Plane } from '../../lib/frame';

/** One row: a byte per cell, 255 for the largest weight; that weight and the weights on the prefix are exact. */
export interface Row {
  bytes: Uint8Array;
  largest: number;
  prefix: number[];
}

/** The row of a head. If the frame has every row, `token` selects one; otherwise the frame has only one. */
export function headRow(frame: Frame<unknown>, layer: number, head: number, token: number): Row | null {
  const bytes = frame.arrays[`heads${layer}`];
  return bytes ? pick(bytes, frame.arrays[`exact${layer}`], head * bytes.shape[1], bytes.shape[1], token) : null;
}

/** The row of the rollout, with the shares that are drawn dark and bright. */
export function rolledRow(frame: Frame<unknown>, token: number): (Row & { contrast: Pair }) | null {
  const { rolled, contrast } = frame.arrays;
  const row = rolled && pick(rolled, frame.arrays['exact-rolled'], 0, rolled.shape[0], token);
  return row && { ...row, contrast: floats(contrast, rolled.shape[0] === 1 ? 0 : token) as Pair };
}

/** Whether rows are of the same grids as the maps; while a request is pending, they may be of the previous ones. */
export function fits(frame: Frame<unknown> | null, facts: Facts<'attention/maps'>): boolean {
  return facts.grids.every(([rows, columns], layer) => frame?.arrays[`heads${layer}`]?.shape.at(-1) === rows * columns);
}

export const heads = (frame: Frame<unknown>, layer: number): number => frame.arrays[`heads${layer}`]?.shape[0] ?? 0;

function pick(bytes: Plane, exact: Plane, before: number, rows: number, token: number): Row | null {
  const at = before + (rows === 1 ? 0 : token);
  const cells = bytes.shape.at(-1)!;
  if (token < 0 || (rows > 1 && token >= rows)) return null;
  const [largest, ...prefix] = floats(exact, at);
  return { bytes: bytes.bytes.subarray(at * cells, (at + 1) * cells), largest, prefix };
}

/** One row of a float32 array (…, n), which is sent as bytes (…, n, 4). */
function floats({ bytes, shape }: Plane, row: number): number[] {
  const count = shape.at(-2)!;
  const view = new DataView(bytes.buffer, bytes.byteOffset + row * count * 4, count * 4);
  return Array.from({ length: count }, (_, i) => view.getFloat32(4 * i, true));
}

/** The cells at the same place of the first layer's grid and of another layer's. */
export function places(facts: Facts<'attention/maps'>, layer: number): Schemas['Places'] {
  return facts.places[facts.grids[layer].join('x')];
}
