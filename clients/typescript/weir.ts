// Submits jobs to Weir and works them, in your own transactions, with `postgres`, `pg`, Drizzle, Kysely or Prisma.
//
// A submitted job exists if and only if your transaction commits. The same holds for what a worker writes and the
// completion of its job. Limits hold across all programs and languages, because the database decides.

import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import type { Options as PostgresOptions, Sql, TransactionSql } from "postgres";

/** A JSON value. */
export type Json = null | string | number | boolean | Json[] | { [member: string]: Json };

/** Another worker has the job. This attempt's writes are rolled back. */
export class FencedOut extends Error {}

/** The attempt has to stop: its job was cancelled or overdue, or the worker lost the database. */
export class Stopped extends Error {}

/** The database or this client has to be upgraded. The message names which. */
export class WrongVersion extends Error {}

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
  /** The seconds from now, or from `runAt`, after which a job that still waits is cancelled. Default: the service's. */
  expiresIn?: number;
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
  /** The maximum number of jobs that run at a time. Default: 1. */
  concurrency?: number;
  /** Ends the work after the running jobs. Default: SIGTERM and SIGINT do. */
  signal?: AbortSignal;
  /** Milliseconds between two checks for jobs without a notification. */
  poll?: number;
  /** All but as many idle handlers also work jobs over their user's slots, if the plan has a burst. Default: 1. */
  headroom?: number;
}

/** Runs a statement with parameters `$1`, `$2`, and so on, and returns its rows, or an object with them as `rows`. */
export type Query = (text: string, values: (string | null)[]) => PromiseLike<unknown>;

/** Runs statements: a transaction of `postgres`, Drizzle, Kysely or Prisma, a client of `pg`, or a function. */
export type Runner =
  | Sql
  | TransactionSql
  | Query
  | { query(text: string, values: (string | null)[]): PromiseLike<unknown> }
  | { executeQuery(query: never): PromiseLike<unknown> }
  | { $queryRawUnsafe(text: string, ...values: (string | null)[]): PromiseLike<unknown> }
  | { execute(query: never): PromiseLike<unknown> };

/** A client of `pg`. */
export interface PgClient {
  query(text: string, values?: unknown[]): PromiseLike<unknown>;
  on(event: "error", listener: (error: Error) => void): unknown;
  off(event: "error", listener: (error: Error) => void): unknown;
  release(error?: Error | boolean): void;
}

/** A pool of `pg`. */
export interface PgPool<Client extends PgClient = PgClient> {
  connect(): Promise<Client>;
  query(text: string, values?: unknown[]): PromiseLike<unknown>;
  on(event: "error", listener: (error: Error) => void): unknown;
  off(event: "error", listener: (error: Error) => void): unknown;
}

export type Handler<Transaction = TransactionSql> = (transaction: Transaction, job: Job) => Promise<Made>;

/** Starts a transaction, commits what `work` did in it, and rolls back if `work` fails. */
export type Begin<Transaction> = (work: (transaction: Transaction) => Promise<void>) => Promise<unknown>;

/** The number of the oldest upgrade of Weir's schema with all that this client uses. */
const UPGRADE = 19;

/** Milliseconds between two heartbeats. A worker that is silent for 10 s loses its jobs. */
const BEAT = 1500;

/** Milliseconds without a successful heartbeat after which the handlers stop, before others get their jobs. */
const SILENT = 8000;

/** Milliseconds after which a heartbeat is repeated over another connection. */
const HANGING = 5000;

/** Milliseconds within which a driver closes a connection, or notices that PostgreSQL has closed it. */
const CLOSING = 1000;

/** Milliseconds between two attempts to reach the database again, at first and at most. */
const PAUSES = [100, 5000] as const;

/** Calls Weir's functions, in its schema or where search_path leads. */
export class Weir {
  /** What is in front of the names of functions in SQL: the schema and a dot, or nothing. */
  readonly prefix: string;

  constructor(schema?: string) {
    this.prefix = schema === undefined ? "" : `"${schema.replaceAll('"', '""')}".`;
  }

