import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdir, readdir, readFile, rename, rm, stat, writeFile } from "node:fs/promises";
import { join, relative } from "node:path";
import { build as bundle, stop } from "esbuild";
import { executableIn, libraryIn } from "./artifacts.ts";
import { usingCache } from "./cache.ts";
import { cargoEnvironment, requireCargo } from "./cargo.ts";
import { withLock } from "./lock.ts";
import { bindgen } from "./native.ts";
import { buildPage } from "./page.ts";
import { buildLock, nodeBin, root } from "./paths.ts";
import { run } from "./process.ts";
import { type Pulse, step } from "./progress.ts";
import { wasmTarget, wasmToolchain } from "./wasm-toolchain.ts";

const output = join(root, "build");
const stamp = join(output, ".inputs");

/** What the compiler uses by default, and the exceptions of wasm-bindgen. Of anything newer the runtime may know nothing. */
const wasmFeatures = [
  "bulk-memory",
  "exception-handling",
  "multivalue",
  "mutable-globals",
  "nontrapping-float-to-int",
  "reference-types",
  "sign-ext",
];

/** For development: without wasm-opt, which takes longer than the compiler after a change. */
export const quickly = { WEIR_EDGE_BUILD: "quick" };

/**
 * Builds the Worker into build/ and the page into dist/. Returns at once when nothing has changed. What is tested and
 * deployed is optimised; where the environment says `quickly`, as `wrangler dev` hears it, anything that is built will do.
 */
export function buildEdge(env: NodeJS.ProcessEnv = process.env): Promise<void> {
  const isQuick = env.WEIR_EDGE_BUILD === quickly.WEIR_EDGE_BUILD;
  return withLock(buildLock, "building in this clone", () => usingCache(() => build(isQuick)));
}

async function build(isQuick: boolean): Promise<void> {
  await buildPage();
  const inputs = await fingerprint();
  const [of, how] = existsSync(join(output, "index.js"))
    ? (await readFile(stamp, "utf8").catch(() => "")).split(" ")
    : [];
  if (of === inputs && (isQuick || how === "optimised")) return;

  await requireCargo();
  const toolchain = await wasmToolchain();
  await step("building the edge", async (pulse) => {
    const workshop = join(output, ".new");
    await rm(workshop, { recursive: true, force: true });
    await mkdir(workshop, { recursive: true });
    const program = await cargoBuild(["--workspace", "--bin", bindgen], pulse);
    const compiled = await cargoBuild(["--lib", "--release", "--target", wasmTarget], pulse, {
      ...toolchain.env,
      // The macros of wasm-bindgen then use what `worker` uses.
      WASM_BINDGEN_USE_JS_SYS: "1",
    });
    await run(executableIn(program, bindgen), [libraryIn(compiled, "weir_edge", ".wasm"), workshop]);
    if (!isQuick) await optimise(join(workshop, "index_bg.wasm"), pulse);
    await bundleGlue(workshop);
    await mkdir(output, { recursive: true });
    for (const name of ["index_bg.wasm", "index.js"]) await rename(join(workshop, name), join(output, name));
    await rm(workshop, { recursive: true });
  });
  // Sources that were edited during the build need another one.
  if ((await fingerprint()) === inputs) await writeFile(stamp, `${inputs} ${isQuick ? "quick" : "optimised"}`);
}

async function cargoBuild(flags: string[], pulse: Pulse, env: NodeJS.ProcessEnv = {}): Promise<string> {
  return run("cargo", ["build", ...flags, "--locked", "--message-format=json-render-diagnostics"], {
    pulse,
    log: "edge-build",
    env: await cargoEnvironment(env),
    remedy: "correct what the compiler reports above",
  });
}

async function optimise(wasm: string, pulse: Pulse): Promise<void> {
  pulse.latest = "wasm-opt";
  const optimised = `${wasm}.optimised`;
  const flags = ["-O", "--debuginfo", ...wasmFeatures.map((feature) => `--enable-${feature}`)];
  await run(join(nodeBin, "wasm-opt"), [wasm, "-o", optimised, ...flags], { log: "edge-build" });
  await rename(optimised, wasm);
}

/** Makes one file of what wasm-bindgen has written and of the JavaScript that the Rust code brings with it. */
async function bundleGlue(folder: string): Promise<void> {
  const index = join(folder, "index.js");
  // The runtime gives out compiled modules by a plain import.
  await writeFile(index, (await readFile(index, "utf8")).replaceAll("import source ", "import "));
  await bundle({
    entryPoints: [index],
    outfile: index,
    allowOverwrite: true,
    bundle: true,
    minify: true,
    format: "esm",
    target: "es2022",
    external: ["./index_bg.wasm", "cloudflare:*"],
    logLevel: "warning",
  });
  // Its helper process would live as long as this one.
  await stop();
}

/** Everything that the Worker is made from. */
async function fingerprint(): Promise<string> {
  const hash = createHash("sha256");
  const files = [
    join(root, "Cargo.toml"),
    join(root, "Cargo.lock"),
    join(root, "package-lock.json"),
    join(root, "policy", "Cargo.toml"),
  ];
  for (const script of ["edge.ts", "wasm-toolchain.ts"]) files.push(join(import.meta.dirname, script));
  for (const folder of [join(root, "src"), join(root, "policy", "src"), join(root, "scripts", "bindgen")]) {
    for (const entry of await readdir(folder, { recursive: true })) files.push(join(folder, entry));
  }
  for (const file of files.sort()) {
    if (!(await stat(file)).isFile()) continue;
    hash
      .update(`${relative(root, file)}\0`)
      .update(await readFile(file))
      .update("\0");
  }
  hash.update(process.env.WEIR_WASM_TOOLCHAIN ?? "");
  return hash.digest("hex");
}
