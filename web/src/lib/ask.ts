import type { Failure } from './api';
import { backend, type Backend } from './backend';

/** One request in flight, and the latest value wins.
 *
 * While a request is in flight, only the newest later one waits. A response is shown even if a newer request waits, so
 * that a drag updates the page; but a request that takes longer than `patience` milliseconds is aborted for the newer.
 * The server stops a computation whose request is aborted. From then until an answer, the view is `late`.
 */
export class Asker<T> {
  #flight: { control: AbortController; url: string; slow: boolean; timer: ReturnType<typeof setTimeout> } | null = null;
  #waiting: string | null = null;

  constructor(
    private readonly hooks: {
      read: (response: Response) => Promise<T>;
      answered: (value: T, url: string) => void;
      failed: (line: string) => void;
      busy?: (busy: boolean) => void;
      late?: (late: boolean) => void;
    },
    private readonly patience = 300,
    private readonly fetcher: Backend['fetch'] = (...given) => backend.fetch(...given),
  ) {}

  ask(url: string): void {
    if (!this.#flight) {
      this.hooks.busy?.(true);
      void this.#send(url);
    } else if (this.#flight.url === url) {
      this.#waiting = null;
    } else {
      this.#waiting = url;
      if (this.#flight.slow) this.#flight.control.abort();
    }
  }

  /** Abort all requests: the view is destroyed. */
  stop(): void {
    this.#waiting = null;
    this.#flight?.control.abort();
  }

  async #send(url: string): Promise<void> {
    const control = new AbortController();
    const flight = { control, url, slow: false, timer: setTimeout(() => this.#slow(), this.patience) };
    this.#flight = flight;
    try {
      const response = await this.fetcher(url, { signal: control.signal });
      if (response.ok) {
        const value = await this.hooks.read(response);
        if (!control.signal.aborted) this.hooks.answered(value, url);
      } else {
        const failure = (await response.json()) as Failure;
        if (!control.signal.aborted && this.#waiting === null) this.hooks.failed(failure.error);
      }
    } catch (error) {
      if (!control.signal.aborted) this.hooks.failed(`The studio does not answer (${(error as Error).message})`);
    }
    clearTimeout(flight.timer);
    this.#flight = null;
    if (!control.signal.aborted || this.#waiting === null) this.hooks.late?.(false);
    const next = this.#waiting;
    this.#waiting = null;
    if (next !== null) void this.#send(next);
    else this.hooks.busy?.(false);
  }

  #slow(): void {
    if (!this.#flight) return;
    this.#flight.slow = true;
    this.hooks.late?.(true);
    if (this.#waiting !== null) this.#flight.control.abort();
  }
}
