// Submits jobs to Weir and works them, in your own transactions (the `postgres` package).
//
// A submitted job exists if and only if your transaction commits. The same holds for what a worker writes and the
// completion of its job. Limits hold across all programs and languages, because the database decides.

import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import postgres, { type Sql, type TransactionSql } from "postgres";

/** A JSON value. */
export type Json = null | string | number | boolean | Json[] | { [member: string]: Json };

/** Another worker has the job. This attempt's writes are rolled back. */
export class FencedOut extends Error {}

/** The attempt has to stop: its job was cancelled or overdue, or the worker lost the database. */
export class Stopped extends Error {}

/** The quota of a billing period. A null limit is unlimited. */
export interface Quota {
  used: number;
  reserved: number;
  limit: number | null;
  /** The amount above the limit up to which jobs are accepted, as overage; null if there is none. */
  ceiling: number | null;
  /** The amount above the limit. */
  overage: number;
  remaining: number | null;
  reset_at: string;
  /** The full windows, if the quota has no room. */
  windows?: WindowQuota[];
}

/** A window without room. */
export interface WindowQuota extends Omit<Quota, "windows"> {
  window: "month" | "day" | "hour" | "minute";
}

/** The answer to a submission. Without a job, nothing was accepted. */
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
  args: Record<string, Json>;
  /** As text, because a `Date` has no microseconds. */
  createdAt?: string;
  /** The account; undefined for a job of another program. */
  holder?: string;
  /** The same for all attempts at the job, and no other job has it: an idempotency key for other systems. */
  key?: string;
  /** Aborted when the attempt has to stop, with a `FencedOut` or `Stopped` as the reason. Only in a handler of `work`. */
  signal?: AbortSignal;
}

/** An attempt, and what has become of it. */
export interface AttemptState {
  id: string;
  attempt: number;
  state: "running" | "cancelled" | "overdue" | "taken_over";
}

/** Options of a submission. */
export interface Options {
  /** The maximum amount that the job may use. Default: set by the service. */
  amount?: number;
  /** The same submission with the same key within 24 hours returns the same job. */
  idempotencyKey?: string;
  /** Default: now. */
  runAt?: Date;
  /** 1 (first) to 4. */
  priority?: 1 | 2 | 3 | 4;
  /** River's tags of the job. */
  tags?: string[];
  /** Members of River's metadata of the job. */
  metadata?: { [member: string]: Json };
}

/** The result of a handler. */
export interface Made {
  output?: Json;
  /** The amount that the job used. Default: all that was reserved. */
  used?: number;
}

/** Options of a worker. */
export interface WorkOptions {
  /** Ends the work after the current job. Default: SIGTERM and SIGINT do. */
  signal?: AbortSignal;
  /** The schema of River's tables. */
  riverSchema?: string;
  /** Milliseconds between two checks for jobs without a notification. */
  poll?: number;
  /** 0: also work jobs over their user's slots when this worker would be idle, if the plan has a burst. Default: 1. */
  headroom?: number;
}

export type Handler = (sql: TransactionSql, job: Job) => Promise<Made>;

/** Milliseconds between two heartbeats. A worker that is silent for 10 s loses its jobs. */
const BEAT = 2000;

/** Milliseconds without a successful heartbeat after which the handlers stop, before others get their jobs. */
const SILENT = 8000;

/** Milliseconds after which a heartbeat is repeated over another connection. */
const HANGING = 5000;

/** Milliseconds within which the driver notices that PostgreSQL has closed a connection. */
const CLOSING = 1000;

/** Milliseconds between two attempts to reach the database again, at first and at most. */
const PAUSES = [100, 5000] as const;

/** Calls Weir's functions, in its schema or where search_path leads. */
export class Weir {
  readonly #prefix: string;

  constructor(schema?: string) {
    this.#prefix = schema === undefined ? "" : `"${schema.replaceAll('"', '""')}".`;
  }

