// Bundles src/ into the two files that ship with the package: one script and one style sheet, without any import.
import { build } from "esbuild";

const out = new URL("../glassgrad/viz/assets/", import.meta.url).pathname;
await build({
  entryPoints: { viz: "src/main.jsx" },
  bundle: true, minify: true, format: "iife", target: "es2020", charset: "ascii", legalComments: "none",
  jsxFactory: "h", jsxFragment: "Fragment", outdir: out, logLevel: "info",
  banner: { js: "/* glassgrad viz: built from viz-ui/. Contains preact, dagre (MIT) and jsdiff (BSD-3-Clause). */" },
});
