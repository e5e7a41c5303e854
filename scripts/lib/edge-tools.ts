import { join } from "node:path";
import { type CargoTool, cargoInstalled } from "./cargo-tools.ts";
import { Failure } from "./failure.ts";
import { nodeBin } from "./paths.ts";
import { attempt } from "./process.ts";

// The programs that turn compiled wasm into a Worker.

/** Its version must be that of the library in Cargo.lock, exactly. */
const wasmBindgen: CargoTool = { crate: "wasm-bindgen-cli", version: "0.2.129", bin: "wasm-bindgen" };
const workerBuild: CargoTool = {
  crate: "worker-build",
  version: "0.8.7",
  bin: "worker-build",
  check: requireOpenSsl,
};

export interface EdgeTools {
  workerBuild: string;
  env: NodeJS.ProcessEnv;
  /** Changes with any of them. */
  identity: string;
}

export async function edgeTools(): Promise<EdgeTools> {
  const bindgen = await cargoInstalled(wasmBindgen);
  const build = await cargoInstalled(workerBuild);
  return {
    workerBuild: build,
    // Otherwise worker-build downloads these three, which fails in a closed network.
    env: { WASM_BINDGEN_BIN: bindgen, WASM_OPT_BIN: join(nodeBin, "wasm-opt"), ESBUILD_BIN: join(nodeBin, "esbuild") },
    identity: `${wasmBindgen.version} ${workerBuild.version}`,
  };
}

/** Worker-build links the system's OpenSSL. Without this check, a missing header is a page of compiler output. */
async function requireOpenSsl(): Promise<void> {
  if (process.platform !== "linux") return;
  if ((await attempt("pkg-config", ["--exists", "openssl"])).code === 0) return;
  throw new Failure(
    "building worker-build needs pkg-config and OpenSSL's headers",
    "install them (Debian, Ubuntu: apt-get install pkg-config libssl-dev) and run this again",
  );
}
