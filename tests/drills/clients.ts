import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { type Caller, statusOnCloudflare } from "../whole/jobs.ts";
import { goFile } from "../whole/samples.ts";

/** The interval between two clients. */
const every = 250;

/** A client that waits longer for its result was not served normally. */
export const patience = 2_000;

/** A client that needs one job: it submits until it is accepted, always with the same key. */
export interface Visit {
  key: string;
  user: string;
  /** When it started, in milliseconds of the process's clock. */
  at: number;
  /** When its job was completed, if the first try was accepted; otherwise `undefined`. */
  served?: number;
  /** The errors before it was accepted. */
  refusals: string[];
  job?: number;
}

/** Starts four clients per second, each as a separate user, until it is stopped. */
export class Clients {
  readonly visits: Visit[] = [];
  #open = new Set<Promise<void>>();
  #stopped = false;
  #coming: Promise<void>;

  constructor(caller: (user: string) => Promise<Caller>) {
    this.#coming = (async () => {
      for (let next = performance.now(); !this.#stopped; next += every) {
        await sleep(Math.max(0, next - performance.now()));
        const visit: Visit = { key: randomUUID(), user: randomUUID(), at: performance.now(), refusals: [] };
        this.visits.push(visit);
        const over = come(await caller(visit.user), visit).finally(() => this.#open.delete(over));
        this.#open.add(over);
      }
    })();
  }

  /** Starts no new clients. Resolves when all have been accepted. */
  async stop(): Promise<void> {
    this.#stopped = true;
    await this.#coming;
    await Promise.all(this.#open);
  }

  /**
   * When the service was normal again: the first visit of two seconds in which all were served in time at their first
   * try. `undefined` if that has not happened.
   */
  recovered(after: number): number | undefined {
    const needed = Math.ceil(patience / every);
    const later = this.visits.filter(({ at }) => at >= after);
    let run = 0;
    for (const [place, visit] of later.entries()) {
      run = visit.served !== undefined ? run + 1 : 0;
      if (run === needed) return later[place - needed + 1]?.served;
    }
    return undefined;
  }
}

async function come(caller: Caller, visit: Visit): Promise<void> {
  for (;;) {
    const refusal = await submit(caller, visit);
    if (!refusal) break;
    visit.refusals.push(refusal);
    await sleep(200 + Math.random() * 300);
  }
  if (visit.refusals.length > 0) return;
  while (performance.now() - visit.at < patience) {
    const job = await caller.get<{ status: string }>(`/api/jobs/${visit.job}`).catch(() => undefined);
    if (job?.status === "completed") {
      visit.served = performance.now();
      return;
    }
    await sleep(50);
  }
}

/** The error, or `undefined` if it was accepted. */
async function submit(caller: Caller, visit: Visit): Promise<string | undefined> {
  try {
    const response = await caller.submit("analysis", { files: [goFile] }, { "Idempotency-Key": visit.key });
    if (response.status !== 202) return String(await statusOnCloudflare(response));
    visit.job = ((await response.json()) as { job: { id: number } }).job.id;
    return undefined;
  } catch {
    return "no answer";
  }
}
