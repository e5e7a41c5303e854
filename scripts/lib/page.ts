import { build } from "esbuild";
import { cp, mkdir, readdir } from "node:fs/promises";
import { join } from "node:path";
import { root } from "./places.ts";

const source = join(root, "www");
const output = join(root, "dist");

/** Bundles the page into dist/, from where the edge serves it. */
export async function buildPage(): Promise<void> {
  await mkdir(output, { recursive: true });
  await build({
    entryPoints: [join(source, "src", "main.ts"), join(source, "style.css")],
    outdir: output,
    entryNames: "[name]",
    bundle: true,
    minify: true,
    format: "esm",
    target: "es2022",
    logLevel: "warning",
  });
  for (const file of await readdir(source)) {
    if (/\.(html|svg|txt|webmanifest)$/.test(file) || file === "_headers") await cp(join(source, file), join(output, file));
  }
}
