import { globSync, readFileSync } from "node:fs";
import { basename, join, relative, sep } from "node:path";
import { root } from "./paths.ts";

/** Tests in TypeScript, by their folder under tests/. The slowest come first, so that none of them runs last. */
const folders = ["chaos", "browser", "edge", "whole", "scripts"];

/** Kinds of tests for the command line. `unit` are those of the Rust crates. */
export const kinds = ["unit", ...folders];

export interface Selection {
  /** The arguments of each run of `cargo test`. */
  cargo: string[][];
  /** Test files for Node's runner, without or with a pattern of titles. */
  node: { files: string[]; named?: RegExp }[];
}

/** The crates, with the arguments that build their tests. */
const crates: [folder: string, args: string[]][] = [
  ["src", ["--package", "weir-edge", "--lib"]],
  ["policy/src", ["--package", "weir-policy", "--lib"]],
  ["ledger/src", ["--package", "weir-ledger", "--lib"]],
  ["native/src", ["--package", "weir-native", "--lib"]],
  ["bench/src", ["--package", "weir-bench", "--bins"]],
  ["examples/specvital/src", ["--package", "weir-example-specvital", "--bins"]],
  // With the whole workspace's features, so that builds of `npm test` are reused.
  ["native/tests/suite", ["--workspace", "--test", "suite"]],
];

/** The tests that these kinds and names select; all tests without any. `unmatched` lists names that select nothing. */
export function select(wanted: string[]): { selection: Selection; unmatched: string[] } {
  const chosen = wanted.length === 0 ? kinds : wanted.filter((word) => kinds.includes(word));
  const files = new Set(folders.filter((folder) => chosen.includes(folder)).flatMap(nodeFiles));
  const filters = new Map<string[], Set<string>>();
  const titled: Selection["node"] = [];
  const unmatched: string[] = [];
  for (const name of wanted.filter((word) => !kinds.includes(word))) {
    const named = patternOf(name);
    const isNamed = (text: string): boolean => named?.test(text) ?? false;
    let found = false;
    for (const [folder, args] of crates) {
      for (const filter of rustFilters(join(root, folder), name, isNamed)) {
        filters.set(args, (filters.get(args) ?? new Set()).add(filter));
        found = true;
      }
    }
    const all = folders.flatMap(nodeFiles);
    const whole = all.filter((file) => isNamed(basename(file, ".test.ts")) || isPath(file, name));
    const parts = all.filter((file) => !whole.includes(file) && titlesIn(file).some(isNamed));
    for (const file of whole) files.add(file);
    if (named && parts.length > 0) titled.push({ files: parts, named });
    if (!found && whole.length + parts.length === 0) unmatched.push(name);
  }
  const cargo = chosen.includes("unit")
    ? [["--workspace"]]
    : [...filters].map(([args, words]) => (words.has("") ? args : [...args, "--", ...words]));
  return { selection: { cargo, node: [...(files.size > 0 ? [{ files: [...files] }] : []), ...titled] }, unmatched };
}

function nodeFiles(folder: string): string[] {
  return globSync(join(root, "tests", folder, "**", "*.test.ts")).sort();
}

/** The folder of a test file under tests/. */
export function folderOf(file: string): string | undefined {
  return relative(join(root, "tests"), file).split(sep)[0];
}

/** The selected tests as text. */
export function describeSelection({ cargo, node }: Selection): string[] {
  return [
    ...cargo.map((args) => `cargo test ${args.join(" ")}`),
    ...node.map(({ files, named }) => {
      const names = files.map((file) => relative(root, file)).join(" ");
      return named ? `${names}, tests with ${named} in their names` : names;
    }),
  ];
}

function titlesIn(file: string): string[] {
  const calls = readFileSync(file, "utf8").matchAll(
    /\b(?:it|test|describe)(?:\.\w+)?\(\s*(["'`])((?:\\.|(?!\1).)*)\1/gs,
  );
  return [...calls].map((match) => match[2] ?? "");
}

/** The filters for tests and modules with this name below a folder: `work::pool::` for `work/pool.rs`. */
function rustFilters(folder: string, name: string, isNamed: (text: string) => boolean): string[] {
  return globSync(join(folder, "**", "*.rs")).flatMap((file) => {
    const tests = [...readFileSync(file, "utf8").matchAll(/#\[(?:tokio::)?test\b[^\]]*\]\s[^{]*?\bfn (\w+)/g)];
    const path = relative(folder, file)
      .replace(/(^|\/)(mod|lib|main)?\.rs$/, "")
      .replace(/\.rs$/, "");
    if (tests.length > 0 && (isNamed(basename(path)) || isPath(file, name)))
      return [path && `${path.split(sep).join("::")}::`];
    return tests.map(([, test = ""]) => test).filter(isNamed);
  });
}

/** Whether a name is the path of this file, or the end of the path. */
function isPath(file: string, name: string): boolean {
  return /[./]/.test(name) && `/${relative(root, file)}`.endsWith(`/${name.replace(/^\.?\//, "")}`);
}

/** The pattern of a name in any spelling: without case, and with spaces, hyphens or underscores. */
function patternOf(name: string): RegExp | undefined {
  const words = (name.split("::").at(-1) ?? "").split(/[\s_-]+/);
  if (words.every((word) => word === "")) return undefined;
  return new RegExp(words.map((word) => RegExp.escape(word)).join("[\\s_-]+"), "i");
}
