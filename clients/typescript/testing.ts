// Helpers for tests of programs that submit or work jobs. A test runs in one transaction, which is rolled back, so that
// tests leave nothing behind and do not see each other's jobs.
//
// The connection's role owns Weir's schema, as in a database of tests.

import type { Sql, TransactionSql } from "postgres";
import { type Handler, type Job, type Json, type PgClient, type PgPool, queryOf, type Runner, Weir } from "./weir.ts";

/** An attempt that `runQueued` has ended. */
export interface Ran {
  job: Job;
  /** What the handler returned as the output. */
  output?: Json;
  /** What the handler threw. */
  error?: unknown;
}

class RollBack extends Error {}

/** Runs a test in a transaction, and rolls it back. */
export function rolledBack<Client extends PgClient>(
  pool: PgPool<Client>,
  test: (client: Client) => Promise<unknown>,
): Promise<void>;
export function rolledBack(sql: Sql, test: (transaction: TransactionSql) => Promise<unknown>): Promise<void>;
export async function rolledBack(database: Sql | PgPool, test: (transaction: never) => Promise<unknown>) {
  if ("unsafe" in database) {
    const undone = database.begin(async (transaction) => {
      await test(transaction as never);
      throw new RollBack();
    });
    await undone.catch((error) => {
      if (!(error instanceof RollBack)) throw error;
    });
    return;
  }
  const client = await database.connect();
  try {
    await client.query("BEGIN");
    await test(client as never);
  } finally {
    await client.query("ROLLBACK");
    client.release();
  }
}

/** Sets the limit of a user for a service in each billing period; null is unlimited. Creates an unknown user. */
export async function setQuota(
  transaction: Runner,
  subject: string,
  service: string,
  limit: number | null,
  weir: Weir = new Weir(),
): Promise<void> {
  const values = [subject, service, limit === null ? null : String(limit)];
  await queryOf(transaction)(`SELECT ${weir.prefix}set_test_quota($1::text, $2::text, $3::text::bigint)::text`, values);
}

/**
 * Works jobs, one after the other, until none of these queues has a job that can start now. The jobs of the transaction
 * itself are among them. Each is completed or failed as by `work`.
 */
export async function runQueued<Transaction extends Runner>(
  transaction: Transaction,
  queues: string[],
  handle: Handler<Transaction>,
  weir: Weir = new Weir(),
): Promise<Ran[]> {
  const query = queryOf(transaction);
  const ran: Ran[] = [];
  const next = async () => {
    await query(`SELECT ${weir.prefix}start_test_jobs()::text`, []);
    for (const queue of queues) {
      const [job] = await weir.claim(transaction, queue, "node.test");
      if (job) return job;
    }
    return undefined;
  };
  for (let job = await next(); job; job = await next()) {
    await query("SAVEPOINT weir_attempt", []);
    try {
      const made = await handle(transaction, job);
      await weir.complete(transaction, job, made);
      ran.push({ job, output: made.output });
    } catch (error) {
      await query("ROLLBACK TO SAVEPOINT weir_attempt", []);
      await weir.fail(transaction, job, error instanceof Error ? error.message : String(error));
      ran.push({ job, error });
    }
    await query("RELEASE SAVEPOINT weir_attempt", []);
  }
  return ran;
}
