// Shared by the JavaScript programs: how they receive the jobs to insert, and how they report the jobs that run.
import { writeSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";

export const number = (variable) => Number(process.env[variable]);
export const callers = number("PEER_CALLERS");
export const workers = number("PEER_WORKERS");
export const connectionString = process.env.DATABASE_URL;
const takes = number("PEER_JOB_MS");

const now = () => Math.round((performance.timeOrigin + performance.now()) * 1000);

/** Runs a job. */
export async function job(user, id) {
  writeSync(1, `+ ${user} ${id} ${now()}\n`);
  if (takes > 0) await sleep(takes);
  writeSync(1, `- ${user} ${id} ${now()}\n`);
}

/** Runs until standard input ends. */
export async function untilStdinEnds() {
  writeSync(1, "ready\n");
  for await (const _ of process.stdin);
}

/** A pool with a connection for each caller. */
export function pool() {
  const made = new pg.Pool({ connectionString, max: callers });
  made.on("error", () => {});
  made.on("connect", (client) => client.on("error", () => {}));
  return made;
}

/**
 * Inserts the jobs that arrive on standard input, one per line, `callers` at once. Prints an empty line when all are
 * inserted.
 */
export async function produce(insert) {
  let jobs = [];
  for await (const line of createInterface({ input: process.stdin })) {
    if (line !== "") {
      const [user, slots] = line.split(" ");
      jobs.push([user, Number(slots)]);
      continue;
    }
    const begun = now();
    let next = 0;
    const each = async () => {
      while (next < jobs.length) await insert(...jobs[next++]);
    };
    await Promise.all(Array.from({ length: callers }, each));
    writeSync(1, `done ${begun} ${now()}\n`);
    jobs = [];
  }
}
