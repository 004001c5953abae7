/** Adaptive and hierarchical patches of an exported page: Python says how to cut, a graph cuts, Python gives the cost. */
import type { Pair, Schemas } from '../lib/api';
import { frame } from './frames';
import type { Crop, Models } from './models';
import type { Values } from './values';

export type CutKind = 'adaptive' | 'pyramid';

/** See `CutPixels` in src/vitrail/server/site/browser.py. */
interface Cut extends Crop {
  image: Pair;
  patch: Pair;
}

export class Cuts {
  #last: { key: string; pixels: Promise<Values> } | null = null;

  constructor(
    private readonly models: Models,
    private readonly ask: (address: string, sent?: string) => Promise<Response>,
    private readonly resize: string,
    private readonly threshold: number,
  ) {}

  async answer(kind: CutKind, image: string, asked: URLSearchParams): Promise<Response> {
    const query = new URLSearchParams({ image });
    for (const [name, value] of asked) if (!['image', 'threshold'].includes(name)) query.append(name, value);
    const answer = await this.ask(`/api/site/cut/${kind}?${query}`);
    if (!answer.ok) return answer;
    const cut = (await answer.json()) as Cut;
    const { data } = await this.#pixels(image, cut);
    const [rows, columns] = [0, 1].map((axis) => cut.image[axis] / cut.patch[axis]);
    const cells = { data, dims: [rows, cut.patch[0], columns, cut.patch[1], 3] };
    return kind === 'adaptive' ? this.#tree(cells, asked) : this.#pyramid(cells);
  }

  async #tree(cells: Values, asked: URLSearchParams): Promise<Response> {
    const threshold = { data: Float32Array.of(Number(asked.get('threshold') ?? this.threshold)), dims: [] };
    const { levels, dense, counts } = await this.models.run('cut-adaptive', { cells, threshold });
    const facts = await this.ask(`/api/site/tree?${asked}`, JSON.stringify(Array.from(counts.data as Int32Array)));
    if (!facts.ok) return facts;
    const arrays = Object.entries({ levels, dense }).map(([name, values]) => ({ name, values }));
    return new Response(frame(await facts.json(), arrays));
  }

  async #pyramid(cells: Values): Promise<Response> {
    const levels = Object.entries(await this.models.run('cut-pyramid', { cells }));
    const arrays = levels.map(([name, values]) => ({ name: name.replace('level', ''), values }));
    const facts: Schemas['PyramidFacts'] = { patches: arrays.map(({ name }) => Number(name)) };
    return new Response(frame(facts, arrays));
  }

  /** The part of the image that is cut; the last one is kept, for the moves of a slider. */
  #pixels(image: string, { resized, corner, image: size }: Cut): Promise<Values> {
    const key = JSON.stringify([image, resized, corner, size]);
    if (this.#last?.key !== key) {
      const pixels = this.models.pixels(image, 3, { resized, corner }, size, this.resize);
      this.#last = { key, pixels };
      pixels.catch(() => (this.#last = null));
    }
    return this.#last!.pixels;
  }
}
