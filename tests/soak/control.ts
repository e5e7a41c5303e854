import { setTimeout as sleep } from "node:timers/promises";
import type postgres from "postgres";

/** The pause between two commits, in milliseconds. */
const pause = 100;

/**
 * Commits of one row, always the same, on the same server. A slower machine makes them slower, but growing tables of
 * Weir do not.
 */
export class Control {
  /** When each was started, and how long it took, in milliseconds. */
  readonly commits: { at: number; took: number }[] = [];
  #stopped = false;
  #running: Promise<void> = Promise.resolve();

  static async start(admin: postgres.Sql): Promise<Control> {
    await admin`CREATE TABLE soak_control (one int PRIMARY KEY, commits bigint NOT NULL) WITH (fillfactor = 10)`;
    await admin`INSERT INTO soak_control VALUES (1, 0)`;
    const control = new Control();
    control.#running = control.#run(admin);
    return control;
  }

  async #run(admin: postgres.Sql): Promise<void> {
    for (; !this.#stopped; await sleep(pause)) {
      const at = performance.now();
      await admin`UPDATE soak_control SET commits = commits + 1`;
      this.commits.push({ at, took: performance.now() - at });
    }
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    await this.#running;
  }
}
