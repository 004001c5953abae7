/** Types of the server's responses, by path, generated from its schema: a name changed in Python fails `npm run check`. */
import type { components, paths } from '../generated/api';

/** Response content by the path after /api/. */
type Answers = {
  [P in keyof paths as P extends `/api/${infer Name}` ? Name : never]: paths[P] extends {
    get: { responses: { 200: { content: infer Content } } };
  }
    ? Content
    : never;
};
type Json = { 'application/json': unknown };
type Binary = { 'application/octet-stream': { facts: unknown } };

export type JsonPath = { [P in keyof Answers]: Answers[P] extends Json ? P : never }[keyof Answers];
export type FramePath = { [P in keyof Answers]: Answers[P] extends Binary ? P : never }[keyof Answers];

export type Answer<P extends JsonPath> = Answers[P] extends { 'application/json': infer A } ? A : never;
/** The facts in the header of a frame. */
export type Facts<P extends FramePath> = Answers[P] extends { 'application/octet-stream': { facts: infer F } } ? F : never;

export type Schemas = components['schemas'];
export type Pair = [number, number];
export type Failure = paths['/api/controls']['get']['responses'][400]['content']['application/json'];
