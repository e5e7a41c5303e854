import { globSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import type { Exception, Unchecked } from "./clean.ts";
import { passagesOf } from "./passages.ts";
import { type Finding, findingsIn, ruleNames } from "./rules.ts";

export interface FileFinding extends Finding {
  file: string;
}

const skipped = new Set([
  ...[".git", ".weir", "build", "dist", "node_modules", "target"],
  ...["corpus", "fixtures", "generated", "snapshots"],
]);

/** Checks all files of a folder, sorted by path. */
export function findingsBelow(root: string): FileFinding[] {
  // `**` does not match hidden folders.
  const entries = globSync(["**/*", ".github/**/*", ".ci/*"], {
    cwd: root,
    exclude: ({ name }) => skipped.has(name),
    withFileTypes: true,
  });
  const files = entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name));
  return files.sort().flatMap((path) => findingsOf(path.slice(root.length + 1), readFileSync(path, "utf8")));
}

export function findingsOf(file: string, text: string): FileFinding[] {
  const passages = passagesOf(file, text);
  if (passages.length > 0) passages.push({ kind: "name", text: basename(file), line: 1 });
  const findings = passages.flatMap(findingsIn).sort((one, other) => one.line - other.line);
  return findings.map((finding) => ({ file, ...finding }));
}

/** The failures of the check, one line each: findings in checked files, and list entries without a finding. */
export function failuresOf(findings: FileFinding[], unchecked: Unchecked[], exceptions: Exception[]): string[] {
  const unused = new Set(exceptions);
  const clean = new Set(unchecked);
  const failed = findings.filter((finding) => {
    const entry = unchecked.find(({ path }) => finding.file === path || finding.file.startsWith(`${path}/`));
    if (entry) {
      clean.delete(entry);
      return false;
    }
    const excuse = exceptions.find(
      ({ path, rule, text }) => finding.file === path && finding.rule === rule && finding.text.includes(text),
    );
    if (excuse) unused.delete(excuse);
    return !excuse;
  });
  const stale = [...unused].map(({ path, text }) => `${path}: no finding needs the exception "${text}"`);
  const rewritten = [...clean].map(({ path }) => `${path}: no findings are left; remove it from clean.ts`);
  return [...failed.map(show), ...stale, ...rewritten];
}

export function show({ file, line, rule, text }: FileFinding): string {
  const excerpt = text.length > 160 ? `${text.slice(0, 160)}…` : text;
  return `${file}:${line}: ${rule}: ${excerpt}`;
}

/** A table of findings: a row per folder, a column per rule. */
export function countsOf(findings: FileFinding[]): string {
  const rules = [...ruleNames, "all"];
  const counts = new Map<string, number[]>();
  for (const { file, rule } of findings) {
    for (const folder of [folderOf(file), "all"]) {
      const row = counts.get(folder) ?? rules.map(() => 0);
      counts.set(folder, row);
      for (const column of [rule, "all"]) row[rules.indexOf(column)] = (row[rules.indexOf(column)] ?? 0) + 1;
    }
  }
  const folders = [...counts.keys()].filter((folder) => folder !== "all").sort();
  const rows = [["folder", ...rules.map((_, index) => `${index + 1}`)]];
  for (const folder of [...folders, "all"]) rows.push([folder, ...(counts.get(folder) ?? []).map(String)]);
  const width = (column: number): number => Math.max(...rows.map((row) => row[column]?.length ?? 0));
  const lines = rows.map((row) => row.map((cell, column) => cell.padStart(width(column))).join("  "));
  const legend = rules.map((rule, index) => `${index + 1} ${rule}`).join(", ");
  return [legend, ...lines].join("\n");
}

/** Two levels of folders where that is more useful than one: `docs/how-to`, `native/src`. */
function folderOf(file: string): string {
  const parts = file.split("/");
  if (parts.length === 1) return ".";
  return parts.slice(0, Math.min(parts.length - 1, 2)).join("/");
}
