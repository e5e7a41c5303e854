// Submits jobs to Weir and works them, in transactions of the caller's own (the package `postgres`).
//
// A job that is submitted is there when, and only when, the caller commits; so is what a worker writes and the completion
// of its job. Limits hold across all programs and languages, since the database decides.

import { hostname } from "node:os";
import type { JSONValue, Sql, TransactionSql } from "postgres";

/** Another worker has the job by now: what this attempt did is rolled back. */
export class FencedOut extends Error {}

/** What a plan allows in a billing period, and what of it is taken; null is unlimited. */
export interface Quota {
  used: number;
  reserved: number;
  limit: number | null;
  /** Beyond the limit, up to which jobs are accepted; null is not at all. */
  ceiling: number | null;
  /** What is taken beyond the limit. */
  overage: number;
  remaining: number | null;
  reset_at: string;
  /** When there is no room: the windows without any. */
  windows?: WindowQuota[];
}

/** A window that has no room. */
export interface WindowQuota extends Omit<Quota, "windows"> {
  window: "month" | "day" | "hour" | "minute";
}

/** The answer to a submission; without a job, nothing was accepted. */
export interface Submitted {
  outcome:
    | "admitted"
    | "parked"
    | "repeated"
    | "folded"
    | "over_quota"
    | "too_large"
    | "too_many_waiting"
    | "key_reused";
  jobId: string | null;
  quota: Quota | null;
}

/** An attempt at a job. */
export interface Job {
  id: string;
  attempt: number;
  kind: string;
  args: Record<string, JSONValue>;
  /** As text, since a `Date` has no microseconds; so is the parameter, which the driver would convert to one. */
  createdAt?: string;
}

/** How a job is to be submitted. */
export interface Options {
  /** What the job may use at most; the service says it otherwise. */
  amount?: number;
  /** The same submission within 24 hours is the same job. */
  idempotencyKey?: string;
  /** At once unless told. */
  runAt?: Date;
  /** From 1, the first, to 4. */
  priority?: 1 | 2 | 3 | 4;
}

/** What a handler made of a job. */
export interface Made {
  output?: JSONValue;
  /** What it used; all that was reserved unless told. */
  used?: number;
}

/** Calls Weir's functions, in its schema or where search_path leads. */
export class Weir {
  readonly #prefix: string;

  constructor(schema?: string) {
    this.#prefix = schema === undefined ? "" : `"${schema.replaceAll('"', '""')}".`;
  }

