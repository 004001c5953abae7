import { expect, test } from 'vitest';
import type { Pair } from '../../lib/api';
import { cellBeside, cellsOf } from './cells';

const points: Pair[] = [[0.1, 0.1], [0.4, 0.6], [3.2, 0.5], [3.5, 2.4], [-0.5, -0.5]]; // prettier-ignore

test('a cell shows the image nearest to its centre, and every image has a cell', () => {
  const { cells, of } = cellsOf(points, 1);
  expect(cells.map(({ place, count, centre }) => [place, count, ...centre])).toEqual([
    [1, 2, 0.5, 0.5],
    [2, 1, 3.5, 0.5],
    [3, 1, 3.5, 2.5],
    [4, 1, -0.5, -0.5],
  ]);
  expect(of.map(({ place }) => place)).toEqual([1, 1, 2, 3, 4]);
});

test('smaller cells separate images that larger ones join', () => {
  expect(cellsOf(points, 8).cells.length).toBe(2);
  expect(cellsOf(points, 0.25).cells.length).toBe(5);
});

test('an arrow goes to the nearest cell on its side, and stays at the edge', () => {
  const { cells } = cellsOf(points, 1);
  const go = (from: Pair, to: Pair) => cellBeside(cells, from, to)?.place;
  expect(go([0.5, 0.5], [1, 0])).toBe(2);
  expect(go([3.5, 0.5], [0, 1])).toBe(3);
  expect(go([3.5, 0.5], [-1, 0])).toBe(1);
  expect(go([3.5, 2.5], [0, 1])).toBeUndefined();
});
