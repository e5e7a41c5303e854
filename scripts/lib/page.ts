import { mkdir, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { bundle } from "./bundle.ts";
import { root } from "./paths.ts";

const source = join(root, "www");
const output = join(root, "dist");

/** A package that the page imports on demand. */
const onDemand = "micromark";

/**
 * The package has its own bundle. Otherwise, esbuild puts helpers for it and for the page's script into a third file.
 * Browsers would request that file only after they had loaded the script.
 */
async function bundlePage() {
  const page = await bundle("the page", {
    entryPoints: [join(source, "src", "main.ts"), join(source, "style.css")],
    outdir: output,
    entryNames: "[name]",
    // Puts dynamic imports into separate files.
    splitting: true,
    chunkNames: "[name]-[hash]",
    alias: { [onDemand]: `./${onDemand}.js` },
    external: [`./${onDemand}.js`],
  });
  const library = await bundle("the Markdown renderer", {
    absWorkingDir: root,
    entryPoints: { [onDemand]: onDemand },
    outdir: output,
  });
  return {
    outputFiles: [...page.outputFiles, ...library.outputFiles],
    inputs: [...Object.keys(page.metafile.inputs), ...Object.keys(library.metafile.inputs)],
  };
}

/** The names of the npm packages in the page. */
export async function packagesInPage(): Promise<Set<string>> {
  const { inputs } = await bundlePage();
  const names = inputs.map((file) => /.*node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(file)?.[1]);
  return new Set(names.filter((name) => name !== undefined));
}

/** Bundles the page into dist/, from which the edge serves it. */
export async function buildPage(): Promise<void> {
  const bundled = await bundlePage();
  const files = new Map<string, Uint8Array>(bundled.outputFiles.map((file) => [file.path, file.contents]));
  for (const name of await readdir(source)) {
    if (/\.(html|svg|txt|webmanifest)$/.test(name) || name === "_headers")
      files.set(join(output, name), await readFile(join(source, name)));
  }
  await mkdir(output, { recursive: true });
  for (const [path, contents] of files) await writeIfChanged(path, contents);
  for (const name of await readdir(output)) {
    if (!files.has(join(output, name)) && !name.endsWith(".new")) await rm(join(output, name), { recursive: true });
  }
}

/** Writes only changes, because `wrangler dev` restarts the edge whenever a file is written. */
async function writeIfChanged(path: string, contents: Uint8Array): Promise<void> {
  const before = await readFile(path).catch(() => undefined);
  if (before?.equals(contents)) return;
  const beside = `${path}.${process.pid}.new`;
  await writeFile(beside, contents);
  await rename(beside, path);
}