  #function(sql: Sql | TransactionSql, name: string) {
    return sql.unsafe(`${this.#prefix}${name}`);
  }

  /** Submits a job inside the transaction. The user's row stays locked until it ends: commit soon. */
  async submit(
    sql: TransactionSql,
    subject: string,
    service: string,
    args: Record<string, JSONValue>,
    options: Options = {},
  ): Promise<Submitted> {
    const told: Record<string, JSONValue> = {};
    if (options.idempotencyKey !== undefined) told.idempotency_key = options.idempotencyKey;
    if (options.runAt !== undefined) told.run_at = options.runAt.toISOString();
    if (options.priority !== undefined) told.priority = options.priority;
    const [row] = await sql`
			SELECT outcome, job_id, quota FROM ${this.#function(sql, "weir_submit")}(
				${subject}, ${service}, ${sql.json(args)}, ${options.amount ?? null}::bigint, ${sql.json(told)})`;
    return { outcome: row?.outcome, jobId: row?.job_id ?? null, quota: row?.quota ?? null };
  }

  /** Completes an attempt inside the transaction, and returns what was charged. */
  async complete(sql: TransactionSql, job: Job, { output, used }: Made = {}): Promise<number> {
    const [row] = await sql`
			SELECT outcome, charged FROM ${this.#function(sql, "weir_complete")}(
				${job.id}, ${job.attempt}, ${output === undefined ? null : sql.json(output)}::jsonb, ${used ?? null}::bigint,
				${job.createdAt ?? null}::text::timestamptz)`;
    if (row?.outcome === "fenced_out") throw new FencedOut(`job ${job.id} was taken back`);
    return Number(row?.charged);
  }

  /** Records a failed attempt inside the transaction: retry, discarded, cancelled or fenced_out. */
  async fail(sql: TransactionSql, job: Job, error: string, retryAt?: Date): Promise<string> {
    const [row] = await sql`
			SELECT outcome FROM ${this.#function(sql, "weir_fail")}(
				${job.id}, ${job.attempt}, ${storable(error)}, ${retryAt ?? null}::timestamptz,
				${job.createdAt ?? null}::text::timestamptz)`;
    return row?.outcome;
  }

  /**
   * Says how far an attempt is, from 0 to 1: done or fenced_out. Outside of the job's transaction: nobody sees it before a
   * commit.
   */
  async progress(sql: Sql, job: Job, fraction: number, message?: string): Promise<string> {
    const [row] = await sql`
			SELECT outcome FROM ${this.#function(sql, "weir_progress")}(
				${job.id}, ${job.attempt}, ${fraction}::float8, ${message ?? null}::text,
				${job.createdAt ?? null}::text::timestamptz)`;
    return row?.outcome;
  }

  /** Reserves more for a job that runs. False is over the quota, and changes nothing. */
  async extend(sql: TransactionSql, job: Job, more: number): Promise<boolean> {
    const [row] = await sql`
			SELECT outcome FROM ${this.#function(sql, "weir_extend")}(
				${job.id}, ${job.attempt}, ${more}::bigint, ${job.createdAt ?? null}::text::timestamptz)`;
    if (row?.outcome === "fenced_out") throw new FencedOut(`job ${job.id} was taken back`);
    return row?.outcome === "extended";
  }

  /** Begins attempts at jobs that may run now. */
  async claim(sql: Sql, queue: string, worker: string, most = 1): Promise<Job[]> {
    const rows = await sql`
			SELECT job_id, attempt, kind, args, created_at::text
			FROM ${this.#function(sql, "weir_claim")}(${queue}, ${worker}, ${most}::int)`;
    return rows.map((row) => ({
      id: row.job_id,
      attempt: row.attempt,
      kind: row.kind,
      args: row.args,
      createdAt: row.created_at,
    }));
  }

  /**
   * Works jobs one after the other until the signal. What `handle` writes over its transaction is committed with the job's
   * completion, or rolled back with its failure.
   */
  async work(
    sql: Sql,
    queues: string[],
    handle: (sql: TransactionSql, job: Job) => Promise<Made>,
    { signal, riverSchema = "public", poll = 1000 }: { signal?: AbortSignal; riverSchema?: string; poll?: number } = {},
  ): Promise<void> {
    const worker = `node.${hostname().slice(0, 60)}.${process.pid}`;
    let wake = () => {};
    // A submission wakes it, or a freed slot; a job that is due later is found by looking.
    const listening = await sql.listen(`${riverSchema}.river_insert`, () => wake());
    try {
      while (!signal?.aborted) {
        const woken = new Promise<void>((resolve) => {
          wake = resolve;
        });
        let worked = false;
        for (const queue of queues) {
          if (signal?.aborted) return;
          // The next queue has its turn after the work: a job that is claimed and waits holds a slot.
          for (const job of await this.claim(sql, queue, worker)) {
            await this.#attempt(sql, job, handle);
            worked = true;
          }
        }
        if (worked) continue;
        let timer: NodeJS.Timeout | undefined;
        await Promise.race([woken, new Promise((resolve) => (timer = setTimeout(resolve, poll)))]);
        clearTimeout(timer);
      }
    } finally {
      await listening.unlisten();
    }
  }

  async #attempt(sql: Sql, job: Job, handle: (sql: TransactionSql, job: Job) => Promise<Made>): Promise<void> {
    try {
      await sql.begin(async (transaction) => this.complete(transaction, job, await handle(transaction, job)));
    } catch (error) {
      if (error instanceof FencedOut) return;
      const message = error instanceof Error ? error.message : String(error);
      await sql.begin((transaction) => this.fail(transaction, job, message));
    }
  }
}

/** The text without NUL, which PostgreSQL cannot store. */
function storable(text: string): string {
  return text.replaceAll("\0", "");
}
