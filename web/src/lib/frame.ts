/** Read frames of arrays; src/vitrail/server/arrays.py describes the format. */
import type { Schemas } from './api';

export type Plane = Schemas['Plane'] & { bytes: Uint8Array<ArrayBuffer> };

export interface Frame<F> {
  facts: F;
  arrays: Record<string, Plane>;
}

export function readFrame<F>(buffer: ArrayBuffer): Frame<F> {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let offset = 4 + length;
  const arrays: Record<string, Plane> = {};
  for (const described of header.arrays as Schemas['Plane'][]) {
    const size = described.shape.reduce((product, side) => product * side, 1);
    arrays[described.name] = { ...described, bytes: new Uint8Array(buffer, offset, size) };
    offset += size;
  }
  return { facts: header.facts, arrays };
}

/** The value that a byte of a plane stands for. */
export function valueAt(plane: Plane, index: number): number {
  return plane.low + ((plane.high - plane.low) * plane.bytes[index]) / 255;
}

export type Ramp = (byte: number) => readonly [number, number, number];

/** Convert a (height, width) plane by a colour ramp, or a (height, width, 3) picture, from byte `start` on. */
export function toImageData(plane: Plane, height: number, width: number, ramp?: Ramp, start = 0): ImageData {
  const pixels = new ImageData(width, height);
  const { bytes } = plane;
  for (let i = 0, to = 0, from = start; i < height * width; i++) {
    const [red, green, blue] = ramp ? ramp(bytes[from++]) : [bytes[from++], bytes[from++], bytes[from++]];
    pixels.data[to++] = red;
    pixels.data[to++] = green;
    pixels.data[to++] = blue;
    pixels.data[to++] = 255;
  }
  return pixels;
}