  /** The rows of a function. Parameters and columns travel as text, so that no driver converts them. */
  #call(runner: Runner, columns: string[], name: string, ...parameters: Parameter[]): Promise<(string | null)[][]> {
    const places = parameters.map(([, type], at) => `$${at + 1}::text::${type}`);
    const values = parameters.map(([value]) => (value === null || value === undefined ? null : String(value)));
    return rowsOf(runner, columns, `FROM ${this.prefix}${name}(${places.join(", ")})`, values);
  }

  /** Submits a job inside the transaction. The user's row stays locked until it ends, so commit soon. */
  async submit(
    transaction: Runner,
    subject: string,
    service: string,
    args: Record<string, Json>,
    options: Options = {},
  ): Promise<Submitted> {
    const chosen = {
      idempotency_key: options.idempotencyKey,
      run_at: options.runAt?.toISOString(),
      expires_in: options.expiresIn,
      priority: options.priority,
      tags: options.tags,
      metadata: options.metadata,
    };
    const [row] = await this.#call(
      transaction,
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
  async complete(transaction: Runner, job: Job, { output, used }: Made = {}): Promise<number> {
    const made = output === undefined ? null : JSON.stringify(output);
    const columns = ["outcome", "charged"];
    const [row] = await this.#call(
      transaction,
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
  async fail(runner: Runner, job: Job, error: string, retryAt?: Date): Promise<string> {
    const at = retryAt?.toISOString();
    const [row] = await this.#call(
      runner,
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
   * Records the progress of an attempt, from 0 to 1: done, cancelled or fenced_out. Call it outside the job's
   * transaction, because others see it after a commit.
   */
  async progress(runner: Runner, job: Job, fraction: number, message?: string): Promise<string> {
    const [row] = await this.#call(
      runner,
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
   * Reserves more for a running job. Returns false and changes nothing if that is over the quota. Throws `Stopped` if
   * the job was cancelled.
   */
  async extend(transaction: Runner, job: Job, more: number): Promise<boolean> {
    const parameters: Parameter[] = [...attempt(job), [more, "bigint"], [job.createdAt, "timestamptz"]];
    const [row] = await this.#call(transaction, ["outcome"], "weir_extend", ...parameters);
    const [outcome] = current(job, row);
    if (outcome === "cancelled") throw new Stopped(`job ${job.id} was cancelled`);
    return outcome === "extended";
  }

  /**
   * Starts attempts at jobs. All but `headroom` of them may be over their user's slots. Then call `heartbeat` every two
   * seconds, or others get the jobs after ten.
   */
  async claim(runner: Runner, queue: string, worker: string, most = 1, headroom = 1): Promise<Job[]> {
    const columns = ["job_id", "attempt", "kind", "args", "created_at", "holder", "key"];
    const parameters: Parameter[] = [
      [queue, "text"],
      [worker, "text"],
      [most, "int"],
      [headroom, "int"],
    ];
    const rows = await this.#call(runner, columns, "weir_claim", ...parameters);
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
  async heartbeat(runner: Runner, worker: string, attempts?: Pick<Job, "id" | "attempt">[]): Promise<AttemptState[]> {
    const known = attempts?.map(({ id, attempt }) => ({ job_id: id, attempt }));
    const rows = await this.#call(
      runner,
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
   * Works up to `concurrency` jobs at a time. The handler's writes over its transaction are committed with the job's
   * completion, or rolled back with its failure. A lost connection is replaced. Its job fails and is retried.
   *
   * `database` is an instance of `postgres` or a `Pool` of `pg`. With `begin`, which starts a transaction of another
   * library, the handler gets that transaction. Each running job uses a connection.
   *
   * `job.signal` is aborted when the attempt has to stop: the job was cancelled or taken over, the attempt takes longer
   * than the service's timeout, or this worker lost the database. Nothing interrupts a handler that ignores it.
   *
   * SIGTERM and SIGINT end the work after the running jobs, unless `signal` is given. Another worker gets the jobs of a
   * killed one within 15 seconds. A handler that blocks the event loop for 10 seconds loses its job to another worker.
   */
  work<Transaction extends Runner>(
    database: Sql | PgPool,
    queues: string[],
    handle: Handler<Transaction>,
    options: WorkOptions & { begin: Begin<Transaction> },
  ): Promise<void>;
  work<Client extends PgClient>(
    pool: PgPool<Client>,
    queues: string[],
    handle: Handler<Client>,
    options?: WorkOptions,
  ): Promise<void>;
  work(sql: Sql, queues: string[], handle: Handler, options?: WorkOptions): Promise<void>;
  async work(
    database: Sql | PgPool,
    queues: string[],
    handle: Handler<never>,
    options: WorkOptions & { begin?: Begin<Runner> } = {},
  ): Promise<void> {
    const own: Database = "unsafe" in database ? await postgresDatabase(database) : pgDatabase(database);
    const begin = options.begin ? beginOf(options.begin) : own.begin;
    const loop = new Loop(this, { ...own, begin }, queues, handle as unknown as Handler<Runner>, options);
    try {
      await loop.run(await this.#fit(own.run));
    } finally {
      own.end();
    }
  }

  /**
   * Returns the channel of notifications. Throws `WrongVersion` if the database or this client is too old for the other.
   */
  async #fit(runner: Runner): Promise<string> {
    // Not by name, because an older database has fewer columns.
    const columns = ["to_jsonb(weir_version)"];
    const [row] = await this.#call(runner, columns, "weir_version").catch((error) => {
      const { code } = (error ?? {}) as { code?: unknown };
      if (code !== "42883") throw error;
      return [];
    });
    if (!row)
      throw new WrongVersion(
        "upgrade the database with `weir migrate`, or name Weir's schema: there is no function weir_version",
      );
    const { upgrade, oldest_client: oldestClient, channel } = JSON.parse(String(row[0]));
    if (upgrade < UPGRADE)
      throw new WrongVersion(
        `upgrade the database with \`weir migrate\`: it has upgrade ${upgrade} of Weir's schema, and this client needs ` +
          `${UPGRADE}`,
      );
    if (oldestClient > UPGRADE)
      throw new WrongVersion(
        `upgrade this client: it is made for upgrade ${UPGRADE} of Weir's schema, and the database serves clients from ` +
          `${oldestClient} on`,
      );
    return channel;
  }
}

/** What a worker needs of a driver. */
interface Database {
  /** Runs a statement in a transaction by itself. */
  run: Runner;
  /** Fails with `RolledBack` if the work failed and the connection works. */
  begin: Begin<Runner>;
  /** Another connection, because handlers may use all of the others. Calls `wake` for each notification. */
  open(channel: string, wake: () => void): Separate;
  end(): void;
}

interface Separate {
  run: Runner;
  end(): Promise<void>;
}

/** The work of a transaction failed, for this cause. */
class RolledBack extends Error {
  constructor(cause: unknown) {
    super("", { cause });
  }
}

/** Claims jobs and works them. */
class Loop {
  readonly #weir: Weir;
  readonly #database: Database;
  readonly #queues: string[];
  readonly #handle: Handler<Runner>;
  readonly #options: WorkOptions;
  readonly #worker = `node.${hostname()
    .replace(/[^A-Za-z0-9]/g, "-")
    .slice(0, 40)}.${process.pid}.${randomUUID()}`;
  readonly #concurrency: number;
  readonly #running = new Set<Promise<void>>();
  /** Jobs whose connections were lost. They are failed once the database can be reached. */
  readonly #lost: Job[] = [];
  /** Errors that do not end by themselves. */
  readonly #errors: unknown[] = [];
  #wake = () => {};

  constructor(weir: Weir, database: Database, queues: string[], handle: Handler<Runner>, options: WorkOptions) {
    this.#weir = weir;
    this.#database = database;
    this.#queues = [...queues];
    this.#handle = handle;
    this.#options = options;
    this.#concurrency = options.concurrency ?? 1;
    if (!(this.#concurrency >= 1)) throw new RangeError("concurrency must be at least 1");
  }

  /** `channel` notifies of jobs. */
  async run(channel: string): Promise<void> {
    const { poll = 1000 } = this.#options;
    const signals = this.#options.signal === undefined ? stopBySignals() : undefined;
    const signal = this.#options.signal ?? signals?.signal;
    const wakeUp = () => this.#wake();
    signal?.addEventListener("abort", wakeUp);
    const heart = this.#beat(channel, wakeUp);
    let pause: number = PAUSES[0];
    try {
      while (!signal?.aborted && this.#errors.length === 0) {
        // Submissions, freed slots and the ends of attempts wake it. Scheduled jobs are found by polling.
        const woken = new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
        try {
          const found = await this.#turn(heart, signal);
          pause = PAUSES[0];
          if (!(found && this.#room > 0) && !signal?.aborted) await firstOf(woken, poll);
        } catch (error) {
          if (!passes(error)) throw error;
          await firstOf(woken, pause);
          pause = Math.min(2 * pause, PAUSES[1]);
        }
      }
    } finally {
      await Promise.all(this.#running);
      signal?.removeEventListener("abort", wakeUp);
      signals?.end();
      await heart.end();
    }
    if (this.#errors.length > 0) throw this.#errors[0];
  }

  get #room(): number {
    return Math.min(this.#concurrency - this.#running.size, 1000);
  }

  /** Starts as many jobs as handlers are idle. Returns whether there was any. */
  async #turn(heart: Heart, signal: AbortSignal | undefined): Promise<boolean> {
    for (let job = this.#lost[0]; job; job = this.#lost[0]) {
      await this.#weir.fail(this.#database.run, job, "the worker lost its connection");
      this.#lost.shift();
    }
    let found = false;
    for (const queue of [...this.#queues]) {
      // A claimed job holds its slot, so it must not wait for a handler.
      const room = this.#room;
      if (room <= 0 || signal?.aborted || !heart.beats()) break;
      const { headroom = 1 } = this.#options;
      const jobs = await this.#weir.claim(this.#database.run, queue, this.#worker, room, headroom);
      for (const job of jobs) this.#start(job, heart);
      if (jobs.length === 0) continue;
      found = true;
      // The other queues are next.
      this.#queues.push(...this.#queues.splice(this.#queues.indexOf(queue), 1));
    }
    return found;
  }

  #start(job: Job, heart: Heart): void {
    const attempt = heart
      .during(job, () => this.#attempt(job))
      .catch((error) => {
        if (passes(error)) this.#lost.push(job);
        else this.#errors.push(error);
      })
      .finally(() => {
        this.#running.delete(attempt);
        this.#wake();
      });
    this.#running.add(attempt);
  }

  async #attempt(job: Job): Promise<void> {
    try {
      await this.#database.begin(async (transaction) => {
        await this.#weir.complete(transaction, job, await this.#handle(transaction, job));
      });
    } catch (failure) {
      const error = failure instanceof RolledBack ? failure.cause : failure;
      if (error instanceof FencedOut) return;
      if (error === failure && passes(error)) throw error;
      const message = error instanceof Error ? error.message : String(error);
      await this.#weir.fail(this.#database.run, job, message);
    }
  }

  #beat(channel: string, wake: () => void): Heart {
    const open = () => this.#database.open(channel, wake);
    let own = open();
    const beat = async (attempts: Job[]): Promise<AttemptState[]> => {
      let states: AttemptState[] | undefined;
      const beaten = this.#weir.heartbeat(own.run, this.#worker, attempts).then((answer) => {
        states = answer;
      });
      try {
        await firstOf(beaten, HANGING);
        if (states) return states;
        throw new Error("the database does not answer");
      } catch (error) {
        beaten.catch(() => {});
        // A connection over a dead network would hang for minutes.
        void own.end().catch(() => {});
        own = open();
        throw error;
      }
    };
    return new Heart(beat, () => own.end());
  }
}

/** The transactions of another library. */
function beginOf(begin: Begin<Runner>): Begin<Runner> {
  return async (work) => {
    let failure: RolledBack | undefined;
    try {
      await begin(async (transaction) => {
        try {
          await work(transaction);
        } catch (error) {
          failure = new RolledBack(error);
          throw error;
        }
      });
    } catch (error) {
      throw failure ?? error;
    }
  };
}

/**
 * The transaction, which throws once its connection is closed. The library sends a later statement over the next connection
 * in its place, outside of any transaction, and without one it ends the process.
 */
function whileOpen(transaction: TransactionSql, isClosed: () => boolean): TransactionSql {
  const open = (of: TransactionSql): TransactionSql => {
    if (isClosed()) throw new Lost("the connection is lost");
    return of;
  };
  return new Proxy(transaction, {
    apply: (of, self, values) => Reflect.apply(open(of), self, values),
    get: (of, name) => Reflect.get(open(of), name),
  });
}

async function postgresDatabase(sql: Sql): Promise<Database> {
  // Only programs that use the package have it.
  const { default: postgres } = await import("postgres");
  const begin: Begin<TransactionSql> = async (work) => {
    let closed = false;
    const never = new Promise<void>(() => {});
    const attempted = sql.begin(async (transaction) => {
      try {
        await work(whileOpen(transaction, () => closed));
      } catch (error) {
        // begin() rejects once the connection is closed. A rollback that it sends after that ends the process
        // (https://github.com/porsager/postgres/issues/1208). A handler's other connections have such errors as well.
        if (closesConnection(error)) await firstOf(never, CLOSING);
        if (closed) await never;
        throw new RolledBack(error);
      }
    });
    attempted.catch(() => {
      closed = true;
    });
    await attempted;
  };
  return {
    run: sql,
    begin,
    open(channel, wake) {
      const options = { ...(sql.options as object), max: 1, idle_timeout: 0, connect_timeout: 5, onnotice: () => {} };
      const own = postgres(options as PostgresOptions<Record<string, never>>);
      void own.listen(channel, wake, wake).catch(() => {});
      return { run: own, end: () => own.end({ timeout: 1 }) };
    },
    end() {},
  };
}

/** The members of a pool that create a client. */
interface PgClients {
  Client: new (
    options: object,
  ) => Pick<PgClient, "query"> & {
    connect(): Promise<unknown>;
    end(): Promise<void>;
    on(event: "error" | "notification", listener: () => void): unknown;
  };
  options: object;
}

function pgDatabase(pool: PgPool): Database {
  // Without a listener, the error of an idle connection ends the process.
  const ignore = () => {};
  pool.on("error", ignore);
  const begin: Begin<PgClient> = async (work) => {
    const client = await pool.connect();
    let lost: Error | undefined;
    const lose = (error: Error) => {
      lost = error;
    };
    client.on("error", lose);
    try {
      await client.query("BEGIN");
      try {
        await work(client);
      } catch (error) {
        try {
          await client.query("ROLLBACK");
        } catch (failure) {
          lost ??= failure as Error;
          throw new Lost("the connection is lost", { cause: error });
        }
        throw new RolledBack(error);
      }
      await client.query("COMMIT");
    } finally {
      client.off("error", lose);
      client.release(lost);
    }
  };
  return {
    run: pool,
    begin,
    open(channel, wake) {
      const { Client, options } = pool as unknown as PgClients;
      const own = new Client({ ...options, connectionTimeoutMillis: 5000 });
      own.on("error", ignore);
      own.on("notification", wake);
      const ready = own.connect().then(async () => {
        await own.query(`LISTEN "${channel.replaceAll('"', '""')}"`);
        wake();
      });
      ready.catch(() => {});
      return {
        run: async (text: string, values: (string | null)[]) => {
          await ready;
          return own.query(text, values);
        },
        // Over a dead network, it would wait for minutes.
        end: () => firstOf(own.end(), CLOSING),
      };
    },
    end: () => pool.off("error", ignore),
  };
}

