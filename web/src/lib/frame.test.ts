import { expect, test } from 'vitest';
import { readFrame, valueAt } from './frame';

test('a frame gives back its facts, its arrays in order, and their values', () => {
  const header = new TextEncoder().encode(
    JSON.stringify({
      facts: { layer: 3 },
      arrays: [
        { name: 'a', shape: [2, 3], low: -1, high: 1 },
        { name: 'b', shape: [1], low: 0, high: 255 },
      ],
    }),
  );
  const bytes = new Uint8Array(4 + header.length + 7);
  new DataView(bytes.buffer).setUint32(0, header.length, true);
  bytes.set(header, 4);
  bytes.set([0, 51, 102, 153, 204, 255, 9], 4 + header.length);
  const { facts, arrays } = readFrame<{ layer: number }>(bytes.buffer);
  expect(facts.layer).toBe(3);
  expect([0, 1, 5].map((index) => valueAt(arrays.a, index))).toEqual([-1, -0.6, 1]);
  expect([...arrays.b.bytes]).toEqual([9]);
});
