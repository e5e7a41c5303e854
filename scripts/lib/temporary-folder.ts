import { chmodSync, mkdtempSync, readdirSync, rmSync, statfsSync } from "node:fs";
import { rm } from "node:fs/promises";
import { freemem, tmpdir } from "node:os";
import { join } from "node:path";
import { onExit } from "./lifecycle.ts";
import { isAlive } from "./process.ts";

/** A folder that is deleted when the process ends. Others can enter it, because PostgreSQL does not run as root. */
export function temporaryFolder(prefix: string): string {
  return made(join(tmpdir(), prefix));
}

/**
 * The same, in memory if there is room for this many bytes. A new database has several hundred files, and a disk's file
 * system takes longer to create them than PostgreSQL does. Also removes the folders of killed processes, because they
 * would use up the memory.
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
