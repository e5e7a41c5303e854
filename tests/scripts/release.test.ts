import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { root } from "../../scripts/lib/paths.ts";
import { notesOf } from "../../scripts/lib/release/notes.ts";
import { writeSums } from "../../scripts/lib/release/sums.ts";

const changelog = `# Changelog

[Unreleased things](docs/later.md) come first.

## [Unreleased]

- Later.

## [1.2.0-rc.1] - 2026-02-01

- Almost.

## [1.2.0] - 2026-02-02

Run \`weir migrate\` first.

### Added

- A console. [How to use it](docs/how-to/console.md), [why](https://example.org), [below](#fixed).

### Fixed

- A fault.

## [1.1.0] - 2026-01-01

- Earlier.
`;

it("release notes are the changelog's chapter on that version", () => {
  assert.equal(
    notesOf("v1.2.0", changelog),
    `Run \`weir migrate\` first.

### Added

- A console. [How to use it](docs/how-to/console.md), [why](https://example.org), [below](#fixed).

### Fixed

- A fault.
`,
  );
  assert.equal(notesOf("v1.2.0-rc.1", changelog), "- Almost.\n");
  assert.equal(notesOf("v1.1.0", changelog), "- Earlier.\n");
});

it("links of the notes to files lead into the repository", () => {
  assert.match(
    notesOf("v1.2.0", changelog, "https://host/weir/blob/v1.2.0"),
    /\(https:\/\/host\/weir\/blob\/v1\.2\.0\/docs\/how-to\/console\.md\), \[why\]\(https:\/\/example\.org\), \[below\]\(#fixed\)/,
  );
});

it("a version without a section in the changelog is not released", () => {
  for (const version of ["v1.3.0", "v1.2", "v1"])
    assert.throws(() => notesOf(version, changelog), /has no section for v1/, version);
  assert.throws(
    () => notesOf("v2.0.0", "## [2.0.0] - 2026-03-01\n\n## [1.0.0]\n\n- Old.\n"),
    /has no section for v2\.0\.0/,
  );
});

it("sha256sum confirms the checksums of all other files", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "weir-sums-"));
  t.after(() => rmSync(folder, { recursive: true }));
  writeFileSync(join(folder, "b"), "two");
  writeFileSync(join(folder, "a"), "one");
  await writeSums(folder);
  await writeSums(folder);
  const sums = readFileSync(join(folder, "SHA256SUMS"), "utf8");
  assert.equal(sums, execFileSync("sha256sum", ["a", "b"], { cwd: folder, encoding: "utf8" }));
});

it("the program has no test feature, despite resolver 1", () => {
  const args = ["tree", "--locked", "--package", "weir-native", "--edges", "normal", "--prefix", "none"];
  args.push("--format", "{p} has {f}");
  const features = execFileSync("cargo", args, { cwd: root, encoding: "utf8", maxBuffer: 64 * 1024 * 1024 });
  assert.match(features, /^tokio v\S+ has .*\brt-multi-thread\b/m);
  assert.doesNotMatch(features, /\btest-util\b/);
});
