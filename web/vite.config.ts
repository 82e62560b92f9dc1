import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// One script and one style with fixed names: the server lists them, and an exported file holds them whole.
export default defineConfig({
  plugins: [svelte()],
  build: {
    outDir: "../src/heedful/explore/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    modulePreload: false,
    rollupOptions: {
      output: {
        inlineDynamicImports: true,
        entryFileNames: "assets/app.js",
        assetFileNames: "assets/app[extname]",
      },
    },
  },
  server: { proxy: { "/api": "http://127.0.0.1:8080" } },
});
