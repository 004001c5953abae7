import { describe, expect, test, vi } from 'vitest';
import { Asker } from './ask';

/** A fake server that answers on demand. */
function server() {
  const out: { url: string; answer: (body: unknown, status?: number) => void; aborted: boolean }[] = [];
  const fetcher = ((url: string, { signal }: { signal: AbortSignal }) =>
    new Promise<Response>((resolve, reject) => {
      const call = {
        url,
        aborted: false,
        answer: (body: unknown, status = 200) => resolve(new Response(JSON.stringify(body), { status })),
      };
      signal.addEventListener('abort', () => {
        call.aborted = true;
        reject(new Error('aborted'));
      });
      out.push(call);
    })) as unknown as typeof fetch;
  const seen: unknown[] = [];
  const errors: string[] = [];
  const busy: boolean[] = [];
  const late: boolean[] = [];
  const asker = new Asker<unknown>(
    {
      read: (r) => r.json(),
      answered: (value) => seen.push(value),
      failed: (line) => errors.push(line),
      busy: (now) => busy.push(now),
      late: (now) => late.push(now),
    },
    50,
    fetcher,
  );
  return { out, seen, errors, busy, late, asker };
}
const settled = () => new Promise((resolve) => setTimeout(resolve, 5));

describe('Asker', () => {
  test('has one request in flight, and the latest value wins', async () => {
    const { out, seen, asker } = server();
    for (const url of ['a', 'b', 'c', 'd']) asker.ask(url);
    expect(out.map((call) => call.url)).toEqual(['a']);
    out[0].answer(1);
    await settled();
    expect(out.map((call) => call.url)).toEqual(['a', 'd']);
    out[1].answer(4);
    await settled();
    expect(seen).toEqual([1, 4]);
  });

  test('aborts a slow request once a newer one waits', async () => {
    const { out, seen, asker } = server();
    asker.ask('slow');
    asker.ask('newer');
    await vi.waitFor(() => expect(out[0].aborted).toBe(true));
    await settled();
    out[1].answer('fresh');
    await settled();
    expect(seen).toEqual(['fresh']);
  });

  test('keeps a slow request while no newer one waits', async () => {
    const { out, seen, asker } = server();
    asker.ask('slow');
    await new Promise((resolve) => setTimeout(resolve, 80));
    expect(out[0].aborted).toBe(false);
    out[0].answer('late');
    await settled();
    expect(seen).toEqual(['late']);
  });

  test('reports the error, unless a newer request waits', async () => {
    const { out, errors, asker } = server();
    asker.ask('bad');
    asker.ask('also bad');
    out[0].answer({ error: 'first', status: 400 }, 400);
    await settled();
    out[1].answer({ error: 'second', status: 400 }, 400);
    await settled();
    expect(errors).toEqual(['second']);
  });

  test('is busy from the first question to the last answer', async () => {
    const { out, busy, asker } = server();
    asker.ask('a');
    asker.ask('b');
    out[0].answer(1);
    await settled();
    expect(busy).toEqual([true]);
    out[1].answer(2);
    await settled();
    expect(busy).toEqual([true, false]);
  });

  test('is late from a slow request until an answer, also that of the newer request', async () => {
    const { out, late, asker } = server();
    asker.ask('fast');
    out[0].answer(1);
    await settled();
    expect(late).toEqual([false]);
    asker.ask('slow');
    await vi.waitFor(() => expect(late).toEqual([false, true]));
    asker.ask('newer');
    await settled();
    expect(out[1].aborted).toBe(true);
    expect(late).toEqual([false, true]);
    out[2].answer(2);
    await settled();
    expect(late).toEqual([false, true, false]);
  });

  test('is silent and not busy once stopped', async () => {
    const { out, seen, errors, busy, asker } = server();
    asker.ask('a');
    asker.ask('b');
    asker.stop();
    await settled();
    expect([out.length, seen, errors, busy]).toEqual([1, [], [], [true, false]]);
  });
});
