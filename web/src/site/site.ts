/** The exported page: the studio's page, with its backend inside. */
import { replaceBackend } from '../lib/backend';
import { start } from '../start';
import { LocalBackend } from './local';

async function open(): Promise<void> {
  try {
    const local = await LocalBackend.open();
    replaceBackend(local);
    // for the browser's console: (await vitrail.fetch('./api/memory?batch=8')).json()
    Object.assign(globalThis, { vitrail: { fetch: local.fetch.bind(local) } });
  } catch (error) {
    document.getElementById('app')!.textContent = `The page cannot start: ${(error as Error).message}`;
    return;
  }
  await start();
}

void open();
