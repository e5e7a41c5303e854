import { createHash } from "node:crypto";
import { existsSync, readFileSync, statSync } from "node:fs";
import { constants, copyFile, link, mkdir, readdir, rename, rm, stat, utimes, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { unusedFor } from "./cache.ts";
import { withLock } from "./lock.ts";
import { cache, root } from "./paths.ts";
import { run } from "./process.ts";
import { say } from "./progress.ts";

const folders = join(cache, "builds");

/** Written into a build folder when it is complete. Its time is that of the folder's last use. */
const ownerFile = "clone.json";

interface Owner {
  clone: string;
  inode: number;
}

let known: Promise<string> | undefined;

/**
 * The folder in which cargo builds for this clone. Each clone has a separate one in the user's cache, so that clones
 * cannot break each other, even at the same time. A new one starts with the dependencies of the most recently used
 * other one, so a fresh clone builds only the workspace's own crates.
 */
export function buildFolder(): Promise<string> {
  known ??= withLock(join(folders, "lock"), "setting up a build folder", async () => {
    const owner = own();
    const name = nameOf(owner);
    const folder = join(folders, name);
    await removeUnused(name);
    if (existsSync(join(folder, ownerFile))) {
      await utimes(join(folder, ownerFile), new Date(), new Date());
      return folder;
    }
    const workshop = join(folders, `.${name}`);
    const donor = (await byLastUse())[0];
    try {
      if (donor) await seed(donor, workshop);
    } catch (error) {
      // Slow, but always correct.
      say(`building the dependencies again: ${error instanceof Error ? error.message : error}`);
      await rm(workshop, { recursive: true, force: true });
    }
    await mkdir(workshop, { recursive: true });
    await writeFile(join(workshop, ownerFile), JSON.stringify(owner));
    await rename(workshop, folder);
    return folder;
  });
  return known;
}

/** This clone. The inode distinguishes it from a deleted one at the same path, with files that may be newer. */
function own(): Owner {
  return { clone: root, inode: statSync(root).ino };
}

function nameOf(owner: Owner): string {
  return createHash("sha256").update(JSON.stringify(owner)).digest("hex").slice(0, 12);
}

/** Removes this clone's build folder and those of all deleted clones; returns the removed ones. */
export function removeBuildFolder(): Promise<string[]> {
  return withLock(join(folders, "lock"), "setting up a build folder", async () => {
    const mine = join(folders, nameOf(own()));
    const gone = (await byLastUse()).filter((folder) => folder === mine || !ownerLives(folder));
    for (const folder of gone) {
      // Renamed first: an interrupted removal must not leave a folder that looks complete.
      await rename(folder, `${folder}.removed`);
      await rm(`${folder}.removed`, { recursive: true, force: true });
    }
    return gone;
  });
}

/** The complete build folders, the most recently used one first. */
async function byLastUse(): Promise<string[]> {
  const found: { folder: string; used: number }[] = [];
  for (const name of await readdir(folders)) {
    const used = await stat(join(folders, name, ownerFile)).catch(() => undefined);
    if (used && !name.startsWith(".")) found.push({ folder: join(folders, name), used: used.mtimeMs });
  }
  return found.sort((a, b) => b.used - a.used).map(({ folder }) => folder);
}

/**
 * Removes unused folders: those of deleted clones, those unused for a month, and incomplete ones of killed processes.
 * Keeps the last one used, which seeds the next clone's. Call it only under the lock.
 */
async function removeUnused(own: string): Promise<void> {
  for (const [rank, folder] of (await byLastUse()).entries()) {
    if (folder === join(folders, own)) continue;
    const used = statSync(join(folder, ownerFile)).mtimeMs;
    const abandoned = rank > 0 && !ownerLives(folder);
    // Renamed first: an interrupted removal must not leave a folder that looks complete.
    if (abandoned || Date.now() - used > unusedFor) await rename(folder, `${folder}.removed`);
  }
  for (const name of await readdir(folders)) {
    if (name.startsWith(".") || name.endsWith(".removed"))
      await rm(join(folders, name), { recursive: true, force: true });
  }
}

function ownerLives(folder: string): boolean {
  try {
    const owner = JSON.parse(readFileSync(join(folder, ownerFile), "utf8")) as Owner;
    return statSync(owner.clone).ino === owner.inode;
  } catch {
    return false;
  }
}

/** Copies the built dependencies of another build folder into a new one. */
async function seed(donor: string, folder: string): Promise<void> {
  for (const entry of await readdir(donor, { recursive: true, withFileTypes: true })) {
    if (!entry.isDirectory() || entry.name !== ".fingerprint") continue;
    const profile = entry.parentPath;
    await seedProfile(profile, join(folder, profile.slice(donor.length)));
  }
}

/**
 * The donor's owner may be building at the same time. Cargo empties a unit's fingerprint before it builds the unit
 * again, and writes it when the unit is complete. So a unit with the same fingerprint before and after is complete.
 */
async function seedProfile(from: string, to: string): Promise<void> {
  const before = await fingerprints(from);
  for (const part of [".fingerprint", "build", "deps"]) await mkdir(join(to, part), { recursive: true });
  await copyAll(
    [...before.keys()].map((unit) => join(from, ".fingerprint", unit)),
    join(to, ".fingerprint"),
  );

  // Outputs of build scripts, and fingerprints, are written in place. They are copied, with their times.
  const scripts = (await readdir(join(from, "build"))).filter((unit) => before.has(unit));
  await copyAll(
    scripts.map((unit) => join(from, "build", unit)),
    join(to, "build"),
  );

  // Libraries are most of the size. The compiler replaces such a file instead of writing into it, so both folders can
  // share it.
  const hashes = new Set([...before.keys()].map(hashIn));
  for (const name of await readdir(join(from, "deps"))) {
    if (!/\.(rlib|rmeta|so|dylib|dll)$/.test(name) || !hashes.has(hashIn(name))) continue;
    await share(join(from, "deps", name), join(to, "deps", name));
  }

  const after = await fingerprints(from);
  for (const [unit, print] of before) {
    if (after.get(unit) !== print) await rm(join(to, ".fingerprint", unit), { recursive: true, force: true });
  }
}

/** Sizes and times of the files that make up each dependency's fingerprint. */
async function fingerprints(profile: string): Promise<Map<string, string>> {
  const found = new Map<string, string>();
  for (const unit of await readdir(join(profile, ".fingerprint"))) {
    // The workspace's own crates contain another clone's sources and paths.
    if (unit.startsWith("weir-")) continue;
    const folder = join(profile, ".fingerprint", unit);
    const files = (await readdir(folder)).sort();
    const stats = await Promise.all(files.map((file) => stat(join(folder, file), { bigint: true })));
    found.set(unit, stats.map(({ size, mtimeNs }, index) => `${files[index]} ${size} ${mtimeNs}`).join("\n"));
  }
  return found;
}

/** `3f2c…` from `serde-3f2c…` and from `libserde-3f2c….rlib`. */
function hashIn(name: string): string | undefined {
  return /-([0-9a-f]{16})(\.|$)/.exec(name)?.[1];
}

/** Uses `cp`, because Node cannot set times to the nanosecond, and cargo compares them. */
async function copyAll(paths: string[], folder: string): Promise<void> {
  const atATime = 200;
  for (let first = 0; first < paths.length; first += atATime) {
    await run("cp", ["-Rp", ...paths.slice(first, first + atATime), folder]);
  }
}

async function share(from: string, to: string): Promise<void> {
  try {
    await link(from, to);
  } catch (error) {
    // Cargo removed it to build it again, so its fingerprint differs.
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return;
    // The file system has no links.
    const { atime, mtime } = await stat(from);
    await copyFile(from, to, constants.COPYFILE_FICLONE);
    await utimes(to, atime, mtime);
  }
}
