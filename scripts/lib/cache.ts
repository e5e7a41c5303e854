import { existsSync } from "node:fs";
import { mkdir, readdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { onExit } from "./lifecycle.ts";
import { cache } from "./paths.ts";

/** The folder of something that is built once per user; undefined if it is not built yet. */
export function cached(name: string): string | undefined {
  const folder = join(cache, name);
  return existsSync(folder) ? folder : undefined;
}

/**
 * Makes such a folder. It is built under a temporary name and renamed when it is complete, so an interrupted set-up
 * is never mistaken for a finished one.
 */
export async function makeCached(name: string, make: (folder: string) => Promise<void>): Promise<string> {
  const folder = join(cache, name);
  await mkdir(cache, { recursive: true });
  await removeAbandoned();
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
      // Another process was faster. Its result is as good.
      if (!existsSync(folder)) throw error;
    }
  } finally {
    await remove();
    forget();
  }
  return folder;
}

/** Removes what set-ups that were killed have left. */
async function removeAbandoned(): Promise<void> {
  for (const entry of await readdir(cache)) {
    const owner = Number(/^\..+\.(\d+)$/.exec(entry)?.[1]);
    if (!owner || owner === process.pid || isAlive(owner)) continue;
    await rm(join(cache, entry), { recursive: true, force: true });
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}
