/** Functions of a worker, called from the page: every call is a message, and so is its result or error. */

interface Call {
  id: number;
  method: string;
  given: unknown[];
}
type Reply = { id: number; value: unknown } | { id: number; error: string };
/** What a worker offers, with its arguments and results as values that can be copied. */
type Methods = Record<string, (...given: never[]) => unknown>;

/** The worker's side. */
export function offer(methods: Methods): void {
  const here = globalThis as unknown as Worker;
  here.onmessage = async ({ data }: MessageEvent<Call>) => {
    let reply: Reply;
    try {
      reply = { id: data.id, value: await methods[data.method](...(data.given as never[])) };
    } catch (error) {
      reply = { id: data.id, error: error instanceof Error ? error.message : String(error) };
    }
    here.postMessage(reply);
  };
}

/** The page's side. */
export class Remote {
  #last = 0;
  #waiting = new Map<number, { resolve: (value: never) => void; reject: (error: Error) => void }>();

  constructor(private readonly worker: Worker) {
    worker.onmessage = ({ data }: MessageEvent<Reply>) => {
      const { resolve, reject } = this.#waiting.get(data.id)!;
      this.#waiting.delete(data.id);
      if ('error' in data) reject(new Error(data.error));
      else resolve(data.value as never);
    };
    worker.onerror = (event) => {
      for (const { reject } of this.#waiting.values()) reject(new Error(event.message || 'a worker of the page ended'));
      this.#waiting.clear();
    };
  }

  call<T>(method: string, ...given: unknown[]): Promise<T> {
    const call: Call = { id: ++this.#last, method, given };
    return new Promise<T>((resolve, reject) => {
      this.#waiting.set(call.id, { resolve: resolve as (value: never) => void, reject });
      this.worker.postMessage(call);
    });
  }
}
