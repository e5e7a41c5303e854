// The worker in TypeScript of the conformance suite. conformance.rs describes the arguments of a job.

import { appendFileSync } from "node:fs";
import { setTimeout } from "node:timers/promises";
import postgres, { type TransactionSql } from "postgres";
import { type Job, Weir } from "../../../clients/typescript/weir.ts";

const sql = postgres(process.env.DATABASE_URL ?? "", { max: 26, onnotice: () => {} });

async function fail(transaction: TransactionSql, how: string) {
  if (how === "statement") await transaction.unsafe("SET LOCAL statement_timeout = 1; SELECT pg_sleep(10)");
  if (how === "connection") await transaction`SELECT pg_terminate_backend(pg_backend_pid())`;
  if (how === "network") throw Object.assign(new Error("out of reach"), { code: "ECONNREFUSED" });
  throw new Error(how === "nul" ? "out of \0paper" : "out of \ud800paper");
}

async function handle(transaction: TransactionSql, job: Job) {
  const { attempts = 1, seconds = 0, file, fails, ignores, nul, size = 0 } = job.args;
  await transaction`INSERT INTO results (job, attempt) VALUES (${job.id}, ${job.attempt})`;
  if (job.attempt <= Number(attempts)) {
    if (fails) await fail(transaction, String(fails));
    for (const until = performance.now() + 1000 * Number(seconds); performance.now() < until; ) {
      if (file) appendFileSync(String(file), `${job.id} ${job.attempt} ${Date.now() / 1000}\n`);
      await setTimeout(50);
      if (!ignores) job.signal?.throwIfAborted();
    }
  }
  return { output: { text: nul ? "\0" : "x".repeat(Number(size)) } };
}

await new Weir().work(sql, ["lasting_default", "brief_default"], handle, { concurrency: 24, poll: 200 });
// Without a timeout, the driver waits for connections that PostgreSQL has closed.
await sql.end({ timeout: 1 });
