import { join } from "node:path";
import { Failure } from "./failure.ts";
import { buildFolder, nodeBin } from "./paths.ts";
import { attempt } from "./process.ts";

const installRust =
  "install Rust 1.95 or newer by rustup (its home page has the one command), open a new terminal, and run this again";

/** Given to cargo as a compiler for the workspace's own crates. A copy at another path has separate builds of them. */
export const rustcWrapper = join(import.meta.dirname, "rustc.sh");

/**
 * The environment for cargo. Intermediate files go to the build folder that all clones of this user share, and final
 * artifacts stay in the clone. CARGO_TARGET_DIR, CARGO_BUILD_BUILD_DIR and RUSTC_WORKSPACE_WRAPPER take precedence.
 */
export function cargoEnvironment(extra: NodeJS.ProcessEnv = {}): NodeJS.ProcessEnv {
  const env: NodeJS.ProcessEnv = {
    ...process.env,
    CARGO_TERM_COLOR: "never",
    CARGO_TERM_PROGRESS_WHEN: "never",
    ...extra,
  };
  if (env.CARGO_TARGET_DIR || env.CARGO_BUILD_BUILD_DIR || env.RUSTC_WORKSPACE_WRAPPER) return env;
  return { ...env, CARGO_BUILD_BUILD_DIR: buildFolder, RUSTC_WORKSPACE_WRAPPER: rustcWrapper };
}

export function withPath(): string {
  return [nodeBin, process.env.PATH].join(":");
}

export interface RustVersion {
  release: string;
  host: string;
  commit: string;
}

export async function rustVersion(): Promise<RustVersion> {
  const outcome = await attempt("rustc", ["-vV"]);
  if (outcome.code !== 0) throw new Failure(`rustc cannot be run: ${lastLine(outcome.output)}`, installRust);
  const field = (name: string): string => new RegExp(`^${name}: (.*)$`, "m").exec(outcome.stdout)?.[1] ?? "unknown";
  return { release: field("release"), host: field("host"), commit: field("commit-hash") };
}

/** Fails without Rust. Rust's own tools are not set up here, because people install them in different ways. */
export async function requireCargo(): Promise<RustVersion> {
  const outcome = await attempt("cargo", ["--version"]);
  if (outcome.code !== 0) throw new Failure(`cargo cannot be run: ${lastLine(outcome.output)}`, installRust);
  const rust = await rustVersion();
  const [major = 0, minor = 0] = rust.release.split(".").map(Number);
  if (major === 1 && minor < 95) {
    throw new Failure(
      `Rust ${rust.release} is too old: the queue's client needs 1.95`,
      "update it: rustup update stable",
    );
  }
  return rust;
}

function lastLine(text: string): string {
  return text.trim().split("\n").at(-1) ?? "";
}
