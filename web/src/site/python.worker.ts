/** Python in a worker: Pyodide, FastAPI and vitrail's own code answer what the studio's server would. */
import { offer } from './calls';

type Files = Record<string, Uint8Array<ArrayBuffer>>;
interface Python {
  FS: { writeFile(path: string, bytes: Uint8Array): void };
  unpackArchive(bytes: Uint8Array, format: string): void;
  runPython(code: string): unknown;
  pyimport(name: string): { start(facts: string): Backend };
}
/** `Backend` of src/vitrail/server/site/browser.py. */
interface Backend {
  answer(address: string, sent?: string): Promise<{ toJs(): [number, string, Uint8Array]; destroy(): void }>;
  add_image(name: string, height: number, width: number): void;
  add_stored(path: string): void;
}

/** Pyodide asks for its files at addresses below this one, which nobody has: they are answered from the page's own. */
const NOWHERE = 'https://page.invalid/';
let python: Python;
let backend: Backend;

/** Start with Pyodide's files, wheels, and vitrail's code as an archive. */
async function start(files: Files, wheels: string[], facts: string): Promise<void> {
  const script = (name: string) =>
    import(/* @vite-ignore */ URL.createObjectURL(new Blob([files[name]], { type: 'text/javascript' })));
  globalThis.fetch = async (asked) => {
    const name = String(asked).replace(NOWHERE, '');
    if (!(name in files)) throw new TypeError(`an exported page asks nobody for ${name}`);
    const kind = name.endsWith('.wasm') ? 'application/wasm' : 'application/octet-stream';
    return new Response(files[name], { headers: { 'Content-Type': kind } });
  };
  const { loadPyodide } = await script('pyodide.mjs');
  const { default: createPyodideModule } = await script('pyodide.asm.mjs');
  python = await loadPyodide({ indexURL: NOWHERE, createPyodideModule });
  const paths: string[] = [];
  for (const name of [...wheels, 'vitrail.zip']) {
    if (name.endsWith('none-any.whl') || name === 'vitrail.zip') {
      python.FS.writeFile(`/home/pyodide/${name}`, files[name]);
      paths.push(`/home/pyodide/${name}`);
    } else python.unpackArchive(files[name], 'wheel'); // compiled code is not imported from an archive
  }
  python.runPython(`import sys; sys.path += ${JSON.stringify(paths)}`);
  backend = python.pyimport('vitrail.server.site.browser').start(facts);
}

offer({
  start,
  async answer(address: string, sent?: string): Promise<[number, string, Uint8Array]> {
    const answer = await backend.answer(address, sent);
    const plain = answer.toJs();
    answer.destroy();
    return plain;
  },
  addStored(name: string, bytes: Uint8Array): void {
    python.FS.writeFile(`/home/pyodide/${name}`, bytes);
    backend.add_stored(`/home/pyodide/${name}`);
  },
  addImage: (name: string, height: number, width: number) => backend.add_image(name, height, width),
});
