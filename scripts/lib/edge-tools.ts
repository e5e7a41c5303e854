import { join } from "node:path";
import { cached, makeCached } from "./cache.ts";
import { cargoEnvironment } from "./cargo.ts";
import { nodeBin } from "./paths.ts";
import { attempt, run } from "./process.ts";
import { step } from "./progress.ts";
import { Failure } from "./failure.ts";

/** The crates whose programs turn compiled wasm into a Worker. The first must equal the library's version in Cargo.lock exactly. */
const wasmBindgen = { crate: "wasm-bindgen-cli", version: "0.2.129", bin: "wasm-bindgen" };
const workerBuild = { crate: "worker-build", version: "0.8.7", bin: "worker-build" };

export interface EdgeTools {
  workerBuild: string;
  env: NodeJS.ProcessEnv;
  /** Changes when any of them does. */
  identity: string;
}

export async function edgeTools(): Promise<EdgeTools> {
  const bindgen = await cargoInstalled(wasmBindgen);
  const build = await cargoInstalled(workerBuild);
  return {
    workerBuild: build,
    // Otherwise worker-build would download these three by itself, from places that a closed network does not reach.
    env: { WASM_BINDGEN_BIN: bindgen, WASM_OPT_BIN: join(nodeBin, "wasm-opt"), ESBUILD_BIN: join(nodeBin, "esbuild") },
    identity: `${wasmBindgen.version} ${workerBuild.version}`,
  };
}

async function cargoInstalled(tool: { crate: string; version: string; bin: string }): Promise<string> {
  const name = `${tool.crate}-${tool.version}`;
  const folder =
    cached(name) ??
    (await makeCached(name, (workshop) =>
      step(`building ${name} (about a minute)`, async (pulse) => {
        await requireOpenSsl(tool.crate);
        const target = join(workshop, "target");
        // A debug build takes a third of the time, and the tool runs for a second at a time.
        await run("cargo", ["install", "--locked", "--debug", "--root", workshop, "--bin", tool.bin, `${tool.crate}@${tool.version}`], {
          pulse,
          log: name,
          env: await cargoEnvironment({ CARGO_TARGET_DIR: target, CARGO_BUILD_BUILD_DIR: target, CARGO_PROFILE_DEV_DEBUG: "0" }),
          remedy: "check the network (cargo must reach its registry) and run the same command again",
        });
        await run("rm", ["-rf", target]);
      }),
    ));
  return join(folder, "bin", tool.bin);
}

/** Worker-build links the system's OpenSSL; a missing header is easier to mend when it is called by its name. */
async function requireOpenSsl(crate: string): Promise<void> {
  if (crate !== workerBuild.crate || process.platform !== "linux") return;
  if ((await attempt("pkg-config", ["--exists", "openssl"])).code === 0) return;
  throw new Failure("building worker-build needs pkg-config and OpenSSL's headers", "install them (Debian, Ubuntu: apt-get install pkg-config libssl-dev) and run this again");
}
