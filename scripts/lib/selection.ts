import { globSync, readFileSync } from "node:fs";
import { basename, dirname, join, relative, sep } from "node:path";
import { root } from "./paths.ts";
import { run } from "./process.ts";

/** Tests in TypeScript, by their folder under tests/. The slowest come first, so that none of them runs last. */
export const folders = ["chaos", "browser", "edge", "whole", "scripts"] as const;

/** Kinds of tests for the command line. `unit` are those of the Rust crates. */
export const kinds = ["unit", ...folders];

/** One run of `cargo test`. */
export interface CargoTests {
  args: string[];
}

/** One run of Node's test runner. */
export interface NodeTests {
  files: string[];
  /** Only the tests with this in their names. */
  named?: string;
}

export interface Selection {
  cargo: CargoTests[];
  node: NodeTests[];
}

const wholeWorkspace: CargoTests = { args: ["--workspace"] };

/** The tests that these kinds and names select; all tests without any. `unmatched` lists names that select nothing. */
export async function select(wanted: string[]): Promise<{ selection: Selection; unmatched: string[] }> {
  if (wanted.length === 0) return { selection: ofKinds(kinds), unmatched: [] };
  const selection = ofKinds(wanted.filter((word) => kinds.includes(word)));
  const unmatched: string[] = [];
  for (const name of wanted.filter((word) => !kinds.includes(word))) {
    const cargo = await cargoTestsNamed(name);
    const node = nodeTestsNamed(name);
    if (cargo.length + node.length === 0) unmatched.push(name);
    selection.cargo.push(...cargo);
    selection.node.push(...node);
  }
  selection.cargo = inOneRun(selection.cargo);
  const files = selection.node.filter(({ named }) => named === undefined).flatMap((tests) => tests.files);
  const byTitle = selection.node.filter(({ named }) => named !== undefined);
  selection.node = [...(files.length > 0 ? [{ files: [...new Set(files)] }] : []), ...byTitle];
  return { selection, unmatched };
}

function ofKinds(wanted: string[]): Selection {
  const files = folders.filter((folder) => wanted.includes(folder)).flatMap(filesIn);
  return { cargo: wanted.includes("unit") ? [wholeWorkspace] : [], node: files.length > 0 ? [{ files }] : [] };
}

/** Combines runs of the same program, with the filters of each. */
function inOneRun(runs: CargoTests[]): CargoTests[] {
  const programs = new Map<string, { program: string[]; filters: Set<string>; whole: boolean }>();
  for (const { args } of runs) {
    const end = args.includes("--") ? args.indexOf("--") : args.length;
    const [program, filters] = [args.slice(0, end), args.slice(end + 1)];
    const one = programs.get(program.join(" ")) ?? { program, filters: new Set(), whole: false };
    for (const filter of filters) one.filters.add(filter);
    one.whole ||= filters.length === 0;
    programs.set(program.join(" "), one);
  }
  return [...programs.values()].map(({ program, filters, whole }) => ({
    args: whole ? program : [...program, "--", ...filters],
  }));
}

function filesIn(folder: string): string[] {
  return globSync(join(root, "tests", folder, "**", "*.test.ts")).sort();
}

/** The folder of a test file under tests/. */
export function folderOf(file: string): string | undefined {
  return relative(join(root, "tests"), file).split(sep)[0];
}

/** The selected tests as text. */
export function describeSelection({ cargo, node }: Selection): string[] {
  return [
    ...cargo.map(({ args }) => `cargo test ${args.join(" ")}`),
    ...node.map(({ files, named }) => {
      const names = files.map((file) => relative(root, file)).join(" ");
      return named ? `${names}, tests with "${named}" in their names` : names;
    }),
  ];
}

function nodeTestsNamed(name: string): NodeTests[] {
  const all = folders.flatMap(filesIn);
  const files = all.filter((file) => contains(basename(file, ".test.ts"), name) || isPath(file, name));
  const titled = all.filter((file) => !files.includes(file) && titlesIn(file).some((title) => contains(title, name)));
  return [...(files.length > 0 ? [{ files }] : []), ...(titled.length > 0 ? [{ files: titled, named: name }] : [])];
}

