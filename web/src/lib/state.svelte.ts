/** The shared state: the room, the values of all controls, and the pinned values; it is stored in the address. */
import type { Answer, Schemas } from './api';
import { backend } from './backend';
import { queryOf, readPlace, writePlace, type Values } from './address';

/** The two models of a room: sizes to plan, and weights that are loaded and look at the image. */
export type Model = 'planned' | 'loaded';

/** The controls that name a token; a negative value is a room's default. */
const TOKENS = ['token', 'key', 'match_patch'];

/** The controls that name an image. */
const IMAGES = ['image', 'second'];

class Studio {
  catalogue = $state.raw() as Answer<'controls'>;
  room = $state('');
  values = $state<Values>({});
  /** Whether the address names an image that the server no longer has. */
  lost = $state(false);
  /** What the address asked for beyond a control's range, and what is shown instead; until something changes. */
  moved = $state('');
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
    return weights?.limits?.[name] ?? { minimum: minimum ?? 0, maximum: maximum ?? 1, step: step ?? 1, values: [] };
  }

  options(name: string): [string, string][] {
    const { options, source } = this.control(name);
    return source ? this.catalogue.options[source].map(({ value, words }) => [value, words]) : options;
  }

  /** Change values. The first change of a drag adds a history entry; the others replace it. */
  set(changes: Values, settled = true): void {
    // on another grid, the index of a token is another place
    const regrids = ['weights', 'seen', 'match_shape'].some((name) => name in changes && changes[name] !== this.values[name]);
    Object.assign(this.values, regrids ? Object.fromEntries(TOKENS.map((name) => [name, -1])) : {}, changes);
    this.#fit(this.#limits());
    this.moved = '';
    this.#write(settled);
  }

  go(room: string, changes: Values = {}): void {
    Object.assign(this.values, changes);
    this.#fit(this.#limits());
    this.moved = '';
    this.room = room;
    this.#write(true);
  }

  /** Fall back to the default images where the address names ones that the server no longer has. */
  async findImages(): Promise<void> {
    await Promise.all(IMAGES.map((name) => this.#findImage(name)));
  }

  async #findImage(name: string): Promise<void> {
    if (this.catalogue.options.images.some(({ value }) => value === this.values[name])) return;
    const response = await backend.fetch(`./api/images/${encodeURIComponent(this.values[name] as string)}/stored`);
    if (response.ok && (await response.json())) return;
    this.lost = true;
    this.values[name] = this.#defaults[name];
    history.replaceState(null, '', this.href(this.room));
  }

  /** Bring the tokens that the address names into the model's range, which depends on the input size. */
  async findTokens(): Promise<void> {
    if (TOKENS.every((name) => this.number(name) < 0)) return;
    const asked = queryOf(this.values, this.#requestDefaults, ['image', 'weights', 'seen']);
    const response = await backend.fetch(`./api/limits?${asked}`).catch(() => null);
    if (response?.ok) this.#say(this.#fit((await response.json()) as Answer<'limits'>));
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
    const numbers = Object.keys(this.catalogue.controls).filter((name) => this.control(name).kind === 'number' && !TOKENS.includes(name));
    this.#say(this.#fit({ ...Object.fromEntries(numbers.map((name) => [name, this.range(name)])), ...this.#limits() }));
  }

  /** The ranges that the chosen weights narrow. */
  #limits(): Record<string, Schemas['Limit']> {
    return this.catalogue.options.weights.find(({ value }) => value === this.values.weights)?.limits ?? {};
  }

  /** Move values into ranges; return what was outside, in words. */
  #fit(limits: Record<string, Schemas['Limit']>): string[] {
    const moved: string[] = [];
    for (const [name, { minimum, maximum, automatic, values }] of Object.entries(limits)) {
      const value = this.number(name);
      const fitting = automatic && value === 0 ? 0 : nearest(Math.min(maximum, Math.max(minimum, value)), values);
      if (fitting === value) continue;
      const rule = values.length ? `is not one of ${values.join(', ')}` : `is beyond ${minimum} to ${maximum}`;
      moved.push(`${this.control(name).label} ${value} ${rule}, so ${fitting} is shown`.replaceAll('-', '−'));
      this.values[name] = fitting;
    }
    return moved;
  }

  #say(moved: string[]): void {
    if (!moved.length) return;
    this.moved = [this.moved.replace(/\.$/, ''), ...moved].filter(Boolean).join('; ') + '.';
    history.replaceState(null, '', this.href(this.room));
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

/** The nearest of the allowed values; the value itself if all are. */
const nearest = (value: number, allowed: number[]) =>
  allowed.reduce((best, each) => (Math.abs(each - value) < Math.abs(best - value) ? each : best), allowed[0] ?? value);

export const studio = new Studio();
