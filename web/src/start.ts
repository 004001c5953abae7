import { mount } from 'svelte';
import App from './App.svelte';
import './app.css';
import type { Answer, Failure } from './lib/api';
import { backend } from './lib/backend';
import { studio } from './lib/state.svelte';
import { applyTheme } from './lib/theme.svelte';

/** Ask for the controls, then show the page; where that fails, say why instead. */
export async function start(): Promise<void> {
  applyTheme();
  const target = document.getElementById('app')!;
  try {
    const response = await backend.fetch('./api/controls');
    if (!response.ok) throw new Error(((await response.json()) as Failure).error);
    studio.open((await response.json()) as Answer<'controls'>);
    await Promise.all([studio.findImages(), studio.findTokens()]);
    mount(App, { target });
  } catch (error) {
    target.textContent = `The studio does not answer: ${error instanceof Error ? error.message : error}`;
  }
}
