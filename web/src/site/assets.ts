/** Files that come as scripts beside the page: see src/vitrail/server/site/assets.py. */

type Receive = (name: string, index: number, count: number, text: string) => void;

interface Parts {
  texts: string[];
  count: number;
}
const received = new Map<string, Parts>();

(globalThis as unknown as { vitrailAsset: Receive }).vitrailAsset = (name, index, count, text) => {
  const parts = received.get(name) ?? { texts: [], count };
  parts.texts[index] = text;
  received.set(name, parts);
};

/** Load a file; it is not kept. */
export async function asset(name: string): Promise<Uint8Array<ArrayBuffer>> {
  await run(`./assets/${name}.0.js`);
  const parts = received.get(name)!;
  for (let index = 1; index < parts.count; index++) await run(`./assets/${name}.${index}.js`);
  received.delete(name);
  const packed = new Blob(parts.texts.map(decoded)).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(packed).arrayBuffer());
}

/** Load several files, by name. */
export async function assets(names: readonly string[]): Promise<Record<string, Uint8Array<ArrayBuffer>>> {
  return Object.fromEntries(await Promise.all(names.map(async (name) => [name, await asset(name)])));
}

function run(address: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const script = document.createElement('script');
    script.src = address;
    script.onload = () => resolve();
    script.onerror = () => reject(new Error(`${address} is missing beside the page; copy the exported folder whole`));
    document.head.append(script);
    script.addEventListener('load', () => script.remove());
  });
}

function decoded(text: string): Uint8Array<ArrayBuffer> {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}
