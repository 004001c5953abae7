/** Slow requests: how many there are, and how long the model is expected to take. */
import type { Answer } from './api';
import { backend } from './backend';
import { studio } from './state.svelte';

class Waiting {
  /** "about 3 s: its last pass took 2.9 s at 448 × 448 px"; empty without a slow request to a model. */
  words = $state('');
  #slow = 0;

  begin(): void {
    if (this.#slow++ > 0) return;
    this.words = backend.starting;
    if (!backend.exported) void this.#estimate();
  }

  end(): void {
    if (--this.#slow === 0) this.words = '';
  }

  async #estimate(): Promise<void> {
    const query = new URLSearchParams(studio.query(studio.room));
    if (!studio.catalogue.rooms[studio.room].includes('weights')) return;
    for (const name of [...query.keys()]) if (!['image', 'weights', 'seen'].includes(name)) query.delete(name);
    const response = await backend.fetch(`./api/estimate?${query}`).catch(() => null);
    if (!response?.ok || this.#slow === 0) return;
    const { seconds, basis } = (await response.json()) as Answer<'estimate'>;
    this.words = seconds === null ? basis : `about ${time(seconds)}: ${basis}`;
  }
}

const time = (seconds: number) => (seconds < 10 ? `${Math.max(0.1, seconds).toFixed(1)} s` : `${Math.round(seconds)} s`);

export const waiting = new Waiting();
