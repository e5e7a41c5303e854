import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdir, readdir, readFile, rename, rm, stat, writeFile } from "node:fs/promises";
import { join, relative } from "node:path";
import { bundle } from "./bundle.ts";
import { requireCargo, withPath } from "./cargo.ts";
import { cargoBuild, executableIn, libraryIn } from "./cargo-build.ts";
import { Failure } from "./failure.ts";
import { bindgen } from "./native.ts";
import { buildPage } from "./page.ts";
import { nodeModules, root } from "./paths.ts";
import { run } from "./process.ts";
import { type Pulse, step } from "./progress.ts";
import { requireWasmTarget, wasmTarget } from "./wasm-toolchain.ts";

const output = join(root, "build");
const stamp = join(output, ".inputs");
const wasmOpt = join(nodeModules, "binaryen", "bin", "wasm-opt");

/** The compiler's default features, and the exceptions of wasm-bindgen. The runtime may not support newer ones. */
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
 * Builds the Worker into build/, the module that only limits into build/limiter, and the page into dist/. Returns
 * immediately when nothing has changed. Tests and deployments use an optimised build. With `quickly` in the environment,
 * as for `wrangler dev`, any existing build will do, and the second module is left out.
 */
export async function buildEdge(env: NodeJS.ProcessEnv = process.env): Promise<void> {
  const isQuick = env.WEIR_EDGE_BUILD === quickly.WEIR_EDGE_BUILD;
  await buildPage();
  const inputs = await fingerprint();
  const [of, how] = existsSync(join(output, "index.js"))
    ? (await readFile(stamp, "utf8").catch(() => "")).split(" ")
    : [];
  if (of === inputs && (isQuick || how === "optimised")) return;

  await requireCargo();
  await step("building the edge", async (pulse) => {
    const workshop = join(output, `.new.${process.pid}`);
    const crates = { "": "weir-entry", ...(!isQuick && { limiter: "weir-limiter-entry" }) };
    for (const [name, crate] of Object.entries(crates)) {
      const folder = join(workshop, name);
      await compile(crate, folder, pulse);
      if (!isQuick) await optimise(join(folder, "index_bg.wasm"), pulse);
      await bundleGlue(folder);
    }
    // An interrupted build must not look complete.
    await rm(stamp, { force: true });
    for (const folder of Object.keys(crates)) {
      await mkdir(join(output, folder), { recursive: true });
      for (const name of ["index_bg.wasm", "index.js"])
        await rename(join(workshop, folder, name), join(output, folder, name));
    }
    await rm(workshop, { recursive: true });
  });
  // If sources were edited during the build, the next call builds again.
  if ((await fingerprint()) === inputs) await writeFile(stamp, `${inputs} ${isQuick ? "quick" : "optimised"}`);
}

/**
 * Builds the example of a Worker in Rust into a new folder, with the dependencies and the profile of the edge: index.js
 * and index_bg.wasm.
 */
export async function buildRustWorker(folder: string): Promise<void> {
  await requireCargo();
  await step("building the example of a Worker in Rust", (pulse) => compile("weir-example-rust-worker", folder, pulse));
  await bundleGlue(folder);
}

/** Compiles a crate of the workspace into a new folder, as a module for Cloudflare's runtime. */
async function compile(crate: string, folder: string, pulse: Pulse): Promise<void> {
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { recursive: true });
  await requireWasmTarget();
  const program = await cargoBuild(["--workspace", "--bin", bindgen], { pulse, log: "bindgen-build" });
  const compiled = await cargoBuild(["--package", crate, "--lib", "--profile", "edge", "--target", wasmTarget], {
    pulse,
    log: "edge-build",
    // With this, the macros of wasm-bindgen use the same as `worker`.
    env: { PATH: withPath(), WASM_BINDGEN_USE_JS_SYS: "1" },
  });
  const library = libraryIn(compiled, crate.replaceAll("-", "_"), ".wasm");
  await run(executableIn(program, bindgen), [library, folder]);
}

async function optimise(wasm: string, pulse: Pulse): Promise<void> {
  pulse.latest = "wasm-opt";
  const optimised = `${wasm}.optimised`;
  // Without the names of functions, which are a tenth of the module. Quick builds have them.
  // It would merge functions with one caller, rare ones and those of the start included. Each isolate compiles a function
  // as a whole when it is called first.
  const separate = "--one-caller-inline-max-function-size=0";
  const flags = ["-O", separate, ...wasmFeatures.map((feature) => `--enable-${feature}`)];
  await run(process.execPath, [wasmOpt, wasm, "-o", optimised, ...flags]);
  await rename(optimised, wasm);
}

/** Combines wasm-bindgen's output and the Rust code's own JavaScript into one file. */
async function bundleGlue(folder: string): Promise<void> {
  const index = join(folder, "index.js");
  await writeFile(index, adapt(await readFile(index, "utf8")));
  const { outputFiles } = await bundle("the edge's JavaScript", {
    entryPoints: [index],
    outfile: index,
    allowOverwrite: true,
    inject: [join(root, "src", "tasks.mjs")],
    external: ["./index_bg.wasm", "cloudflare:*"],
  });
  for (const { path, contents } of outputFiles) await writeFile(path, contents);
}

/** Changes wasm-bindgen's output to code that the runtime accepts and that is safe after a panic. */
function adapt(glue: string): string {
  // wasm-bindgen refuses an object or a closure from an earlier start. The next call after a panic starts Rust again,
  // but only after that check, so it would continue with an address in the old memory.
  const looks = /if \((?:this\.__wbg_inst !== undefined && this\.__wbg_inst|state\.instance) !== __wbg_instance_id\)/g;
  const safe = glue.replace(looks, "__wbg_call_guard(); $&");
  if (safe === glue || !safe.includes("__wbg_call_guard(); if (state.instance"))
    throw new Failure(
      "wasm-bindgen writes something else than it did",
      "compare its output with `adapt` in scripts/lib/edge.ts, or go back to the version before",
    );
  // The runtime provides compiled modules by a plain import.
  return safe.replaceAll("import source ", "import ");
}

/** All inputs of the Worker's build. */
async function fingerprint(): Promise<string> {
  const hash = createHash("sha256");
  const files = [
    join(root, "Cargo.toml"),
    join(root, "Cargo.lock"),
    join(root, "package-lock.json"),
    join(root, ".cargo", "config.toml"),
    join(root, "entry", "Cargo.toml"),
    join(root, "limiter", "Cargo.toml"),
    join(root, "policy", "Cargo.toml"),
    join(root, "scripts", "bindgen", "Cargo.toml"),
  ];
  for (const script of ["bundle.ts", "cargo-build.ts", "edge.ts", "wasm-toolchain.ts"])
    files.push(join(import.meta.dirname, script));
  for (const crate of ["", "entry", "limiter", "policy", join("scripts", "bindgen")]) {
    const folder = join(root, crate, "src");
    for (const entry of await readdir(folder, { recursive: true })) files.push(join(folder, entry));
  }
  for (const file of files.sort()) {
    if (!(await stat(file)).isFile()) continue;
    hash
      .update(`${relative(root, file)}\0`)
      .update(await readFile(file))
      .update("\0");
  }
  return hash.digest("hex");
}
