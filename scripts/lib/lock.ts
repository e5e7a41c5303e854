import { mkdirSync } from "node:fs";
import { dirname } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as sleep } from "node:timers/promises";
import { say } from "./progress.ts";

const busy = 5;

/**
 * Runs `work` under an exclusive lock on a file. Node has no file locks, but SQLite does: an exclusive transaction on
 * an empty database. The system releases the lock at any end of the process, so there are no stale locks.
 */
export function withLock<T>(file: string, reason: string, work: () => Promise<T>): Promise<T> {
  return holding("BEGIN EXCLUSIVE", file, reason, work);
}

/** Runs `work` while no process has the lock exclusively. Others may share it. */
export function withSharedLock<T>(file: string, reason: string, work: () => Promise<T>): Promise<T> {
  // A transaction that has read something.
  return holding("BEGIN; SELECT * FROM sqlite_schema", file, reason, work);
}

async function holding<T>(lock: string, file: string, reason: string, work: () => Promise<T>): Promise<T> {
  mkdirSync(dirname(file), { recursive: true });
  const database = new DatabaseSync(file, { timeout: 0 });
  try {
    const started = Date.now();
    for (let shown = false; !locks(database, lock); await sleep(50)) {
      if (shown || Date.now() - started < 1000) continue;
      say(`waiting for another process that is ${reason}`);
      shown = true;
    }
    return await work();
  } finally {
    database.close();
  }
}

function locks(database: DatabaseSync, lock: string): boolean {
  try {
    database.exec(lock);
    return true;
  } catch (error) {
    if (database.isTransaction) database.exec("ROLLBACK");
    if ((error as { errcode?: number }).errcode === busy) return false;
    throw error;
  }
}
