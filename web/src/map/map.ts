/** A map that needs no server: its JSON and its sheets of thumbnails are in the page (src/vitrail/server/map_page.py). */
import { mount } from 'svelte';
import '../app.css';
import MapPage from './MapPage.svelte';

const told = JSON.parse(document.getElementById('map')!.textContent!);
document.documentElement.dataset.theme = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
mount(MapPage, { target: document.getElementById('app')!, props: told });
