/** The one shared state: the room, the values of all controls, and the pin; it lives in the address. */
import type { Answer, Schemas } from './api';
import { queryOf, readPlace, writePlace, type Values } from './address';

class Studio {
  catalogue!: Answer<'controls'>;
  room = $state('');
  values = $state<Values>({});
  /** The values that were pinned for comparison. */
  pin = $state.raw<Values | null>(null);
  #defaults: Values = {};
  #moving = false;
  #writing: ReturnType<typeof setTimeout> | undefined;

  open(catalogue: Answer<'controls'>): void {
    this.catalogue = catalogue;
    this.#defaults = Object.fromEntries(
      Object.entries(catalogue.controls).map(([name, control]) => [name, control.default]),
    );
    this.#read();
    addEventListener('popstate', () => {
      this.#moving = false;
      clearTimeout(this.#writing);
      this.#read();
    });
  }

  control(name: string): Schemas['Control'] {
    return this.catalogue.controls[name];
  }

  number(name: string): number {
    return this.values[name] as number;
  }

  options(name: string): [string, string][] {
    const { options, source } = this.control(name);
    return source ? this.catalogue.options[source].map(({ value, words }) => [value, words]) : options;
  }

  /** Change values. The first change of a drag makes a history entry, the rest of it is written over that. */
  set(changes: Values, settled = true): void {
    Object.assign(this.values, changes);
    this.#write(settled);
  }

  go(room: string, changes: Values = {}): void {
    Object.assign(this.values, changes);
    this.room = room;
    this.#write(true);
  }

  /** Go where a link of ours points, without loading the page again. */
  follow(address: string): void {
    history.pushState(null, '', address);
    this.#moving = false;
    this.#read();
  }

  setPin(values: Values | null): void {
    this.pin = values;
    this.#write(true);
  }

  /** A model brings its own image and patch. */
  chooseModel(value: string): void {
    const own = this.catalogue.options.models.find((option) => option.value === value);
    const sizes: Values = {};
    for (const name of ['height', 'width', 'patch_height', 'patch_width'] as const)
      if (own?.[name]) sizes[name] = own[name];
    this.set({ model: value, ...sizes });
  }

  /** What a room asks with, as a query. */
  query(room: string, values: Values = this.values): string {
    return queryOf(values, this.#defaults, this.catalogue.rooms[room]);
  }

  /** The config of the current state, as a file's address. */
  get configAddress(): string {
    return `./api/config?${queryOf(this.values, this.#defaults, this.catalogue.config)}`;
  }

  /** The address of a room with some values changed: for links. */
  href(room: string, changes: Values = {}): string {
    return writePlace({ room, values: { ...this.values, ...changes }, pin: this.pin }, this.#defaults);
  }

  #read(): void {
    const place = readPlace(location.search, this.#defaults, Object.keys(this.catalogue.rooms));
    this.room = place.room;
    Object.assign(this.values, place.values);
    this.pin = place.pin;
  }

  #write(settled: boolean): void {
    const go = () => history.replaceState(null, '', this.href(this.room));
    clearTimeout(this.#writing);
    if (!this.#moving) {
      const address = this.href(this.room);
      if (address !== location.search) history.pushState(null, '', address);
    } else if (settled) go();
    else this.#writing = setTimeout(go, 120); // browsers limit how often history may change
    this.#moving = !settled;
  }
}

export const studio = new Studio();
