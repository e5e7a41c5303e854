import { cp, mkdir, readFile, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { bundle } from "./lib/bundle.ts";
import { buildEdge } from "./lib/edge.ts";
import { Failure } from "./lib/failure.ts";
import { runMain } from "./lib/lifecycle.ts";
import { options } from "./lib/options.ts";
import { nodeBin, root, state } from "./lib/paths.ts";
import { run } from "./lib/process.ts";
import { type Pulse, say, step } from "./lib/progress.ts";
import { pip, pythonWith } from "./lib/python.ts";
import { temporaryFolder } from "./lib/temporary-folder.ts";

const clients = join(root, "clients");

const packages: Record<string, (output: string) => Promise<void>> = { python, typescript, edge };

/** Builds what others install into .weir/packages, or another folder: all packages, or those of the command line. */
await runMain(async () => {
  const { values, positionals } = options({ options: { out: { type: "string" } }, allowPositionals: true });
  const unknown = positionals.find((name) => !(name in packages));
  if (unknown)
    throw new Failure(
      `unknown package "${unknown}"`,
      `use one or more of ${Object.keys(packages).join(", ")}, or leave them out to build all`,
    );
  const output = resolve(values.out ?? join(state, "packages"));
  await mkdir(output, { recursive: true });
  for (const [name, build] of Object.entries(packages))
    if (positionals.length === 0 || positionals.includes(name)) await build(output);
  say(`the packages are in ${output}`);
});

/** The wheel weir_client-VERSION-py3-none-any.whl. */
async function python(output: string): Promise<void> {
  const python = await pythonWith("hatchling", "1.33.0", "the builder of Python packages");
  const build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", output, join(clients, "python")];
  await step("building the package for Python", (pulse) => run(python, [...pip, ...build], { pulse }));
}

/** The tarball weir-client-VERSION.tgz, with ESM, CommonJS and types. */
async function typescript(output: string): Promise<void> {
  const source = join(clients, "typescript");
  const folder = temporaryFolder("weir-client");
  const [esm, cjs] = [join(folder, "esm"), join(folder, "cjs")];
  await step("building the package for TypeScript", async (pulse) => {
    for (const file of ["package.json", "README.md"]) await cp(join(source, file), join(folder, file));
    await run(join(nodeBin, "tsc"), ["--project", source, "--outDir", esm], { pulse });
    await mkdir(cjs);
    await writeFile(join(cjs, "package.json"), '{ "type": "commonjs" }\n');
    const format = ["--format=cjs", "--target=node18", `--outdir=${cjs}`, "--log-level=warning"];
    const modules = ["weir", "testing"];
    await run(join(nodeBin, "esbuild"), [...modules.map((name) => join(esm, `${name}.js`)), ...format], { pulse });
    for (const name of modules) await cp(join(esm, `${name}.d.ts`), join(cjs, `${name}.d.ts`));
    await pack(folder, output, pulse);
  });
}

/** The tarball weir-edge-VERSION.tgz: the edge for other Workers. */
async function edge(output: string): Promise<void> {
  await buildEdge();
  const source = join(root, "packages", "weir-edge");
  const folder = temporaryFolder("weir-edge");
  await step("building the package of the edge", async (pulse) => {
    await cp(source, folder, { recursive: true });
    for (const [module, built, name] of [
      ["weir.mjs", "build", "index"],
      ["limit.mjs", join("build", "limiter"), "limit"],
    ] as const) {
      await cp(join(root, built, "index_bg.wasm"), join(folder, `${name}_bg.wasm`));
      const { outputFiles } = await bundle("the edge", {
        entryPoints: [join(root, "src", module)],
        outfile: join(folder, `${name}.js`),
        external: ["./index_bg.wasm", "cloudflare:*"],
      });
      for (const { path, text } of outputFiles)
        await writeFile(path, text.replaceAll("./index_bg.wasm", `./${name}_bg.wasm`));
    }
    const entry = await readFile(join(root, "src", "entry.mjs"), "utf8");
    await writeFile(join(folder, "worker.js"), entry.replaceAll("./weir.mjs", "./index.js"));
    await pack(folder, output, pulse);
  });
}

/** Packs this folder for npm, with the repository's licences. */
async function pack(folder: string, output: string, pulse: Pulse): Promise<void> {
  for (const file of ["LICENSE-MIT", "LICENSE-APACHE"]) await cp(join(root, file), join(folder, file));
  await run("npm", ["pack", "--silent", "--pack-destination", output], { cwd: folder, pulse });
}
