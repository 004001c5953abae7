/** The backend inside an exported page: Python answers what needs no model, and graphs fill the rest. */
import type { Answer, Pair } from '../lib/api';
import type { Backend } from '../lib/backend';
import { asset, assets } from './assets';
import { Remote } from './calls';
import { Cuts, type CutKind } from './cuts';
import { fill } from './fill';
import { frame, type Array as Plane } from './frames';
import { matched, type MatchTemplate } from './matching';
import { Models, type Crop, type ModelFacts, type Pass, type PassFacts } from './models';
import { colours, drawn, Pictures } from './pictures';
import PythonWorker from './python.worker?worker&inline';
import { rowOf, type Values } from './values';
import { walkIndices, walkNumbers, type WalkTemplate } from './walk';

/** What the export knew: see src/vitrail/server/site/write.py. */
interface Site {
  controls: Answer<'controls'>;
  wheels: string[];
  images: Record<string, Pair>;
  models: Record<string, ModelFacts>;
  elsewhere: string;
  /** The graph that resizes images where no model looks at them. */
  resize: string;
  /** First answers, by address. */
  recorded: Record<string, unknown>;
}
interface Frame {
  facts: unknown;
  photo?: { box: [number, number, number, number]; side: number };
  pixels?: string;
  arrays: { name: string; from: string; range?: string }[];
}

const PYODIDE = ['pyodide.mjs', 'pyodide.asm.mjs', 'pyodide.asm.wasm', 'python_stdlib.zip', 'pyodide-lock.json'];
const json = (value: unknown, status = 200) =>
  new Response(JSON.stringify(value), { status, headers: { 'Content-Type': 'application/json' } });
const failure = (error: string) => json({ error, status: 400 }, 400);

export class LocalBackend implements Backend {
  readonly exported = true;
  starting = 'Python starts in this page, once: some seconds';
  readonly elsewhere: string;
  readonly #pictures = new Pictures();
  readonly #models: Models;
  readonly #cuts: Cuts;
  readonly #python: Promise<Remote>;
  readonly #stored: Record<string, Promise<void>> = {};

