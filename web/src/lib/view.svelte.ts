/** Views: the server's response for the current state, and for the pinned one. */
import { onDestroy } from 'svelte';
import type { Answer, Facts, FramePath, JsonPath } from './api';
import { Asker } from './ask';
import { readFrame, type Frame } from './frame';
import { studio } from './state.svelte';
import { waiting } from './waiting.svelte';
import type { Values } from './address';

export class View<T> {
  now = $state.raw<T | null>(null);
  pinned = $state.raw<T | null>(null);
  error = $state('');
  /** Whether an answer is late, so that what is shown belongs to an older question. */
  busy = $state(false);
  /** Whether the current question has its answer, or its error. */
  settled = $state(false);
}

/** The number of pending requests. The page has `data-idle` while there are none, which tests wait for. */
let pending = 0;

function count(change: 1 | -1): void {
  pending += change;
  document.documentElement.toggleAttribute('data-idle', pending === 0);
}

interface Settings {
  /** The room whose controls are sent; default: the open one. */
  room?: string;
  /** Milliseconds without a change before a request is sent: a debounce for slow views. */
  calm?: number;
  /** Parameters beyond the controls, such as the hovered token. */
  extra?: () => Values;
  /** Whether to ask now; until then the request waits, so that what is seen first is computed first. */
  when?: () => boolean;
  /** Controls of the room that the response does not depend on. */
  without?: readonly string[];
}

/** Request JSON from `path` whenever the state changes. Call this while a component initialises. */
export function view<P extends JsonPath>(path: P, settings: Settings = {}): View<Answer<P>> {
  return watch(path, settings, (response) => response.json() as Promise<Answer<P>>);
}

/** Request a frame of arrays whenever the state changes. */
export function frameView<P extends FramePath>(path: P, settings: Settings = {}): View<Frame<Facts<P>>> {
  return watch(path, settings, async (response) => readFrame<Facts<P>>(await response.arrayBuffer()));
}

function watch<T>(path: string, settings: Settings, read: (response: Response) => Promise<T>): View<T> {
  const { room, extra, when, without = [], calm = 0 } = settings;
  const found = new View<T>();
  const home = room ?? studio.room;
  const address = (values: Values) => {
    const query = new URLSearchParams(studio.query(home, values));
    for (const name of without) query.delete(name);
    for (const [name, value] of Object.entries(extra?.() ?? {})) query.set(name, String(value));
    return `./api/${path}?${query}`;
  };
  const now = new Asker<T>({
    read,
    answered: (value, answered) => {
      found.now = value;
      found.error = '';
      found.settled = answered === url;
    },
    failed: (line) => {
      found.error = line;
      found.settled = true;
    },
    busy: (busy) => count(busy ? 1 : -1),
    late: (late) => {
      if (late === found.busy) return;
      found.busy = late;
      if (late) waiting.begin();
      else waiting.end();
    },
  });
  const pinned = new Asker<T>({
    read,
    answered: (value) => (found.pinned = value),
    failed: () => (found.pinned = null),
    busy: (busy) => count(busy ? 1 : -1),
  });
  // derived, so that a change of an unused control sends no request
  const url = $derived(address(studio.values));
  const pinnedUrl = $derived(studio.pin && address(studio.pin));
  const ready = $derived(when?.() ?? true);
  $effect(() => {
    const asked = url;
    found.settled = false;
    if (!ready) {
      count(1);
      return () => count(-1);
    }
    if (!calm) return now.ask(asked);
    count(1);
    let waits = true;
    const end = () => {
      if (waits) count(-1);
      waits = false;
    };
    const timer = setTimeout(() => {
      now.ask(asked);
      end();
    }, calm);
    return () => {
      clearTimeout(timer);
      end();
    };
  });
  $effect(() => {
    if (pinnedUrl) pinned.ask(pinnedUrl);
    else found.pinned = null;
  });
  onDestroy(() => {
    now.stop();
    pinned.stop();
  });
  return found;
}