function titlesIn(file: string): string[] {
  const calls = readFileSync(file, "utf8").matchAll(
    /\b(?:it|test|describe)(?:\.\w+)?\(\s*(["'`])((?:\\.|(?!\1).)*)\1/gs,
  );
  return [...calls].map((match) => match[2] ?? "");
}

interface Target {
  kind: string[];
  name: string;
  src_path: string;
}

interface Package {
  name: string;
  targets: Target[];
}

async function cargoTestsNamed(name: string): Promise<CargoTests[]> {
  packages ??= workspacePackages();
  return (await packages).flatMap((each) => [...integrationTests(each, name), ...crateTests(each, name)]);
}

let packages: Promise<Package[]> | undefined;

async function workspacePackages(): Promise<Package[]> {
  const metadata = await run("cargo", ["metadata", "--no-deps", "--locked", "--format-version", "1"]);
  return (JSON.parse(metadata) as { packages: Package[] }).packages;
}

function integrationTests({ targets }: Package, name: string): CargoTests[] {
  return targets
    .filter(({ kind }) => kind.includes("test"))
    .flatMap(({ name: target, src_path }) => {
      // With the whole workspace's features, so that builds of `npm test` are reused.
      const args = ["--workspace", "--test", target];
      if (contains(target, name) || isPath(src_path, name)) return [{ args }];
      const filters = filtersIn(dirname(src_path), name);
      return filters.length > 0 ? [{ args: [...args, "--", ...filters] }] : [];
    });
}

/** Unit tests in a crate's library and its programs. */
function crateTests({ name: crate, targets }: Package, name: string): CargoTests[] {
  const sources = targets.filter(({ kind }) => kind.some((each) => /lib|bin/.test(each)));
  const folders = new Set(sources.map(({ src_path }) => dirname(src_path)));
  const filters = new Set([...folders].flatMap((folder) => filtersIn(folder, name)));
  if (filters.size === 0) return [];
  const flags = sources.map(({ kind }) => (kind.includes("bin") ? "--bins" : "--lib"));
  return [{ args: ["--package", crate, ...new Set(flags), "--", ...filters] }];
}

/** The filters for tests and modules with this name, in the program with its modules in a folder. */
function filtersIn(folder: string, name: string): string[] {
  return globSync(join(folder, "**", "*.rs")).flatMap((file) => {
    const tests = rustTestsIn(file);
    const module = moduleOf(relative(folder, file));
    const named = contains(module.split("::").at(-1) ?? "", name) || isPath(file, name);
    if (tests.length > 0 && named) return [module && `${module}::`];
    return tests.filter((test) => contains(test, name));
  });
}

/** `work::pool` for `work/pool.rs`, the empty string for a crate's root. */
function moduleOf(path: string): string {
  const parts = path.replace(/\.rs$/, "").split(sep);
  if (["mod", "lib", "main"].includes(parts.at(-1) ?? "")) parts.pop();
  return parts.join("::");
}

function rustTestsIn(file: string): string[] {
  const test = /#\[(?:\w+::)*test(?:\([^\]]*\))?\]\s*(?:#\[[^\]]*\]\s*|\/\/[^\n]*\n\s*)*(?:async\s+)?fn\s+(\w+)/g;
  return [...readFileSync(file, "utf8").matchAll(test)].map((match) => match[1] ?? "");
}

/** Whether a name is the path of this file, or the end of the path. */
function isPath(file: string, name: string): boolean {
  return /[./]/.test(name) && `/${relative(root, file)}`.endsWith(`/${name.replace(/^\.?\//, "")}`);
}

/** Compares without case, and treats spaces, hyphens and the underscores of Rust's names alike. */
function contains(text: string, part: string): boolean {
  return patternOf(part)?.test(text) ?? false;
}

/** The pattern of titles that contain a name; undefined for an empty name. */
export function patternOf(name: string): RegExp | undefined {
  const words = (name.split("::").at(-1) ?? "").split(/[\s_-]+/);
  if (words.every((word) => word === "")) return undefined;
  return new RegExp(words.map((word) => RegExp.escape(word)).join("[\\s_-]+"), "i");
}
