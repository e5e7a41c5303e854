import { existsSync, utimesSync } from "node:fs";
import { mkdir, readdir, rename, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { onExit } from "./lifecycle.ts";
import { withLock, withSharedLock } from "./lock.ts";
import { buildFolder, cache, cacheLock } from "./paths.ts";
import { isAlive } from "./process.ts";

/** Tools that no clone has used for this many milliseconds are removed. */
const unusedFor = 30 * 24 * 3600 * 1000;

/**
 * Runs work that builds in the cache or runs its tools. No clone removes them during the work. The work must not wait
 * for the lock of a clone, because a process that removes the cache holds that lock.
 */
export function usingCache<T>(work: () => Promise<T>): Promise<T> {
  return withSharedLock(cacheLock, "removing what all clones have built", work);
}

/** Removes everything that all clones of this user have built, when none of them builds. */
export function removeCache(): Promise<void> {
  return withLock(cacheLock, "building in another clone", () => rm(cache, { recursive: true, force: true }));
}

/** The folder of an entry that is built once per user; undefined if it is not built yet. */
export function cached(name: string): string | undefined {
  const folder = join(cache, name);
  if (!existsSync(folder)) return undefined;
  try {
    // The time of the last use.
    utimesSync(folder, new Date(), new Date());
  } catch {
    // The folder belongs to another user, who keeps it.
  }
  return folder;
}

/**
 * Creates such a folder. It is built under a temporary name and renamed when it is complete, so an interrupted set-up
 * is never mistaken for a finished one.
 */
export async function makeCached(name: string, make: (folder: string) => Promise<void>): Promise<string> {
  const folder = join(cache, name);
  await mkdir(cache, { recursive: true });
  await removeAbandoned();
  await removeUnused();
  const workshop = join(cache, `.${name}.${process.pid}`);
  const remove = (): Promise<void> => rm(workshop, { recursive: true, force: true });
  const forget = onExit(remove);
  try {
    await remove();
    await mkdir(workshop);
    await make(workshop);
    try {
      await rename(workshop, folder);
    } catch (error) {
      // Another process finished first. Its result is just as good.
      if (!existsSync(folder)) throw error;
    }
  } finally {
    await remove();
    forget();
  }
  return folder;
}

/** Removes the remains of killed set-ups. */
async function removeAbandoned(): Promise<void> {
  for (const entry of await readdir(cache)) {
    const owner = Number(/^\..+\.(\d+)$/.exec(entry)?.[1]);
    if (!owner || owner === process.pid || isAlive(owner)) continue;
    await rm(join(cache, entry), { recursive: true, force: true });
  }
}

/** Removes old versions of tools, when a new one is set up. */
async function removeUnused(): Promise<void> {
  for (const entry of await readdir(cache)) {
    if (join(cache, entry) === buildFolder || entry.startsWith(".")) continue;
    const used = await stat(join(cache, entry)).catch(() => undefined);
    if (used && Date.now() - used.mtimeMs > unusedFor) await rm(join(cache, entry), { recursive: true, force: true });
  }
}
