import { existsSync } from "node:fs";
import { mkdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { onExit } from "./lifecycle.ts";
import { cache } from "./paths.ts";

/**
 * A folder that is made once per user. It is made under a temporary name and renamed when it is complete, so an
 * interrupted set-up is never mistaken for a finished one.
 */
export async function cached(name: string, make: (folder: string) => Promise<void>): Promise<string> {
  const folder = join(cache, name);
  if (existsSync(folder)) return folder;
  const workshop = join(cache, `.${name}.${process.pid}`);
  const remove = (): Promise<void> => rm(workshop, { recursive: true, force: true });
  const forget = onExit(remove);
  try {
    await remove();
    await mkdir(workshop, { recursive: true });
    await make(workshop);
    await rename(workshop, folder);
  } catch (error) {
    // Another process may have finished first. Its result is just as good.
    if (!existsSync(folder)) throw error;
  } finally {
    await remove();
    forget();
  }
  return folder;
}
