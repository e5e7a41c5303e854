import { spawn } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join, relative } from "node:path";
import { nodeModules, root } from "../../scripts/lib/paths.ts";
import { type Lifetime, whenOver } from "../harness/lifetime.ts";

const notCloned = new Set([".git", ".weir", ".wrangler", "build", "dist", "target"]);

export interface Clone {
  folder: string;
  /** A string in the output compiled from this clone's sources. */
  marker: string;
}

/** A folder with clones and the cache that they share. */
export function cloneFolder(lifetime: Lifetime): { cache: string; clone(name: string): Clone } {
  const folder = mkdtempSync(join(tmpdir(), "weir-clones-"));
  whenOver(lifetime, () => rm(folder, { recursive: true, force: true }));
  return { cache: join(folder, "cache"), clone: (name) => clone(join(folder, name), name) };
}

/**
 * A copy of this clone, as `git clone` and `npm ci` would create it. Its smallest crate is reduced further, so that a
 * build takes seconds.
 */
function clone(folder: string, name: string): Clone {
  const isCloned = (path: string): boolean => !notCloned.has(relative(root, path)) && basename(path) !== "node_modules";
  cpSync(root, folder, { recursive: true, filter: isCloned });
  symlinkSync(nodeModules, join(folder, "node_modules"));
  const marker = `compiled in clone ${name}`;
  const policy = join(folder, "policy");
  rmSync(join(policy, "src"), { recursive: true });
  mkdirSync(join(policy, "src"));
  writeFileSync(join(policy, "src", "lib.rs"), `pub static CLONE: &str = "${marker}";\n`);
  const manifest = `
    package = { name = "weir-policy", version.workspace = true, edition.workspace = true }
    dependencies = { serde = { workspace = true } }`;
  writeFileSync(join(policy, "Cargo.toml"), manifest);
  return { folder, marker };
}

export interface Built {
  code: number | null;
  stderr: string;
  /** The packages that cargo compiled, without those that were already compiled. */
  compiled: string[];
  /** The library of `weir-policy`. */
  library: string;
}

const buildPolicy = `
  const { cargoEnvironment } = await import(process.argv[1] + "/cargo.ts");
  const { usingCache } = await import(process.argv[1] + "/cache.ts");
  const { exitCodeOf } = await import(process.argv[1] + "/process.ts");
  const { spawn } = await import("node:child_process");
  const args = ["build", "--offline", "--package", "weir-policy", "--message-format", "json"];
  process.exitCode = await usingCache(async () =>
    exitCodeOf(spawn("cargo", args, { env: await cargoEnvironment(), stdio: "inherit" })),
  );
`;

/** Builds the smallest crate of a clone as its scripts would. */
export function build(clone: Clone, cache: string): Promise<Built> {
  const { CARGO_TARGET_DIR: _, CARGO_BUILD_BUILD_DIR: __, ...env } = process.env;
  const script = join(clone.folder, "scripts", "lib");
  const child = spawn(process.execPath, ["--input-type=module", "-e", buildPolicy, script], {
    cwd: clone.folder,
    env: { ...env, XDG_CACHE_HOME: cache },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let stdout = "";
  let stderr = "";
  child.stdout.on("data", (data) => (stdout += String(data)));
  child.stderr.on("data", (data) => (stderr += String(data)));
  return new Promise((done, failed) => {
    child.on("error", failed);
    child.on("close", (code) => done({ code, stderr, ...artifacts(stdout) }));
  });
}

/** Runs `npm run clean` in a clone, and returns its output. */
export function clean(clone: Clone, cache: string, ...args: string[]): Promise<string> {
  const { CARGO_TARGET_DIR: _, CARGO_BUILD_BUILD_DIR: __, WEIR_STATE: ___, ...env } = process.env;
  const child = spawn(process.execPath, [join(clone.folder, "scripts", "clean.ts"), ...args], {
    cwd: clone.folder,
    env: { ...env, XDG_CACHE_HOME: cache },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let output = "";
  child.stdout.on("data", (data) => (output += String(data)));
  child.stderr.on("data", (data) => (output += String(data)));
  return new Promise((done, failed) => {
    child.on("error", failed);
    child.on("close", () => done(output));
  });
}

function artifacts(stdout: string): { compiled: string[]; library: string } {
  const messages = stdout
    .split("\n")
    .filter((line) => line.startsWith("{"))
    .map(
      (line) =>
        JSON.parse(line) as { reason: string; target?: { name: string }; fresh?: boolean; filenames?: string[] },
    )
    .filter((message) => message.reason === "compiler-artifact");
  const policy = messages.find((message) => message.target?.name === "weir_policy");
  return {
    compiled: messages.filter((message) => !message.fresh).map((message) => message.target?.name ?? ""),
    library: policy?.filenames?.find((name) => name.endsWith(".rlib")) ?? "",
  };
}
