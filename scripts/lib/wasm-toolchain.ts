import { existsSync, readdirSync } from "node:fs";
import { Failure } from "./failure.ts";
import { attempt } from "./process.ts";
import { step } from "./progress.ts";

export const wasmTarget = "wasm32-unknown-unknown";

/** Adds Rust's standard library for wasm by rustup, if it is missing. */
export async function requireWasmTarget(): Promise<void> {
  if (await hasTarget()) return;
  const add = `adding Rust's ${wasmTarget} target by rustup`;
  const { output } = await step(add, (pulse) =>
    attempt("rustup", ["target", "add", wasmTarget], { pulse, timeout: 300_000, log: "rustup" }),
  );
  if (await hasTarget()) return;
  throw new Failure(
    `Rust's standard library for ${wasmTarget} is missing: ${output.trim().split("\n").at(-1)}`,
    `install Rust by rustup, then run: rustup target add ${wasmTarget}`,
  );
}

async function hasTarget(): Promise<boolean> {
  const outcome = await attempt("rustc", ["--print", "target-libdir", "--target", wasmTarget]);
  const folder = outcome.stdout.trim();
  return outcome.code === 0 && existsSync(folder) && readdirSync(folder).some((file) => /^libstd-.*\.rlib$/.test(file));
}
