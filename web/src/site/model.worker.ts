/** Models in a worker: ONNX Runtime runs the graphs of an exported page. */
import { offer } from './calls';
import type { Outputs, Values } from './values';

interface Tensor {
  data: Values['data'];
  dims: readonly number[];
}
interface Session {
  readonly outputNames: readonly string[];
  run(inputs: Record<string, Tensor>): Promise<Record<string, Tensor>>;
}
interface Runtime {
  env: { wasm: { numThreads: number; wasmBinary: ArrayBufferLike }; logLevel: string };
  Tensor: new (type: string, data: Values['data'], dims: readonly number[]) => Tensor;
  InferenceSession: { create(graph: Uint8Array, options: object): Promise<Session> };
}

let runtime: Runtime;
const sessions = new Map<string, Session>();

async function start(script: Uint8Array<ArrayBuffer>, binary: Uint8Array<ArrayBuffer>): Promise<void> {
  runtime = await import(/* @vite-ignore */ URL.createObjectURL(new Blob([script], { type: 'text/javascript' })));
  runtime.env.wasm.numThreads = 1; // threads need headers that a plain host does not send
  runtime.env.wasm.wasmBinary = binary.buffer;
  runtime.env.logLevel = 'error';
}

async function open(name: string, graph: Uint8Array): Promise<void> {
  sessions.set(name, await runtime.InferenceSession.create(graph, { executionProviders: ['wasm'] }));
}

async function run(name: string, inputs: Outputs): Promise<Outputs> {
  const given = Object.entries(inputs).map(([name, { data, dims }]) => [name, new runtime.Tensor(typeOf(data), data, dims)]);
  const found = await sessions.get(name)!.run(Object.fromEntries(given));
  return Object.fromEntries(Object.entries(found).map(([name, { data, dims }]) => [name, { data, dims: [...dims] }]));
}

const typeOf = (data: Values['data']) =>
  data instanceof Uint8Array ? 'uint8' : data instanceof BigInt64Array ? 'int64' : data instanceof Int32Array ? 'int32' : 'float32';

offer({ start, open, run });
