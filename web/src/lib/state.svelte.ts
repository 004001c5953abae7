/** The shared state: the room, the values of all controls, and the pinned values; it is stored in the address. */
import type { Answer, Schemas } from './api';
import { queryOf, readPlace, writePlace, type Values } from './address';

class Studio {
  catalogue!: Answer<'controls'>;
  room = $state('');
  values = $state<Values>({});
  /** The values pinned for comparison. */
  pin = $state.raw<Values | null>(null);
  /** The step of the guided tour, from 1; 0 outside it. */
  tour = $state(0);
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

  /** Change values. The first change of a drag adds a history entry; the others replace it. */
  set(changes: Values, settled = true): void {
    Object.assign(this.values, changes);
    this.#write(settled);
  }

  go(room: string, changes: Values = {}): void {
    Object.assign(this.values, changes);
    this.room = room;
    this.#write(true);
  }

  /** Set the open room's controls to their defaults; the image stays. */
  reset(): void {
    const own = this.catalogue.rooms[this.room].filter((name) => name !== 'image');
    this.set(Object.fromEntries(own.map((name) => [name, this.#defaults[name]])));
  }

  /** Go to a step of the tour, or leave it with 0. */
  visit(tour: number, room: string, changes: Values = {}): void {
    this.tour = tour;
    this.go(room, changes);
  }

  /** Follow an internal link without reloading the page. */
  follow(address: string): void {
    history.pushState(null, '', address);
    this.#moving = false;
    this.#read();
  }

  setPin(values: Values | null): void {
    this.pin = values;
    this.#write(true);
  }

  /** Choose a model, with its image and patch sizes. */
  chooseModel(value: string): void {
    const own = this.catalogue.options.models.find((option) => option.value === value);
    const sizes: Values = {};
    for (const name of ['height', 'width', 'patch_height', 'patch_width'] as const)
      if (own?.[name]) sizes[name] = own[name];
    this.set({ model: value, ...sizes });
  }

  /** The query of a room's requests. */
  query(room: string, values: Values = this.values): string {
    return queryOf(values, this.#defaults, this.catalogue.rooms[room]);
  }

  /** The address of the current config file. */
  get configAddress(): string {
    return `./api/config?${queryOf(this.values, this.#defaults, this.catalogue.config)}`;
  }

  /** The link to a room with some values changed. */
  href(room: string, changes: Values = {}): string {
    return writePlace({ room, values: { ...this.values, ...changes }, pin: this.pin, tour: this.tour }, this.#defaults);
  }

  #read(): void {
    const place = readPlace(location.search, this.#defaults, Object.keys(this.catalogue.rooms));
    this.room = place.room;
    Object.assign(this.values, place.values);
    this.pin = place.pin;
    this.tour = place.tour;
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
