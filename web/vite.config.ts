import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

// `vite build` makes the studio's page, `vite build --mode site` the one that `vitrail studio --export` writes
export default defineConfig(({ mode }) => ({
  base: './',
  plugins: [svelte()],
  build: {
    outDir: `../src/vitrail/server/static/${mode === 'site' ? 'site' : 'studio'}`,
    emptyOutDir: true,
    // a strict content policy allows neither inline scripts nor data: modules
    modulePreload: false as const,
    assetsInlineLimit: 0,
    ...(mode === 'site' && {
      // from a file:// address, browsers run no modules: one plain script
      cssCodeSplit: false,
      rollupOptions: {
        input: 'src/site/site.ts',
        output: { format: 'iife' as const, entryFileNames: 'site.js', assetFileNames: 'site[extname]' },
      },
    }),
  },
}));
