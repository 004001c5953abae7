/** The shared state: the room, the values of all controls, and the pinned values; it is stored in the address. */
import type { Answer, Schemas } from './api';
import { queryOf, readPlace, writePlace, type Values } from './address';

/** The two models of a room: sizes to plan, and weights that are loaded and look at the image. */
export type Model = 'planned' | 'loaded';

class Studio {
  catalogue = $state.raw() as Answer<'controls'>;
  room = $state('');
  values = $state<Values>({});
  /** The values pinned for comparison. */
  pin = $state.raw<Values | null>(null);
  /** The step of the guided tour, from 1; 0 outside it. */
  tour = $state(0);
  /** What a value is if the address does not say it, and if a request does not: they differ in the weights. */
  #defaults: Values = {};
  #requestDefaults: Values = {};
  #moving = false;
  #writing: ReturnType<typeof setTimeout> | undefined;

  open(catalogue: Answer<'controls'>): void {
    this.catalogue = catalogue;
    this.#requestDefaults = Object.fromEntries(
      Object.entries(catalogue.controls).map(([name, control]) => [name, control.default]),
    );
    this.#defaults = { ...this.#requestDefaults, weights: catalogue.options.weights[0].value };
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

  /** The range of a control for the chosen weights. */
  range(name: string): Schemas['Limit'] {
    const { minimum, maximum, step } = this.control(name);
    const weights = this.catalogue.options.weights.find(({ value }) => value === this.values.weights);
    return weights?.limits?.[name] ?? { minimum: minimum ?? 0, maximum: maximum ?? 1, step: step ?? 1 };
  }

  options(name: string): [string, string][] {
    const { options, source } = this.control(name);
    return source ? this.catalogue.options[source].map(({ value, words }) => [value, words]) : options;
  }

  /** Change values. The first change of a drag adds a history entry; the others replace it. */
  set(changes: Values, settled = true): void {
    // on another grid, the index of a token is another place
    const regrids = ['weights', 'seen'].some((name) => name in changes && changes[name] !== this.values[name]);
    Object.assign(this.values, regrids ? { token: -1, key: -1 } : {}, changes);
    this.#fit();
    this.#write(settled);
  }

  go(room: string, changes: Values = {}): void {
    Object.assign(this.values, changes);
    this.#fit();
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
    return queryOf(values, this.#requestDefaults, this.catalogue.rooms[room]);
  }

  /** The address of the config file of the planned model, or of the loaded one at the room's input size. */
  configAddress(model: Model): string {
    const names = model === 'planned' ? this.catalogue.config : this.names('loaded');
    return `./api/config${model === 'planned' ? '' : '/loaded'}?${queryOf(this.values, this.#requestDefaults, names)}`;
  }

  /** The room's controls that say which model is planned, or loaded. */
  names(model: Model): string[] {
    const own = model === 'planned' ? this.catalogue.config : ['weights', 'seen'];
    return this.catalogue.rooms[this.room].filter((name) => own.includes(name));
  }

  /** Add weights to the list, and choose them. */
  addWeights(option: Schemas['Option']): void {
    const { options } = this.catalogue;
    this.catalogue = { ...this.catalogue, options: { ...options, weights: [...options.weights, option] } };
    this.set({ weights: option.value });
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
    if (this.#fit()) history.replaceState(null, '', this.href(this.room));
  }

  /** Move values into the ranges of the chosen weights; return whether one was outside. */
  #fit(): boolean {
    let moved = false;
    const weights = this.catalogue.options.weights.find(({ value }) => value === this.values.weights);
    for (const [name, { minimum, maximum, automatic }] of Object.entries(weights?.limits ?? {})) {
      const value = this.number(name);
      const fitting = automatic && value === 0 ? 0 : Math.min(maximum, Math.max(minimum, value));
      moved ||= fitting !== value;
      this.values[name] = fitting;
    }
    return moved;
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
