import { chmodSync, mkdtempSync, readdirSync, rmSync, statfsSync } from "node:fs";
import { rm } from "node:fs/promises";
import { freemem, tmpdir } from "node:os";
import { join } from "node:path";
import { onExit } from "./lifecycle.ts";
import { isAlive } from "./process.ts";

/** A folder that is gone when the process ends. Others can enter it: PostgreSQL runs as another user than root. */
export function temporaryFolder(prefix: string): string {
  return made(join(tmpdir(), prefix));
}

/**
 * The same, in memory where there is room for this many bytes. A new database is several hundred files, and a disk's
 * file system takes longer to make them than PostgreSQL does. What killed processes have left there is removed, since
 * it would hold the memory.
 */
export function folderInMemory(prefix: string, bytes: number): string {
  const memory = "/dev/shm";
  for (const name of namesIn(memory)) {
    const owner = name.startsWith(prefix) ? /^(\d+)-/.exec(name.slice(prefix.length))?.[1] : undefined;
    if (owner && !isAlive(Number(owner))) rmSync(join(memory, name), { recursive: true, force: true });
  }
  return made(join(roomIn(memory) >= bytes ? memory : tmpdir(), `${prefix}${process.pid}-`));
}

function made(prefix: string): string {
  const folder = mkdtempSync(prefix);
  chmodSync(folder, 0o711);
  onExit(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}

function roomIn(folder: string): number {
  try {
    const { bavail, bsize } = statfsSync(folder);
    return Math.min(bavail * bsize, freemem());
  } catch {
    return 0;
  }
}
