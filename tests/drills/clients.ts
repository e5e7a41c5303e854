import { randomUUID } from "node:crypto";
import { sleep } from "../../scripts/lib/sleep.ts";
import { type Caller, statusOnCloudflare } from "../whole/jobs.ts";
import { goFile } from "../whole/samples.ts";

/** How often a client comes. */
const every = 250;

/** Who has waited this long for its result was not served as on a good day. */
export const patience = 2_000;

/** A client that wants one job done: it submits until it is accepted, always with the same key. */
export interface Visit {
  key: string;
  user: string;
  /** When it came, in milliseconds of the process's clock. */
  at: number;
  /** When it was told that its job is completed, if at its first try; otherwise nothing. */
  served?: number;
  /** What it was refused with before. */
  refusals: string[];
  job?: number;
}

/** Clients, four a second, each a user of its own, until they are told to stop. */
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

  /** No new ones; resolves when all that came have been accepted. */
  async stop(): Promise<void> {
    this.#stopped = true;
    await this.#coming;
    await Promise.all(this.#open);
  }

  /**
   * When the service was as on a good day again: from this visit on, two seconds of visits in a row were served at
   * their first try and in time. Nothing while that is not so.
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

/** What it was refused with; nothing when it was accepted. */
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
