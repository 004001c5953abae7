/** State ↔ address: values that differ from their defaults are written, in the order of the controls. */
export type Value = string | number | boolean;
export type Values = Record<string, Value>;

export interface Place {
  room: string;
  values: Values;
  pin: Values | null;
  /** The step of the guided tour, from 1; 0 outside it. */
  tour: number;
}

export function readPlace(search: string, defaults: Values, rooms: readonly string[]): Place {
  const query = new URLSearchParams(search);
  const room = query.get('room') ?? '';
  const pin = query.get('pin');
  return {
    room: rooms.includes(room) ? room : rooms[0],
    values: readValues(query, defaults),
    pin: pin === null ? null : readValues(new URLSearchParams(pin), defaults),
    tour: Math.max(0, Math.trunc(Number(query.get('tour'))) || 0),
  };
}

export function writePlace(place: Place, defaults: Values): string {
  const query = new URLSearchParams({ room: place.room });
  if (place.tour) query.set('tour', String(place.tour));
  for (const [name, value] of changed(place.values, defaults)) query.set(name, String(value));
  if (place.pin) query.set('pin', new URLSearchParams(changed(place.pin, defaults)).toString());
  return `?${query}`;
}

/** The query of a request: the named values that differ from their defaults. */
export function queryOf(values: Values, defaults: Values, names: readonly string[]): string {
  const part = changed(values, defaults).filter(([name]) => names.includes(name));
  return new URLSearchParams(part).toString();
}

function changed(values: Values, defaults: Values): [string, string][] {
  return Object.keys(defaults)
    .filter((name) => values[name] !== defaults[name])
    .map((name) => [name, String(values[name])]);
}

function readValues(query: URLSearchParams, defaults: Values): Values {
  const values: Values = { ...defaults };
  for (const [name, fallback] of Object.entries(defaults)) {
    const text = query.get(name);
    if (text === null) continue;
    if (typeof fallback === 'number') {
      const number = Number(text);
      if (text.trim() !== '' && Number.isFinite(number)) values[name] = number;
    } else {
      values[name] = typeof fallback === 'boolean' ? text === 'true' : text;
    }
  }
  return values;
}
