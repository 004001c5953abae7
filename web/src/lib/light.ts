/** Draw attention as light on a photograph. */
import type { Plane } from './frame';
import { magma, packed } from './ramps';

/** The colour and opacity of a weight as one 32-bit pixel: the square root makes small ones visible. */
const LIGHT = Uint32Array.from({ length: 256 }, (_, byte) => {
  const root = Math.round(255 * Math.sqrt(byte / 255));
  return packed(magma(root), 105 + Math.round(root * 0.55));
});

/** Draw weights as light; `[low, high]` are the dark and the bright byte. */
export function lit(bytes: Uint8Array, rows: number, columns: number, [low, high] = [0, 255]): OffscreenCanvas {
  const scale = 255 / (high - low);
  return drawn(rows, columns, (i) => LIGHT[Math.min(255, Math.max(0, Math.round((bytes[i] - low) * scale)))]);
}

/** Several views show one photograph. */
const grounds = { grey: new WeakMap<Plane, OffscreenCanvas>(), colour: new WeakMap<Plane, OffscreenCanvas>() };

/** The photograph as a canvas, in colour, or in grey under coloured light. */
export function ground(photo: Plane, colour: boolean): OffscreenCanvas {
  const known = grounds[colour ? 'colour' : 'grey'];
  if (!known.has(photo)) known.set(photo, photograph(photo, colour));
  return known.get(photo)!;
}

function photograph({ bytes, shape }: Plane, colour: boolean): OffscreenCanvas {
  return drawn(shape[0], shape[1], (i) => {
    const [red, green, blue] = [bytes[3 * i], bytes[3 * i + 1], bytes[3 * i + 2]];
    const grey = Math.round(0.3 * red + 0.59 * green + 0.11 * blue);
    return packed(colour ? [red, green, blue] : [grey, grey, grey]);
  });
}

function drawn(rows: number, columns: number, colour: (cell: number) => number): OffscreenCanvas {
  const pixels = new ImageData(columns, rows);
  const words = new Uint32Array(pixels.data.buffer);
  for (let i = 0; i < words.length; i++) words[i] = colour(i);
  const canvas = new OffscreenCanvas(columns, rows);
  canvas.getContext('2d')!.putImageData(pixels, 0, 0);
  return canvas;
}
