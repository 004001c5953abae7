import { mount } from 'svelte';
import App from './App.svelte';
import './app.css';
import { studio, type Catalogue } from './lib/state.svelte';
import { applyTheme } from './lib/theme.svelte';

applyTheme();
const target = document.getElementById('app')!;
try {
  const response = await fetch('./api/controls');
  if (!response.ok) throw new Error(((await response.json()) as { error: string }).error);
  studio.open((await response.json()) as Catalogue);
  mount(App, { target });
} catch (error) {
  target.textContent = `The studio does not answer: ${error instanceof Error ? error.message : error}`;
}
