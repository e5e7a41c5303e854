// Orders with a job each: `example.ts order SUBJECT N` and `example.ts work N`, which ends after N jobs.

import postgres from "postgres";
import { Weir } from "./weir.ts";

const sql = postgres(process.env.DATABASE_URL ?? "", { max: 10, onnotice: () => {} });
const weir = new Weir();

class OverQuota extends Error {}

/** Inserts an order and submits its job, or does neither. */
async function place(subject: string, number: number): Promise<boolean> {
  try {
    await sql.begin(async (transaction) => {
      await transaction`INSERT INTO orders (number) VALUES (${number})`;
      const submitted = await weir.submit(transaction, subject, "analysis", { order: number });
      if (submitted.jobId === null) throw new OverQuota();
    });
    return true;
  } catch (error) {
    if (error instanceof OverQuota) return false;
    throw error;
  }
}

// Programs that start together would create the tables twice.
await sql.begin(async (transaction) => {
  await transaction`SELECT pg_advisory_xact_lock(17)`;
  await transaction`CREATE TABLE IF NOT EXISTS orders (number int NOT NULL)`;
  await transaction`CREATE TABLE IF NOT EXISTS results (number int NOT NULL)`;
});
const [command, ...rest] = process.argv.slice(2);
if (command === "order") {
  const count = Number(rest[1]);
  const placed = await Promise.all(Array.from({ length: count }, (_, number) => place(rest[0] ?? "", number)));
  const accepted = placed.filter((one) => one).length;
  console.log(accepted, count - accepted);
} else {
  const enough = new AbortController();
  let handled = 0;
  const handle = async (
    transaction: postgres.TransactionSql,
    { args, attempt }: { args: Record<string, unknown>; attempt: number },
  ) => {
    handled += 1;
    if (handled >= Number(rest[0])) enough.abort();
    if (Number(args.fails ?? 0) >= attempt) throw new Error(`attempt ${attempt} fails`);
    await transaction`INSERT INTO results (number) VALUES (${Number(args.order)})`;
    return { output: { order: Number(args.order) } };
  };
  await weir.work(sql, ["analysis_priority", "analysis_default"], handle, { signal: enough.signal, poll: 200 });
}
await sql.end({ timeout: 5 });