/** The connection of a transaction was lost. */
class Lost extends Error {
  readonly code = "CONNECTION_CLOSED";
}

/** The rows of `SELECT columns`, by the interface of each library. */
async function rowsOf(
  runner: Runner,
  columns: string[],
  from: string,
  values: (string | null)[],
): Promise<(string | null)[][]> {
  const texts = columns.map((column) => `${column}::text`).join(", ");
  if ("unsafe" in runner) {
    // Raw, so that the options `transform` and `types` have no effect.
    const rows = (await runner.unsafe(`SELECT ${texts} ${from}`, values).raw()) as unknown as (Uint8Array | null)[][];
    return rows.map((row) => row.map((value) => (value === null ? null : new TextDecoder().decode(value))));
  }
  // One column, so that its name does not matter.
  const answer = await queryOf(runner)(`SELECT json_build_array(${texts})::text AS weir ${from}`, values);
  const rows = Array.isArray(answer) ? answer : (answer as { rows: object[] }).rows;
  return rows.map((row: object) => {
    const [value] = Object.values(row);
    // A plugin may have parsed JSON.
    const cells: unknown[] = typeof value === "string" ? JSON.parse(value) : value;
    return cells.map((cell) => (cell === null || typeof cell === "string" ? cell : JSON.stringify(cell)));
  });
}

/** Runs statements with any of these. */
export function queryOf(runner: Runner): Query {
  if ("unsafe" in runner) return (text, values) => runner.unsafe(text, values);
  if (typeof runner === "function") return runner;
  if ("$queryRawUnsafe" in runner) return (text, values) => runner.$queryRawUnsafe(text, ...values);
  if ("executeQuery" in runner)
    return (text, parameters) => {
      const query = { kind: "RawNode", sqlFragments: [text], parameters: [] };
      return runner.executeQuery({ sql: text, parameters, query, queryId: { queryId: randomUUID() } } as never);
    };
  // Drizzle has a member `query` that is no function.
  if ("query" in runner && typeof runner.query === "function") return (text, values) => runner.query(text, values);
  return (sql, params) => {
    const built = { getSQL: () => ({ toQuery: () => ({ sql, params }) }) };
    return (runner as { execute(query: unknown): PromiseLike<unknown> }).execute(built);
  };
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
  // Some errors of `pg` have no code.
  if (error instanceof Error && /^(Connection terminated|Client has encountered a connection)/.test(error.message))
    return true;
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
