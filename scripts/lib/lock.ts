import { mkdirSync } from "node:fs";
import { dirname } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { say } from "./progress.ts";
import { sleep } from "./sleep.ts";

const busy = 5;

/**
 * Runs `work` while no other process runs its own under the same lock file. Node has no file locks, SQLite does: an
 * exclusive transaction on an empty database. The system releases it with the process, however that ends, so there
 * are no stale locks to break.
 */
export async function withLock<T>(file: string, reason: string, work: () => Promise<T>): Promise<T> {
  mkdirSync(dirname(file), { recursive: true });
  const database = new DatabaseSync(file, { timeout: 0 });
  try {
    const started = Date.now();
    for (let told = false; !locks(database); await sleep(50)) {
      if (told || Date.now() - started < 1000) continue;
      say(`waiting for another process that is ${reason}`);
      told = true;
    }
    return await work();
  } finally {
    database.close();
  }
}

function locks(database: DatabaseSync): boolean {
  try {
    database.exec("BEGIN EXCLUSIVE");
    return true;
  } catch (error) {
    if ((error as { errcode?: number }).errcode === busy) return false;
    throw error;
  }
}
