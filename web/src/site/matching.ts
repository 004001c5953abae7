/** The room Match of an exported page: a graph compares the outputs of two passes, and Python writes the facts. */
import type { Pair } from '../lib/api';
import { frame, type Array as Plane } from './frames';
import type { Models, Pass } from './models';
import type { Values } from './values';

/** Written by src/vitrail/server/site/answers.py. */
export interface MatchTemplate {
  /** What does not depend on the images. */
  numbers: object;
  photo: { box: [number, number, number, number]; side: number };
}

export async function matched(
  { numbers }: MatchTemplate,
  [first, second]: [Pass, Pass],
  layer: number,
  photos: [Values, Values],
  models: Models,
  ask: (address: string, sent: string) => Promise<Response>,
): Promise<Response> {
  const found = await models.run('match', {
    first: first.outputs[`unit${layer}`],
    second: second.outputs[`unit${layer}`],
    shares0: first.outputs['shares-of-tokens'],
    shares1: second.outputs['shares-of-tokens'],
    vector0: first.outputs.vector,
    vector1: second.outputs.vector,
  });
  const list = (name: string) => Array.from(found[name].data as Float32Array, Number);
  const both = (name: string) => [list(`${name}0`), list(`${name}1`)];
  const [score, vectors] = [list('score')[0], list('vectors')[0]];
  const sent = { ...numbers, nearest: both('nearest'), cosines: both('cosines'), parts: both('parts'), score, vectors };
  const facts = await ask('/api/site/match', JSON.stringify(sent));
  if (!facts.ok) return facts;
  const range = list('range') as Pair;
  const planes: Plane[] = ['cross', 'own0', 'own1'].map((name) => ({ name, values: found[name], range }));
  return new Response(frame(await facts.json(), [...photos.map((values, side) => ({ name: `photo${side}`, values })), ...planes]));
}
