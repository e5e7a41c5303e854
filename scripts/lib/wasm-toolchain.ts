import { existsSync, readdirSync } from "node:fs";
import { withPath } from "./cargo.ts";
import { debianRust, debianRustIsCached, hasDebianRust } from "./debian-rust.ts";
import { attempt } from "./process.ts";
import { say, step } from "./progress.ts";

export const wasmTarget = "wasm32-unknown-unknown";

/** The environment in which `cargo` and `rustc` build for wasm. */
export interface WasmToolchain {
  description: string;
  env: NodeJS.ProcessEnv;
}

/**
 * Rust's standard library for wasm: rustup's if it is installed or can be, otherwise from Debian's packages.
 * WEIR_WASM_TOOLCHAIN=rustup|debian allows only that one.
 */
export async function wasmToolchain(): Promise<WasmToolchain> {
  const wanted = process.env.WEIR_WASM_TOOLCHAIN;
  if (wanted !== "debian") {
    if (await hasTarget()) return plain();
    if (debianRustIsCached() && wanted !== "rustup") return debian();
    if (await addTarget()) return plain();
  }
  return debian();
}

const plain = (): WasmToolchain => ({ description: "rustup", env: { PATH: withPath() } });

async function debian(): Promise<WasmToolchain> {
  const folder = await debianRust();
  return { description: "debian", env: { PATH: withPath(folder) } };
}

async function hasTarget(): Promise<boolean> {
  const outcome = await attempt("rustc", ["--print", "target-libdir", "--target", wasmTarget]);
  const folder = outcome.stdout.trim();
  return outcome.code === 0 && existsSync(folder) && readdirSync(folder).some((file) => /^libstd-.*\.rlib$/.test(file));
}

async function addTarget(): Promise<boolean> {
  if ((await attempt("rustup", ["--version"])).code !== 0) return false;
  // Offline, the request may hang, so the timeout is short if there is a fallback.
  const timeout = (await hasDebianRust()) ? 45_000 : 300_000;
  return step(`adding Rust's ${wasmTarget} target by rustup`, async (pulse) => {
    const outcome = await attempt("rustup", ["target", "add", wasmTarget], { pulse, timeout, log: "rustup" });
    if (outcome.code === 0 && (await hasTarget())) return true;
    const why = outcome.timedOut ? `no answer in ${timeout / 1000} s` : outcome.output.trim().split("\n").at(-1);
    say(`  rustup failed: ${why}`);
    return false;
  });
}
