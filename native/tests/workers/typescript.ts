// The worker in TypeScript of the conformance suite, with the library `postgres` or `pg`. conformance.rs describes the
// arguments of a job.

import { appendFileSync } from "node:fs";
import { setTimeout } from "node:timers/promises";
import pg from "pg";
import postgres from "postgres";
import { type Job, Weir } from "../../../clients/typescript/weir.ts";

type Run = (text: string) => PromiseLike<unknown>;

async function fail(run: Run, how: string) {
  if (how === "statement") await run("SET LOCAL statement_timeout = 1; SELECT pg_sleep(10)");
  if (how === "connection") await run("SELECT pg_terminate_backend(pg_backend_pid())");
  if (how === "network") throw Object.assign(new Error("out of reach"), { code: "ECONNREFUSED" });
  throw new Error(how === "nul" ? "out of \0paper" : "out of \ud800paper");
}

async function handled(run: Run, job: Job) {
  const { attempts = 1, seconds = 0, file, fails, ignores, nul, size = 0 } = job.args;
  const insert = () => run(`INSERT INTO results (job, attempt) VALUES (${job.id}, ${job.attempt})`);
  await insert();
  if (job.attempt <= Number(attempts)) {
    if (fails) await fail(run, String(fails));
    for (const until = performance.now() + 1000 * Number(seconds); performance.now() < until; ) {
      if (file) appendFileSync(String(file), `${job.id} ${job.attempt} ${Date.now() / 1000}\n`);
      await setTimeout(50);
      if (!ignores) job.signal?.throwIfAborted();
    }
  }
  await insert();
  return { output: { text: nul ? "\0" : "x".repeat(Number(size)) } };
}

const [connectionString = "", queues] = [process.env.DATABASE_URL, ["lasting_default", "brief_default"]];
const options = { concurrency: 24, poll: 200 };
if (process.argv[2] === "pg") {
  const pool = new pg.Pool({ connectionString, max: 26 });
  await new Weir().work(
    pool,
    queues,
    (client: pg.PoolClient, job) => handled((text) => client.query(text), job),
    options,
  );
  await pool.end();
} else {
  const sql = postgres(connectionString, { max: 26, onnotice: () => {} });
  await new Weir().work(sql, queues, (transaction, job) => handled((text) => transaction.unsafe(text), job), options);
  // Without a timeout, the driver waits for connections that PostgreSQL has closed.
  await sql.end({ timeout: 1 });
}
