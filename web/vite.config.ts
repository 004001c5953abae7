import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

export default defineConfig({
  base: './',
  plugins: [svelte()],
  build: {
    outDir: '../src/vitrail/server/static',
    emptyOutDir: true,
    // a strict content policy allows neither inline scripts nor data: modules
    modulePreload: false,
    assetsInlineLimit: 0,
  },
});