  /**
   * The rows of a function. Parameters and columns travel as text, so that the `transform` and `types` of the caller's
   * connection have no effect.
   */
  async #call(
    sql: Sql | TransactionSql,
    columns: string[],
    name: string,
    ...parameters: Parameter[]
  ): Promise<(string | null)[][]> {
    const places = parameters.map(([, type], at) => `$${at + 1}::text::${type}`);
    const texts = columns.map((column) => `${column}::text`);
    const query = `SELECT ${texts.join(", ")} FROM ${this.#prefix}${name}(${places.join(", ")})`;
    const values = parameters.map(([value]) => (value === null || value === undefined ? null : String(value)));
    const rows = (await sql.unsafe(query, values).raw()) as unknown as (Uint8Array | null)[][];
    return rows.map((row) => row.map((value) => (value === null ? null : new TextDecoder().decode(value))));
  }

  /** Submits a job inside the transaction. The user's row stays locked until it ends, so commit soon. */
  async submit(
    sql: TransactionSql,
    subject: string,
    service: string,
    args: Record<string, Json>,
    options: Options = {},
  ): Promise<Submitted> {
    const chosen = {
      idempotency_key: options.idempotencyKey,
      run_at: options.runAt?.toISOString(),
      priority: options.priority,
      tags: options.tags,
      metadata: options.metadata,
    };
    const [row] = await this.#call(
      sql,
      ["outcome", "job_id", "quota"],
      "weir_submit",
      [subject, "text"],
      [service, "text"],
      [JSON.stringify(args), "jsonb"],
      [options.amount, "bigint"],
      [JSON.stringify(chosen), "jsonb"],
    );
    const [outcome, jobId = null, quota] = row ?? [];
    return { outcome: outcome as Submitted["outcome"], jobId, quota: quota ? JSON.parse(quota) : null };
  }

  /** Completes an attempt inside the transaction, and returns what was charged. */
  async complete(sql: TransactionSql, job: Job, { output, used }: Made = {}): Promise<number> {
    const made = output === undefined ? null : JSON.stringify(output);
    const columns = ["outcome", "charged"];
    const [row] = await this.#call(
      sql,
      columns,
      "weir_complete",
      ...attempt(job),
      [made, "jsonb"],
      [used, "bigint"],
      [job.createdAt, "timestamptz"],
    );
    return Number(current(job, row)[1]);
  }

  /** Records a failed attempt inside the transaction: retry, discarded, cancelled or fenced_out. */
  async fail(sql: TransactionSql, job: Job, error: string, retryAt?: Date): Promise<string> {
    const at = retryAt?.toISOString();
    const [row] = await this.#call(
      sql,
      ["outcome"],
      "weir_fail",
      ...attempt(job),
      [storable(error), "text"],
      [at, "timestamptz"],
      [job.createdAt, "timestamptz"],
    );
    return row?.[0] ?? "";
  }

  /**
   * Records the progress of an attempt, from 0 to 1: done, cancelled or fenced_out. Call it outside the job's transaction, because
   * others see it after a commit.
   */
  async progress(sql: Sql, job: Job, fraction: number, message?: string): Promise<string> {
    const [row] = await this.#call(
      sql,
      ["outcome"],
      "weir_progress",
      ...attempt(job),
      [fraction, "float8"],
      [message, "text"],
      [job.createdAt, "timestamptz"],
    );
    return row?.[0] ?? "";
  }

  /**
   * Reserves more for a running job. Returns false and changes nothing if that is over the quota. Throws `Stopped` if the
   * job was cancelled.
   */
  async extend(sql: TransactionSql, job: Job, more: number): Promise<boolean> {
    const parameters: Parameter[] = [...attempt(job), [more, "bigint"], [job.createdAt, "timestamptz"]];
    const [row] = await this.#call(sql, ["outcome"], "weir_extend", ...parameters);
    const [outcome] = current(job, row);
    if (outcome === "cancelled") throw new Stopped(`job ${job.id} was cancelled`);
    return outcome === "extended";
  }

  /**
   * Starts attempts at jobs. All but `headroom` of them may be over their user's slots. Then call `heartbeat` every two
   * seconds, or others get the jobs after ten.
   */
  async claim(sql: Sql, queue: string, worker: string, most = 1, headroom = 1): Promise<Job[]> {
    const columns = ["job_id", "attempt", "kind", "args", "created_at", "holder", "key"];
    const parameters: Parameter[] = [
      [queue, "text"],
      [worker, "text"],
      [most, "int"],
      [headroom, "int"],
    ];
    const rows = await this.#call(sql, columns, "weir_claim", ...parameters);
    return rows.map(([id, attempt, kind, args, createdAt, holder, key]) => ({
      id: id ?? "",
      attempt: Number(attempt),
      kind: kind ?? "",
      args: JSON.parse(args ?? "{}"),
      createdAt: createdAt ?? undefined,
      holder: holder ?? undefined,
      key: key ?? undefined,
    }));
  }

  /**
   * Keeps the running jobs of this worker, and returns what has become of these attempts; without them, of all attempts
   * of its name. Jobs of its name that are not among them run again.
   */
  async heartbeat(sql: Sql, worker: string, attempts?: Pick<Job, "id" | "attempt">[]): Promise<AttemptState[]> {
    const known = attempts?.map(({ id, attempt }) => ({ job_id: id, attempt }));
    const rows = await this.#call(
      sql,
      ["job_id", "attempt", "state"],
      "weir_heartbeat",
      [worker, "text"],
      [known && JSON.stringify(known), "jsonb"],
    );
    return rows.map(([id, attempt, state]) => ({
      id: id ?? "",
      attempt: Number(attempt),
      state: state as AttemptState["state"],
    }));
  }

  /**
   * Works jobs one at a time. The handler's writes over its transaction are committed with the job's completion, or
   * rolled back with its failure. A lost connection is replaced. Its job fails and is retried.
   *
   * `job.signal` is aborted when the attempt has to stop: the job was cancelled or taken over, the attempt takes longer
   * than the service's timeout, or this worker lost the database. Nothing interrupts a handler that ignores it.
   *
   * SIGTERM and SIGINT end the work after the current job, unless `signal` is given. Another worker gets the jobs of a
   * killed one within 15 seconds. A handler that blocks the event loop for 10 seconds loses its job to another worker.
   */
  async work(sql: Sql, queues: string[], handle: Handler, options: WorkOptions = {}): Promise<void> {
    const { riverSchema = "public", poll = 1000, headroom = 1 } = options;
    const worker = `node.${hostname()
      .replace(/[^A-Za-z0-9]/g, "-")
      .slice(0, 40)}.${process.pid}.${randomUUID()}`;
    const signals = options.signal === undefined ? stopBySignals() : undefined;
    const signal = options.signal ?? signals?.signal;
    let wake = () => {};
    const wakeUp = () => wake();
    signal?.addEventListener("abort", wakeUp);
    // Submissions and freed slots notify. Scheduled jobs are found by polling.
    const listening = await sql.listen(`${riverSchema}.river_insert`, wakeUp);
    const heart = this.#beat(sql, worker);
    const lost: Job[] = [];
    let pause: number = PAUSES[0];
    try {
      while (!signal?.aborted) {
        const notified = new Promise<void>((resolve) => {
          wake = resolve;
        });
        try {
          const worked = await this.#turn(sql, queues, [worker, headroom], handle, lost, heart, signal);
          pause = PAUSES[0];
          if (!worked && !signal?.aborted) await firstOf(notified, poll);
        } catch (error) {
          if (!passes(error)) throw error;
          await firstOf(notified, pause);
          pause = Math.min(2 * pause, PAUSES[1]);
        }
      }
    } finally {
      signal?.removeEventListener("abort", wakeUp);
      signals?.end();
      await Promise.all([heart.end(), listening.unlisten().catch(() => {})]);
    }
  }

  /** Works one job of each queue that has one. Returns whether there was any. */
  async #turn(
    sql: Sql,
    queues: string[],
    [worker, headroom]: [string, number],
    handle: Handler,
    lost: Job[],
    heart: Heart,
    signal: AbortSignal | undefined,
  ): Promise<boolean> {
    for (let job = lost.at(-1); job; job = lost.at(-1)) {
      const failed = job;
      await sql.begin((transaction) => this.fail(transaction, failed, "the worker lost its connection"));
      lost.pop();
    }
    let worked = false;
    for (const queue of queues) {
      if (signal?.aborted || !heart.beats()) break;
      // One job at a time: a claimed job that waits holds a slot.
      for (const job of await this.claim(sql, queue, worker, 1, headroom)) {
        lost.push(job);
        await heart.during(job, () => this.#attempt(sql, job, handle));
        lost.pop();
        worked = true;
      }
    }
    return worked;
  }

  async #attempt(sql: Sql, job: Job, handle: Handler): Promise<void> {
    let closed = false;
    let rollsBack = false;
    const never = new Promise<void>(() => {});
    const attempted = sql.begin(async (transaction) => {
      try {
        return await this.complete(transaction, job, await handle(transaction, job));
      } catch (error) {
        // begin() rejects once the connection is closed. A rollback that it sends after that ends the process
        // (https://github.com/porsager/postgres/issues/1208). A handler's other connections have such errors as well.
        if (closesConnection(error)) await firstOf(never, CLOSING);
        if (closed) await never;
        rollsBack = true;
        throw error;
      }
    });
    attempted.catch(() => {
      closed = true;
    });
    try {
      await attempted;
    } catch (error) {
      if (error instanceof FencedOut) return;
      if (!rollsBack && passes(error)) throw error;
      const message = error instanceof Error ? error.message : String(error);
      await sql.begin((transaction) => this.fail(transaction, job, message));
    }
  }

  /** Sends heartbeats over a separate connection, because handlers may use all connections of `sql`. */
  #beat(sql: Sql, worker: string): Heart {
    const connect = (): Sql =>
      postgres({
        ...(sql.options as object),
        max: 1,
        idle_timeout: 0,
        connect_timeout: 5,
        onnotice: () => {},
      } as postgres.Options<Record<string, never>>);
    let own = connect();
    const beat = async (attempts: Job[]): Promise<AttemptState[]> => {
      const beaten = this.heartbeat(own, worker, attempts);
      beaten.catch(() => {});
      let states: AttemptState[] | undefined;
      await firstOf(
        beaten.then((answer) => {
          states = answer;
        }),
        HANGING,
      );
      if (states) return states;
      // A connection over a dead network would hang for minutes.
      void own.end({ timeout: 0 }).catch(() => {});
      own = connect();
      throw new Error("the database does not answer");
    };
    return new Heart(beat, () => own.end({ timeout: 1 }));
  }
}

