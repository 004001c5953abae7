/** Colour ramps: 256 perceptually even steps, interpolated from a few anchors. */
import type { Ramp } from './frame';

type Colour = readonly [number, number, number];

function ramp(...anchors: string[]): Ramp {
  const colours = anchors.map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  const table: Colour[] = Array.from({ length: 256 }, (_, byte) => {
    const place = (byte / 255) * (colours.length - 1);
    const before = Math.min(Math.floor(place), colours.length - 2);
    const mixed = [0, 1, 2].map((i) => colours[before][i] + (place - before) * (colours[before + 1][i] - colours[before][i]));
    return [Math.round(mixed[0]), Math.round(mixed[1]), Math.round(mixed[2])];
  });
  return (byte) => table[byte];
}

/** Sequential. */
export const viridis = ramp('440154', '472d7b', '3b528b', '2c728e', '21918c', '28ae80', '5ec962', 'addc30', 'fde725');
/** Sequential, for layers over a photograph. */
export const magma = ramp('000004', '180f3d', '440f76', '721f81', '9e2f7f', 'cd4071', 'f1605d', 'fd9668', 'feca8d', 'fcfdbf');
/** Diverging: blue below zero, red above; zero is the middle byte. */
export const diverging = ramp('053061', '2166ac', '4393c3', '92c5de', 'd1e5f0', 'f4f1ea', 'fddbc7', 'f4a582', 'd6604d', 'b2182b', '67001f');

export const css = ([red, green, blue]: Colour): string => `rgb(${red} ${green} ${blue})`;

/** A colour as a 32-bit pixel of an ImageData, which is little-endian: one write instead of four. */
export const packed = ([red, green, blue]: Colour, alpha = 255): number =>
  ((alpha << 24) | (blue << 16) | (green << 8) | red) >>> 0;
