import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

// `vite build` makes the studio's page, `--mode site` the one that `vitrail studio --export` writes, and `--mode map` the
// map that `vitrail atlas --out map.html` writes
const scripts: Record<string, string> = { site: 'src/site/site.ts', map: 'src/map/map.ts' };
export default defineConfig(({ mode }) => ({
  base: './',
  plugins: [svelte()],
  build: {
    outDir: `../src/vitrail/server/static/${mode in scripts ? mode : 'studio'}`,
    emptyOutDir: true,
    // a strict content policy allows neither inline scripts nor data: modules
    modulePreload: false as const,
    assetsInlineLimit: 0,
    ...(mode in scripts && {
      // from a file:// address, browsers run no modules: one plain script
      cssCodeSplit: false,
      rollupOptions: {
        input: scripts[mode],
        output: { format: 'iife' as const, entryFileNames: `${mode}.js`, assetFileNames: `${mode}[extname]` },
      },
    }),
  },
}));
