/** Rows of attention from the server (src/vitrail/studio/rooms/attention/attention_frames.py), and how they lie on the photograph. */
import type { Frame, Plane } from './frame';
import { magma } from './ramps';

export interface Looks {
  /** Rows and columns, by layer. */
  grids: [number, number][];
  prefix: string[];
}

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
export function sameplace(cell: number, first: [number, number], grid: [number, number]): number {
  const [row, column] = [Math.floor(cell / first[1]), cell % first[1]];
  return Math.floor((row * grid[0]) / first[0]) * grid[1] + Math.floor((column * grid[1]) / first[1]);
}

const ROOT = Uint8Array.from({ length: 256 }, (_, byte) => Math.round(255 * Math.sqrt(byte / 255)));

/** Attention as light: the square root of a share, so that more than the largest is seen; `range` is what bytes are dark and bright. */
export function lit(bytes: Uint8Array, rows: number, columns: number, [low, high] = [0, 255]): OffscreenCanvas {
  const pixels = new ImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    const root = ROOT[Math.min(255, Math.max(0, Math.round((255 * (bytes[i] - low)) / (high - low))))];
    const [red, green, blue] = magma(root);
    pixels.data.set([red, green, blue, 105 + Math.round(root * 0.55)], 4 * i);
  }
  const layer = new OffscreenCanvas(columns, rows);
  layer.getContext('2d')!.putImageData(pixels, 0, 0);
  return layer;
}

/** The photograph for a canvas, in colour or as a ground for other colours. */
export function ground(photo: Plane, colour: boolean): OffscreenCanvas {
  const [height, width] = photo.shape;
  const pixels = new ImageData(width, height);
  for (let i = 0; i < height * width; i++) {
    const [red, green, blue] = photo.bytes.subarray(3 * i, 3 * i + 3);
    const grey = 0.3 * red + 0.59 * green + 0.11 * blue;
    pixels.data.set(colour ? [red, green, blue, 255] : [grey, grey, grey, 255], 4 * i);
  }
  const canvas = new OffscreenCanvas(width, height);
  canvas.getContext('2d')!.putImageData(pixels, 0, 0);
  return canvas;
}
