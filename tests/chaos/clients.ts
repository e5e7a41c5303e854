import { randomUUID } from "node:crypto";
import type postgres from "postgres";
import { sleep } from "../../scripts/lib/sleep.ts";
import { session } from "../drills/server.ts";
import type { Installation } from "./installation.ts";
import { Seed } from "./seed.ts";
import type { User } from "./users.ts";

/** Who has no answer after this many milliseconds asks again, or gives up. */
const patience = 10_000;

/** An answer that takes longer than this many milliseconds counts as none in the availability. */
const inTime = 2_000;

/** What a client wanted and what it was told: its own ledger, which Weir knows nothing of. */
export interface Entry {
  user: User;
  /** The numbers of its jobs, which their arguments have; several are a batch, all or none. */
  numbers: number[];
  service: string;
  /** By HTTP, or in a transaction of the client's own by `weir_submit`. */
  way: "http" | "sql";
  /** With an Idempotency-Key it asks until it is told something; without one only once. */
  key: string | undefined;
  /** The jobs that were acknowledged. */
  jobs?: number[];
  refused: boolean;
  /** Some attempt had no answer that says what became of it. */
  unknown: boolean;
  /** It asked for its cancellation. */
  cancelled: boolean;
}

/** One request for a submission: when it began, how long it took, and whether it was answered in time, yes or no. */
export interface Request {
  at: number;
  took: number;
  served: boolean;
}

type Told = { jobs: number[] } | "refused" | "unknown";

/** Clients that submit at random, each for a user of its own, until they are told to stop. */
export class Clients {
  readonly entries: Entry[] = [];
  readonly requests: Request[] = [];
  /** Answers that no client can expect, such as 500. */
  readonly strange: string[] = [];
  #installation: Installation;
  #sql: postgres.Sql;
  #pause: number;
  #next = 0;
  #stopped = false;
  #abandoned = false;
  #open: Promise<unknown>[];

  /** `pause`: between two submissions of a user, in milliseconds on average. */
  constructor(installation: Installation, users: User[], options: { seed: number; pause: number }) {
    this.#installation = installation;
    this.#pause = options.pause;
    this.#sql = session(installation.url, { max: 6, prepare: false });
    this.#open = users.map((user, n) => this.#live(user, new Seed(options.seed * 1_000 + n)));
  }

  /** No new ones; resolves when all with a key have an answer. */
  async stop(): Promise<void> {
    this.#stopped = true;
    await Promise.all(this.#open);
    await this.#sql.end({ timeout: 2 });
  }

  /** No new ones, and nobody asks again: what they were told does not matter any more. */
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
      const told = await (entry.way === "http" ? this.#byHttp(entry, fails) : this.#bySql(entry, fails));
      const took = performance.now() - at;
      this.requests.push({ at, took, served: told !== "unknown" && took <= inTime });
      if (told === "refused") entry.refused = true;
      else if (told === "unknown") entry.unknown = true;
      else entry.jobs = told.jobs;
      if (told !== "unknown" || !entry.key || this.#abandoned) break;
      await sleep(100 + Math.random() * 400);
    }
    const [job] = entry.jobs ?? [];
    if (!cancels || job === undefined) return;
    entry.cancelled = true;
    // It may come too late, or not at all.
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
    // One message with both statements is one transaction, of which nothing is left when its connection breaks.
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
    // Whoever stands still behind a proxy is not told that it does.
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