/**
 * Sends heartbeats, and aborts the signals of attempts that have lost their jobs, and of all attempts when no heartbeat
 * succeeds.
 */
class Heart {
  readonly #running = new Map<string, { job: Job; stop: AbortController }>();
  readonly #beat: (attempts: Job[]) => Promise<AttemptState[]>;
  readonly #close: () => Promise<void>;
  readonly #timers: NodeJS.Timeout[];
  #last = performance.now();
  #beating = false;

  constructor(beat: (attempts: Job[]) => Promise<AttemptState[]>, close: () => Promise<void>) {
    this.#beat = beat;
    this.#close = close;
    this.#timers = [setInterval(() => void this.#once(), BEAT), setInterval(() => this.#watch(), 250)];
    void this.#once();
  }

  /** Whether others still leave this worker its jobs. Otherwise it must not start any. */
  beats(): boolean {
    return performance.now() - this.#last < SILENT;
  }

  /** Does the work of an attempt, whose job gets a signal. */
  async during(job: Job, work: () => Promise<void>): Promise<void> {
    const stop = new AbortController();
    job.signal = stop.signal;
    this.#running.set(keyOf(job), { job, stop });
    try {
      await work();
    } finally {
      this.#running.delete(keyOf(job));
    }
  }

  async end(): Promise<void> {
    for (const timer of this.#timers) clearInterval(timer);
    await this.#close().catch(() => {});
  }

  /** A failed heartbeat is repeated by the next one. */
  async #once(): Promise<void> {
    if (this.#beating) return;
    this.#beating = true;
    const sent = performance.now();
    const known = new Map(this.#running);
    try {
      const states = await this.#beat([...known.values()].map(({ job }) => job));
      this.#last = sent;
      for (const state of states) {
        const running = known.get(keyOf(state));
        if (running && state.state !== "running") stopped(running, state.state);
      }
    } catch {
      // The watch stops the attempts.
    } finally {
      this.#beating = false;
    }
  }

  #watch(): void {
    if (this.beats()) return;
    for (const running of this.#running.values()) stopped(running, "the database did not answer");
  }
}

function keyOf({ id, attempt }: Pick<Job, "id" | "attempt">): string {
  return `${id} ${attempt}`;
}

function stopped({ job, stop }: { job: Job; stop: AbortController }, why: string): void {
  if (stop.signal.aborted) return;
  const text = `job ${job.id}, attempt ${job.attempt} has to stop: ${why}`;
  console.warn(`weir: ${text}`);
  stop.abort(why === "taken_over" ? new FencedOut(text) : new Stopped(text));
}

type Parameter = [value: string | number | null | undefined, type: string];

function attempt(job: Job): [Parameter, Parameter] {
  return [
    [job.id, "bigint"],
    [job.attempt, "int"],
  ];
}

/** The row, if the attempt is the current one. */
function current(job: Job, row: (string | null)[] | undefined): (string | null)[] {
  if (!row || row[0] === "fenced_out") throw new FencedOut(`job ${job.id} was taken over`);
  return row;
}

/** The text without NUL, which PostgreSQL cannot store. */
function storable(text: string): string {
  return text.replaceAll("\0", "");
}

/** Whether the connection is closed, or will be: an error of the driver, or a fatal one of PostgreSQL. */
function closesConnection(error: unknown): boolean {
  const { code = "", severity } = (error ?? {}) as { code?: unknown; severity?: string };
  if (severity !== undefined) return ["FATAL", "PANIC"].includes(severity);
  return /^(CONNECTION_|CONNECT_TIMEOUT|ECONN|EPIPE|ENOTFOUND|EAI_|ETIMEDOUT|EHOSTUNREACH)/.test(String(code));
}

/**
 * Whether an error of a statement of Weir's ends by itself: the database cannot be reached, is read-only after a failover,
 * or is full, or the statement met a conflict, a lock or a time limit.
 */
function passes(error: unknown): boolean {
  return (
    closesConnection(error) ||
    (error instanceof Error && "code" in error && /^(25006|40001|40P01|53|55P03|57|08)/.test(`${error.code}`))
  );
}

/** Resolves with the promise, or after this many milliseconds. */
async function firstOf(promise: Promise<void>, ms: number): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  await Promise.race([promise, new Promise((resolve) => (timer = setTimeout(resolve, ms)))]);
  clearTimeout(timer);
}

function stopBySignals(): { signal: AbortSignal; end(): void } {
  const stopped = new AbortController();
  const stop = () => stopped.abort();
  for (const name of ["SIGTERM", "SIGINT"] as const) process.on(name, stop);
  return {
    signal: stopped.signal,
    end() {
      for (const name of ["SIGTERM", "SIGINT"] as const) process.off(name, stop);
    },
  };
}
