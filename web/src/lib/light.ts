/** Draw attention as light on a photograph. */
import type { Plane } from './frame';
import { magma } from './ramps';

const ROOT = Uint8Array.from({ length: 256 }, (_, byte) => Math.round(255 * Math.sqrt(byte / 255)));

/** Draw weights as light: the square root makes small ones visible; `[low, high]` are the dark and the bright byte. */
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

/** The photograph as a canvas, in colour, or in grey under coloured light. */
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
