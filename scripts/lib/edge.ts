import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { readdir, readFile, stat, writeFile } from "node:fs/promises";
import { join, relative } from "node:path";
import { usingCache } from "./cache.ts";
import { cargoEnvironment, requireCargo } from "./cargo.ts";
import { edgeTools } from "./edge-tools.ts";
import { withLock } from "./lock.ts";
import { buildPage } from "./page.ts";
import { buildLock, root } from "./paths.ts";
import { run } from "./process.ts";
import { step } from "./progress.ts";
import { wasmToolchain } from "./wasm-toolchain.ts";

const output = join(root, "build");
const stamp = join(output, ".inputs");

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
  const tools = await edgeTools();
  await step("building the edge", async (pulse) =>
    run(tools.workerBuild, ["--release", ...(isQuick ? ["--no-opt"] : []), "--", "--locked"], {
      pulse,
      log: "edge-build",
      // A backtrace of worker-build would hide the compiler's output.
      env: await cargoEnvironment({ ...toolchain.env, ...tools.env, RUST_BACKTRACE: "0" }),
      remedy: "correct what the compiler reports above",
    }),
  );
  // Sources that were edited during the build need another one.
  if ((await fingerprint()) === inputs) await writeFile(stamp, `${inputs} ${isQuick ? "quick" : "optimised"}`);
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
  for (const script of ["edge.ts", "edge-tools.ts", "cargo-tools.ts", "wasm-toolchain.ts"])
    files.push(join(import.meta.dirname, script));
  for (const folder of [join(root, "src"), join(root, "policy", "src")]) {
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