  static async open(): Promise<LocalBackend> {
    const text = new TextDecoder().decode(await asset('site'));
    const local = new LocalBackend(JSON.parse(text) as Site, text);
    await Promise.all(Object.keys(local.site.images).map((name) => local.#pictures.load(name)));
    return local;
  }

  private constructor(
    private readonly site: Site,
    text: string,
  ) {
    this.elsewhere = site.elsewhere;
    this.#python = this.#start(text);
    this.#models = new Models(this.#pictures, async (image, weights, [height, width]) => {
      const query = new URLSearchParams({ image, weights, height: String(height), width: String(width) });
      return (await (await this.#asked(`/api/site/crop?${query}`)).json()) as Crop;
    });
    const threshold = site.controls.controls.threshold.default as number;
    this.#cuts = new Cuts(this.#models, (address, sent) => this.#asked(address, sent), site.resize, threshold);
  }

  picture(image: string): string {
    return this.#pictures.has(image) ? this.#pictures.get(image).url : '';
  }

  async fetch(address: string, options: RequestInit = {}): Promise<Response> {
    const { signal } = options;
    const given_up = new Promise<never>((_, reject) =>
      signal?.addEventListener('abort', () => reject(new DOMException('replaced by a newer question', 'AbortError'))),
    );
    return Promise.race([this.#answer(address, options), given_up]);
  }

  async #answer(address: string, { method, body }: RequestInit): Promise<Response> {
    const [path, query = ''] = address.replace('./api/', '').split('?');
    if (path === 'controls') return json(this.site.controls);
    const stored = /^images\/(.+)\/stored$/.exec(path);
    if (stored) return json(this.#pictures.has(decodeURIComponent(stored[1])));
    try {
      if (method === 'POST') return path === 'images' ? await this.#add(body as Blob) : failure(NO_WEIGHTS);
      const asked = new URLSearchParams(query);
      if (path in CUT) return await this.#cuts.answer(CUT[path], this.#image(asked), asked);
      const weights = asked.get('weights') ?? 'default';
      const model = this.site.models[weights];
      const looks = model?.passes[model.automatic]?.answers[FILLED[path] ?? path];
      if (looks) return await this.#looked(path, asked, weights, model);
      const stored = model?.stored?.[path.split('/')[0]];
      if (stored) await (this.#stored[stored] ??= this.#load(stored));
      return await this.#asked(`/api/${path}${query && `?${query}`}`);
    } catch (error) {
      return failure((error as Error).message);
    }
  }

  /** A model at an input size; 0 is the automatic one. */
  #size({ passes, automatic }: ModelFacts, side: number): PassFacts {
    const own = passes[automatic];
    const found = !side || own.inputs.seen.every((each) => each === side) ? own : passes[side];
    if (found) return found;
    const sides = Object.values(passes).map(({ inputs }) => inputs.seen[0]);
    const words = sides.sort((one, other) => one - other).join(', ');
    throw new Error(`an exported page has this model at ${words} px; run vitrail studio for ${side} px`);
  }

  #image(asked: URLSearchParams): string {
    return asked.get('image') ?? (this.site.controls.controls.image.default as string);
  }

  /** Ask Python; what every visitor sees first was asked by the export. */
  async #asked(address: string, sent?: string): Promise<Response> {
    if (address in this.site.recorded) return json(this.site.recorded[address]);
    const python = await this.#python;
    const [status, kind, body] = await python.call<[number, string, Uint8Array<ArrayBuffer>]>('answer', address, sent);
    return new Response(body, { status, headers: { 'Content-Type': kind } });
  }

  /** Give Python a file of results. */
  async #load(name: string): Promise<void> {
    const [python, bytes] = await Promise.all([this.#python, asset(name)]);
    await python.call('addStored', name, bytes);
  }

  async #add(file: Blob): Promise<Response> {
    const added = await this.#pictures.add(file);
    await (await this.#python).call('addImage', added.image, added.height, added.width);
    return json(added);
  }

  /** Answer a question about a model that looks at an image. */
  async #looked(path: string, asked: URLSearchParams, weights: string, model: ModelFacts): Promise<Response> {
    const image = this.#image(asked);
    const facts = this.#size(model, Number(asked.get('seen') ?? 0));
    const template = facts.answers[FILLED[path] ?? path];
    const pass = await this.#models.pass(image, weights, model, facts);
    if (path === 'match/maps') return this.#matched(template as MatchTemplate, asked, weights, model, facts);
    const token = Number(asked.get('token') ?? -1);
    if (path === 'attention' || path === 'site/vector') return json(fill(template, pass.outputs));
    if (path === 'tokens/one') {
      const { default: middle, before, ...one } = template as { default: number; before: number };
      const chosen = token < 0 ? middle : token;
      return json(fill(one, pass.outputs, { token: chosen, cell: chosen - before }));
    }
    if (path === 'walk') return this.#walked(template as WalkTemplate, asked, pass);
    const layer = Number(asked.get('layer') ?? -1);
    const { facts: own, arrays, photo, pixels } = (Array.isArray(template) ? template.at(layer) : template) as Frame;
    if (path === 'attention/row' || path === 'attention/rolled') {
      const row = token < 0 ? (own as { default_token: number }).default_token : token;
      const kept = arrays.filter(({ name }) => /rolled|contrast/.test(name) === (path === 'attention/rolled'));
      const rows = kept.map(({ name, from }) => ({ name, values: rowOf(pass.outputs[from], row) }));
      return new Response(frame({ subject: `${image} ${facts.asset}`, token: row }, rows));
    }
    const planes: Plane[] = arrays.map(({ name, from, range }) => ({
      name,
      values: pass.outputs[from],
      range: range === undefined ? undefined : (Array.from(pass.outputs[range].data as Float32Array) as Pair),
    }));
    if (photo) planes.unshift({ name: 'photo', values: this.#photo(image, facts.inputs.seen, pass, photo) });
    if (pixels) planes.unshift({ name: 'pixels', values: pass.inputs[pixels] });
    return new Response(frame(fill(own, pass.outputs), planes));
  }

  /** The shape of an image is not kept: a graph has one size. */
  async #matched(
    template: MatchTemplate,
    asked: URLSearchParams,
    weights: string,
    model: ModelFacts,
    facts: PassFacts,
  ): Promise<Response> {
    if (asked.get('match_shape') === 'whole') return failure(this.elsewhere);
    const images = [this.#image(asked), asked.get('second') ?? (this.site.controls.controls.second.default as string)];
    const [first, second] = [
      await this.#models.pass(images[0], weights, model, facts),
      await this.#models.pass(images[1], weights, model, facts),
    ];
    const photo = (side: number, pass: Pass) => this.#photo(images[side], facts.inputs.seen, pass, template.photo);
    const photos: [Values, Values] = [photo(0, first), photo(1, second)];
    const layer = Number(asked.get('layer') ?? -1);
    return matched(template, [first, second], layer, photos, this.#models, (address, sent) => this.#asked(address, sent));
  }

  async #walked(template: WalkTemplate, asked: URLSearchParams, { outputs, inputs }: Pass): Promise<Response> {
    const number = (name: string) => Number(asked.get(name) ?? this.site.controls.controls[name].default);
    const numbers = walkNumbers(template, outputs, walkIndices(template, outputs, number));
    const answer = await this.#asked('/api/site/walk', JSON.stringify(numbers));
    if (!answer.ok) return answer;
    const planes = template.arrays.map(({ name, from }) => ({ name, values: outputs[from] }));
    return new Response(frame(await answer.json(), [{ name: 'pixels', values: inputs.seen }, ...planes]));
  }

  /** The part of the image that the model's grid covers, for the eye. */
  #photo(image: string, size: Pair, { crop }: Pass, { box, side }: NonNullable<Frame['photo']>) {
    const picture = this.#pictures.get(image).image;
    const scale = [picture.height / crop.resized[0], picture.width / crop.resized[1]];
    const [top, left] = [0, 1].map((axis) => (crop.corner[axis] + box[axis] * size[axis]) * scale[axis]);
    const [tall, wide] = [0, 1].map((axis) => box[axis + 2] * size[axis] * scale[axis]);
    const smaller = Math.min(1, side / Math.max(tall, wide));
    const shown: Pair = [Math.round(tall * smaller), Math.round(wide * smaller)];
    return colours(drawn(picture, [top, left, tall, wide], shown), shown);
  }

  async #start(text: string): Promise<Remote> {
    const files = await assets([...PYODIDE, ...this.site.wheels, 'vitrail.zip']);
    const python = new Remote(new PythonWorker());
    await python.call('start', files, this.site.wheels, text);
    this.starting = '';
    return python;
  }
}

/** Questions that are answered by a part of another's answer. */
const FILLED: Record<string, string> = { 'attention/row': 'attention/maps', 'attention/rolled': 'attention/maps' };
/** Questions about an image that is cut, and not seen by a model. */
const CUT: Record<string, CutKind> = { 'tokens/adaptive': 'adaptive', 'tokens/pyramid': 'pyramid' };
const NO_WEIGHTS = 'an exported page has the models that it was made with; use vitrail studio --weights FILE';
