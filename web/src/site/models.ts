/** The models of an exported page: an image becomes the model's input, and the outputs of its graph. */
import type { Pair } from '../lib/api';
import { asset, assets } from './assets';
import { Remote } from './calls';
import ModelWorker from './model.worker?worker&inline';
import { cropped, planes, type Pictures } from './pictures';
import type { Outputs, Values } from './values';

const RUNTIME = ['ort.wasm.bundle.min.mjs', 'ort-wasm-simd-threaded.wasm'];
const MOST_PIXELS = 2 ** 24;
const KEPT = 2;

/** How the model's preprocessing resizes an image, and the corner of the part that it keeps. */
export interface Crop {
  resized: Pair;
  corner: Pair;
}

/** A model at one input size. */
export interface PassFacts {
  asset: string;
  /** The sizes of the graph's inputs, by name. */
  inputs: Record<string, Pair>;
  answers: Record<string, unknown>;
}

export interface ModelFacts {
  resize: string;
  channels: number;
  /** The side in pixels that is chosen automatically; 0 is the training size. */
  automatic: number;
  /** By the side in pixels; none for a model that the page cannot run. */
  passes: Record<string, PassFacts>;
  /** Files of results that need no image, by room. */
  stored?: Record<string, string>;
}

export interface Pass {
  outputs: Outputs;
  /** The pixels that the model got, by the name of its input. */
  inputs: Outputs;
  crop: Crop;
}

export class Models {
  #worker: Promise<Remote> | null = null;
  #open = new Map<string, Promise<void>>();
  /** The last passes, the newest last. */
  #passes = new Map<string, Promise<Pass>>();

  constructor(
    private readonly pictures: Pictures,
    private readonly crop: (image: string, weights: string, size: Pair) => Promise<Crop>,
  ) {}

  /** The pass of a model on an image; the last two are kept, since two images are matched. */
  pass(image: string, weights: string, model: ModelFacts, facts: PassFacts): Promise<Pass> {
    const key = JSON.stringify([image, facts.asset]);
    const pass = this.#passes.get(key) ?? this.#compute(image, weights, model, facts);
    this.#passes.delete(key);
    this.#passes.set(key, pass);
    if (this.#passes.size > KEPT) this.#passes.delete(this.#passes.keys().next().value!);
    pass.catch(() => this.#passes.delete(key));
    return pass;
  }

  async #compute(image: string, weights: string, { channels, resize }: ModelFacts, facts: PassFacts): Promise<Pass> {
    const inputs: Outputs = {};
    let crop: Crop | null = null;
    for (const [name, size] of Object.entries(facts.inputs)) {
      const how = await this.crop(image, weights, size);
      crop ??= how; // that of the first input, which the page shows
      inputs[name] = await this.pixels(image, channels, how, size, resize);
    }
    return { outputs: await this.run(facts.asset, inputs), inputs, crop: crop! };
  }

  /** An image, resized by a graph and cropped to (height, width, channels). */
  async pixels(image: string, channels: number, { resized, corner }: Crop, size: Pair, resize: string): Promise<Values> {
    const whole = planes(this.pictures.get(image).image, channels);
    return cropped(await this.#resized(whole, resized, resize), corner, size);
  }

  async #resized(whole: Values, [height, width]: Pair, graph: string): Promise<Values> {
    const [, channels, rows, columns] = whole.dims;
    if (height * width > MOST_PIXELS) throw new Error('the image is too long for its width; crop it first');
    if (height === rows && width === columns) return whole;
    const sizes = BigInt64Array.of(1n, BigInt(channels), BigInt(height), BigInt(width));
    return (await this.run(graph, { pixels: whole, sizes: { data: sizes, dims: [4] } })).resized;
  }

  /** The outputs of a graph, by name. */
  async run(graph: string, inputs: Outputs): Promise<Outputs> {
    const worker = await (this.#worker ??= this.#start());
    if (!this.#open.has(graph)) this.#open.set(graph, asset(graph).then((bytes) => worker.call('open', graph, bytes)));
    await this.#open.get(graph);
    return worker.call('run', graph, inputs);
  }

  async #start(): Promise<Remote> {
    const files = await assets(RUNTIME);
    const worker = new Remote(new ModelWorker());
    await worker.call('start', ...RUNTIME.map((name) => files[name]));
    return worker;
  }
}
