import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type postgres from "postgres";
import { session } from "../drills/server.ts";
import type { Installation } from "./installation.ts";
import { Seed } from "./seed.ts";
import type { User } from "./users.ts";

/** The timeout of a request in milliseconds. Then the client retries, or gives up. */
const patience = 10_000;

/** Slower answers, in milliseconds, count as unavailability. */
const inTime = 2_000;

/** A client's submission and the answers to it. Weir does not know these records. */
export interface Entry {
  user: User;
  /** The numbers in the arguments of its jobs. Several are a batch: all or none. */
  numbers: number[];
  service: string;
  /** By HTTP, or by `weir_submit` in the client's transaction. */
  way: "http" | "sql";
  /** With an Idempotency-Key, the client repeats the request until it gets an answer; without one, it sends it once. */
  key: string | undefined;
  /** The acknowledged jobs. */
  jobs?: number[];
  refused: boolean;
  /** Whether some attempt got no answer with an outcome. */
  unknown: boolean;
  /** Whether the client cancelled it. */
  cancelled: boolean;
}

/** A submission request: its start, its duration, and whether it was answered in time. */
export interface Request {
  at: number;
  took: number;
  served: boolean;
}

type Told = { jobs: number[] } | "refused" | "unknown";

/** Clients that submit at random, one for each user, until they are stopped. */
export class Clients {
  readonly entries: Entry[] = [];
  readonly requests: Request[] = [];
  /** Answers that no client should get, such as 500. */
  readonly strange: string[] = [];
  #installation: Installation;
  #sql: postgres.Sql;
  #pause: number;
  #next = 0;
  #stopped = false;
  #abandoned = false;
  #open: Promise<unknown>[];

  /** `pause`: the average time between two submissions of a user, in milliseconds. */
  constructor(installation: Installation, users: User[], options: { seed: number; pause: number }) {
    this.#installation = installation;
    this.#pause = options.pause;
    this.#sql = session(installation.url, { max: 6, prepare: false });
    this.#open = users.map((user, n) => this.#live(user, new Seed(options.seed * 1_000 + n)));
  }

  /** Stops new submissions. Resolves when all submissions with a key have an answer. */
  async stop(): Promise<void> {
    this.#stopped = true;
    await Promise.all(this.#open);
    await this.#sql.end({ timeout: 2 });
  }

  /** Stops new submissions and all retries. The outcomes no longer matter. */
  abandon(): void {
    this.#stopped = true;
    this.#abandoned = true;
  }

  async #live(user: User, draws: Seed): Promise<void> {
    const under = new Set<Promise<void>>();
    while (!this.#stopped) {
      const entry = this.#drawn(user, draws);
      this.entries.push(entry);
      const over = this.#pursue(entry, draws).finally(() => under.delete(over));
      under.add(over);
      await sleep(draws.next() * 2 * this.#pause);
    }
    await Promise.all(under);
  }

  #drawn(user: User, draws: Seed): Entry {
    const way = draws.chance(0.25) ? "sql" : "http";
    const count = way === "http" && draws.chance(0.1) ? draws.between(2, 4) : 1;
    return {
      user,
      numbers: Array.from({ length: count }, () => this.#next++),
      service: draws.pick(this.#installation.services),
      way,
      key: draws.chance(0.6) ? randomUUID() : undefined,
      refused: false,
      unknown: false,
      cancelled: false,
    };
  }

  async #pursue(entry: Entry, draws: Seed): Promise<void> {
    const fails = draws.chance(0.08) ? 1 : 0;
    const cancels = draws.chance(0.05);
    for (;;) {
      const at = performance.now();
      const outcome = await (entry.way === "http" ? this.#byHttp(entry, fails) : this.#bySql(entry, fails));
      const took = performance.now() - at;
      this.requests.push({ at, took, served: outcome !== "unknown" && took <= inTime });
      if (outcome === "refused") entry.refused = true;
      else if (outcome === "unknown") entry.unknown = true;
      else entry.jobs = outcome.jobs;
      if (outcome !== "unknown" || !entry.key || this.#abandoned) break;
      await sleep(100 + Math.random() * 400);
    }
    const [job] = entry.jobs ?? [];
    if (!cancels || job === undefined) return;
    entry.cancelled = true;
    // The cancellation may arrive too late, or not at all.
    await this.#fetch(entry, `/api/jobs/${job}`, { method: "DELETE" }).catch(() => undefined);
  }

  async #byHttp(entry: Entry, fails: number): Promise<Told> {
    const args = entry.numbers.map((order) => ({ order, fails }));
    const isBatch = args.length > 1;
    try {
      const response = await this.#fetch(entry, `/api/jobs/${entry.service}${isBatch ? "/batch" : ""}`, {
        method: "POST",
        headers: { "Content-Type": "application/json", ...(entry.key ? { "Idempotency-Key": entry.key } : {}) },
        body: JSON.stringify(isBatch ? args : args[0]),
      });
      const text = await response.text();
      if (response.status === 202) {
        const body = JSON.parse(text) as { job?: { id: number }; jobs?: { id: number }[] };
        return { jobs: (body.jobs ?? (body.job ? [body.job] : [])).map(({ id }) => id) };
      }
      if (response.status === 429) return "refused";
      if (response.status !== 503) this.strange.push(`${response.status} ${text.slice(0, 300)}`);
      return "unknown";
    } catch {
      return "unknown";
    }
  }

  async #bySql(entry: Entry, fails: number): Promise<Told> {
    const [order = 0] = entry.numbers;
    const options = entry.key ? { idempotency_key: entry.key } : {};
    // One message with both statements is one transaction. If its connection breaks, nothing of it is left.
    const transaction = `
      SELECT outcome, job_id::int FROM weir_submit('${entry.user.id}', '${entry.service}',
        '${JSON.stringify({ order, fails })}', NULL, '${JSON.stringify(options)}');
      COMMIT`;
    const asked = this.#sql.unsafe(transaction).then(
      ([row]): Told => {
        return row?.job_id == null ? "refused" : { jobs: [row.job_id as number] };
      },
      () => "unknown" as const,
    );
    // A client behind a frozen proxy gets no error.
    const late = sleep(patience).then(() => "unknown" as const);
    return Promise.race([asked, late]);
  }

  #fetch(entry: Entry, path: string, init: RequestInit): Promise<Response> {
    const { origins, key } = this.#installation;
    const origin = origins[Math.floor(Math.random() * origins.length)];
    const headers = { Authorization: `Bearer ${key}`, "Weir-On-Behalf-Of": entry.user.id, ...init.headers };
    return fetch(`${origin}${path}`, { ...init, headers, signal: AbortSignal.timeout(patience) });
  }
}
