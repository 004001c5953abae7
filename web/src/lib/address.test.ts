import { expect, test } from 'vitest';
import { queryOf, readPlace, writePlace } from './address';

const defaults = { model: 'B/16', height: 224, train: true };
const rooms = ['patch', 'memory'];

test('an address gives back the place that it was written from', () => {
  const place = {
    room: 'memory',
    values: { model: 'dinov2-S/14', height: 518, train: false },
    pin: { ...defaults, height: 96 },
    tour: 3,
  };
  expect(readPlace(writePlace(place, defaults), defaults, rooms)).toEqual(place);
});

test('defaults are not written', () => {
  expect(writePlace({ room: 'patch', values: { ...defaults }, pin: null, tour: 0 }, defaults)).toBe('?room=patch');
});

test('invalid values in an address become defaults', () => {
  const place = readPlace('?room=attic&height=tall&other=1&tour=later', defaults, rooms);
  expect(place).toEqual({ room: 'patch', values: defaults, pin: null, tour: 0 });
});

test('a query contains only its own names', () => {
  expect(queryOf({ model: 'S/16', height: 96, train: true }, defaults, ['height', 'train'])).toBe('height=96');
});
