import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { rustVersion } from "./lib/cargo.ts";
import { Failure } from "./lib/failure.ts";
import { runMain } from "./lib/lifecycle.ts";
import { root, state } from "./lib/paths.ts";
import { run } from "./lib/process.ts";
import { say } from "./lib/progress.ts";
import { packBinary, targets } from "./lib/release/binary.ts";
import { packEdge } from "./lib/release/edge.ts";
import { buildImage } from "./lib/release/image.ts";
import { notesOf } from "./lib/release/notes.ts";
import { writeBills } from "./lib/release/sbom.ts";
import { writeSums } from "./lib/release/sums.ts";
import { workspaceVersion } from "./lib/release/version.ts";

const output = join(state, "release");

const others: Record<string, (version: string) => Promise<void>> = {
  edge: (version) => packEdge(version, output),
  packages: buildPackages,
  sbom: (version) => writeBills(version, output),
  image: (version) => buildImage(version, output),
  sums: () => writeSums(output),
  notes: writeNotes,
};

/**
 * Builds the files of a release in .weir/release: the parts on the command line, or all parts that this machine can
 * build.
 */
await runMain(async () => {
  const [version = "", ...named] = process.argv.slice(2);
  const expected = `v${await workspaceVersion()}`;
  if (version !== expected)
    throw new Failure(
      `"${version}" is not the version of Cargo.toml, ${expected}`,
      `pass that version (npm run release -- ${expected}), or correct Cargo.toml`,
    );
  const { host } = await rustVersion();
  const binary = (target: string) => [target, () => packBinary(version, target, output)] as const;
  const parts = { ...Object.fromEntries([...targets, host].map(binary)), ...others };
  const unknown = named.find((name) => !(name in parts));
  if (unknown)
    throw new Failure(
      `a release has no part "${unknown}"`,
      `pass one or more of ${Object.keys(parts).join(", ")}, or none for all`,
    );
  const wanted = named.length > 0 ? named : [host, "edge", "packages", "sbom", "sums", "notes"];
  if (named.length === 0) await rm(output, { recursive: true, force: true });
  await mkdir(output, { recursive: true });
  for (const [name, make] of Object.entries(parts)) if (wanted.includes(name)) await make(version);
  say(`the release is in ${output}`);
});

/** The packages for Python, TypeScript and Workers. Go's is the tag of its folder. */
async function buildPackages(): Promise<void> {
  await run(process.execPath, [join(root, "scripts", "packages.ts"), "--out", output]);
}

/** The release notes, which are not among the files of the release. */
async function writeNotes(version: string): Promise<void> {
  const { GITHUB_SERVER_URL, GITHUB_REPOSITORY } = process.env;
  const files = GITHUB_REPOSITORY && `${GITHUB_SERVER_URL}/${GITHUB_REPOSITORY}/blob/${version}`;
  const notes = notesOf(version, await readFile(join(root, "CHANGELOG.md"), "utf8"), files);
  await writeFile(join(state, "release-notes.md"), notes);
}
