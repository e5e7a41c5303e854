import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join, relative } from "node:path";
import { after, it } from "node:test";
import { nodeModules, root } from "../../scripts/lib/paths.ts";

const folder = mkdtempSync(join(tmpdir(), "weir-clones-"));
after(() => rmSync(folder, { recursive: true, force: true }));

/** A copy of this clone. Its smallest crate is reduced to a string, so that a build takes seconds. */
function clone(name: string, text = name): string {
  const skipped = new Set([".git", ".weir", ".wrangler", "build", "dist", "target"]);
  const clone = join(folder, name);
  rmSync(clone, { recursive: true, force: true });
  const filter = (path: string): boolean => !skipped.has(relative(root, path)) && basename(path) !== "node_modules";
  cpSync(root, clone, { recursive: true, filter });
  symlinkSync(nodeModules, join(clone, "node_modules"));
  const policy = join(clone, "policy");
  rmSync(join(policy, "src"), { recursive: true });
  mkdirSync(join(policy, "src"));
  writeFileSync(join(policy, "src", "lib.rs"), `pub static CLONE: &str = "${text}";\n`);
  const fields = ["version", "edition"].map((field) => `${field}.workspace = true`).join("\n");
  const manifest = `[package]\nname = "weir-policy"\n${fields}\n[dependencies]\nserde = { workspace = true }\n`;
  writeFileSync(join(policy, "Cargo.toml"), manifest);
  return clone;
}

/** Builds the smallest crate as the scripts do. Returns its library's content and the names of the compiled crates. */
function build(clone: string): { library: string; compiled: string[] } {
  const { CARGO_TARGET_DIR: _, CARGO_BUILD_BUILD_DIR: __, RUSTC_WORKSPACE_WRAPPER: ___, ...env } = process.env;
  const script = "console.log(JSON.stringify((await import(process.argv[1])).cargoEnvironment()))";
  const module = join(clone, "scripts", "lib", "cargo.ts");
  const own = run(process.execPath, ["--input-type=module", "-e", script, module], {
    ...env,
    XDG_CACHE_HOME: join(folder, "cache"),
  });
  const args = ["build", "--offline", "--package", "weir-policy", "--message-format", "json"];
  const artifacts = run("cargo", args, JSON.parse(own), clone)
    .split("\n")
    .filter((line) => line.includes('"compiler-artifact"'))
    .map((line) => JSON.parse(line) as { target: { name: string }; fresh: boolean; filenames: string[] });
  const library = artifacts.find(({ target }) => target.name === "weir_policy")?.filenames[0] ?? "";
  return {
    library: readFileSync(library, "latin1"),
    compiled: artifacts.filter(({ fresh }) => !fresh).map(({ target }) => target.name),
  };
}

function run(file: string, args: string[], env: NodeJS.ProcessEnv, cwd = folder): string {
  const { status, stdout, stderr } = spawnSync(file, args, { cwd, env, encoding: "utf8" });
  assert.equal(status, 0, stderr);
  return stdout;
}

it("clones share built dependencies, and build their own sources", () => {
  const [first, second] = [clone("first"), clone("second")];
  assert.ok(build(first).compiled.length > 1);
  // The sources of the second clone are older than the first one's build.
  const built = build(second);
  assert.deepEqual(built.compiled, ["weir_policy"]);
  assert.ok(built.library.includes("second"));
  const again = build(first);
  assert.deepEqual(again.compiled, []);
  assert.ok(again.library.includes("first"));
});

it("a clone at the path of a deleted one builds its own sources", () => {
  const built = build(clone("first", "third"));
  assert.deepEqual(built.compiled, ["weir_policy"]);
  assert.ok(built.library.includes("third"));
});
