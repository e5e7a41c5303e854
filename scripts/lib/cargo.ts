import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Failure } from "./failure.ts";
import { cache, nodeBin, root } from "./places.ts";
import { attempt } from "./process.ts";

const installRust = "install Rust 1.95 or newer by rustup (its home page has the one command), open a new terminal, and run this again";

/**
 * The environment for cargo. What it builds on the way is shared by all clones of this user (so a fresh clone
 * finds its dependencies built); what it makes in the end stays in the clone, so clones never run each other's binary.
 */
export function cargoEnvironment(extra: NodeJS.ProcessEnv = {}): NodeJS.ProcessEnv {
  const env: NodeJS.ProcessEnv = { ...process.env, CARGO_TERM_COLOR: "never", CARGO_TERM_PROGRESS_WHEN: "never", ...extra };
  if (!env.CARGO_TARGET_DIR && !env.CARGO_BUILD_BUILD_DIR) {
    const shared = join(cache, "build");
    takeOver(shared);
    env.CARGO_BUILD_BUILD_DIR = shared;
  }
  return env;
}

/**
 * Cargo takes what another clone built of the workspace's own crates for this clone's, when its files are older; but
 * that has the other clone's sources and paths in it. So whoever comes after another clone has cargo forget those
 * crates, and keeps all the others. What was built of them goes too: nobody would find it again, and it is large.
 */
function takeOver(shared: string): void {
  const owner = join(shared, "clone");
  if (existsSync(owner) && readFileSync(owner, "utf8") === root) return;
  mkdirSync(shared, { recursive: true });
  for (const prints of readdirSync(shared, { recursive: true, withFileTypes: true })) {
    if (!prints.isDirectory() || prints.name !== ".fingerprint") continue;
    const profile = prints.parentPath;
    const kept = new Set<string | undefined>();
    for (const name of readdirSync(join(profile, ".fingerprint"))) {
      if (name.startsWith("weir-")) rmSync(join(profile, ".fingerprint", name), { recursive: true, force: true });
      else kept.add(hashIn(name));
    }
    // A file is named after its crate or test, and has the hash of its fingerprint.
    for (const name of namesIn(join(profile, "deps"))) {
      if (!kept.has(hashIn(name))) rmSync(join(profile, "deps", name), { force: true });
    }
    // Only the workspace's own crates are built incrementally.
    rmSync(join(profile, "incremental"), { recursive: true, force: true });
  }
  writeFileSync(owner, root);
}

/** `3f2c…` of `weir-native-3f2c…` and of `libweir-3f2c….rlib`. */
function hashIn(name: string): string | undefined {
  return /-([0-9a-f]{16})(\.|$)/.exec(name)?.[1];
}

function namesIn(folder: string): string[] {
  return existsSync(folder) ? readdirSync(folder) : [];
}

export function withPath(...folders: string[]): string {
  return [...folders, nodeBin, process.env.PATH].join(":");
}

export interface RustVersion {
  release: string;
  host: string;
  commit: string;
}

export async function rustVersion(rustc = "rustc"): Promise<RustVersion> {
  const outcome = await attempt(rustc, ["-vV"]);
  if (outcome.code !== 0) throw new Failure(`rustc cannot be run: ${lastLine(outcome.output)}`, installRust);
  const field = (name: string): string => new RegExp(`^${name}: (.*)$`, "m").exec(outcome.stdout)?.[1] ?? "unknown";
  return { release: field("release"), host: field("host"), commit: field("commit-hash") };
}

/** Rust's own tools are the one thing that is not set up here: a person's way of installing them is theirs. */
export async function requireCargo(): Promise<RustVersion> {
  const outcome = await attempt("cargo", ["--version"]);
  if (outcome.code !== 0) throw new Failure(`cargo cannot be run: ${lastLine(outcome.output)}`, installRust);
  const rust = await rustVersion();
  const [major = 0, minor = 0] = rust.release.split(".").map(Number);
  if (major === 1 && minor < 95) {
    throw new Failure(`Rust ${rust.release} is too old: the queue's client needs 1.95`, "update it: rustup update stable");
  }
  return rust;
}

function lastLine(text: string): string {
  return text.trim().split("\n").at(-1) ?? "";
}
