/** Draw filters as mosaics, and patches of the image. */
import type { Facts } from '../../lib/api';
import type { Plane } from '../../lib/frame';

export type Filters = Facts<'projection/filters'>;

/** Arrange tiles (…, height, width, 3) in the given order, `columns` per row; unused cells are transparent. */
export function mosaic(tiles: Plane, order: readonly number[], columns: number): ImageData {
  const [, height, width] = tiles.shape;
  const rows = Math.ceil(order.length / columns);
  const whole = new ImageData(columns * width, rows * height);
  order.forEach((tile, place) => {
    const [top, left] = [Math.floor(place / columns) * height, (place % columns) * width];
    paste(whole, top, left, height, width, (y, x) => 3 * ((tile * height + y) * width + x), tiles.bytes);
  });
  return whole;
}

/** Arrange patches of the image side by side; pixels outside the image are grey. */
export function patches(pixels: Plane, { patch, corners }: Filters, cells: readonly number[]): ImageData {
  const [height, width] = patch;
  const [tall, wide] = pixels.shape;
  const strip = new ImageData(cells.length * width, height);
  cells.forEach((cell, place) => {
    const [top, left] = corners[cell];
    const at = (y: number, x: number) =>
      top + y < 0 || left + x < 0 || top + y >= tall || left + x >= wide ? -1 : 3 * ((top + y) * wide + left + x);
    paste(strip, 0, place * width, height, width, at, pixels.bytes);
  });
  return strip;
}

function paste(
  onto: ImageData,
  top: number,
  left: number,
  height: number,
  width: number,
  at: (y: number, x: number) => number,
  bytes: Uint8Array,
): void {
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++) {
      const from = at(y, x);
      const to = 4 * ((top + y) * onto.width + left + x);
      for (let channel = 0; channel < 3; channel++) onto.data[to + channel] = from < 0 ? 128 : bytes[from + channel];
      onto.data[to + 3] = 255;
    }
}
