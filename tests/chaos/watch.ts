import { setTimeout as sleep } from "node:timers/promises";
import type postgres from "postgres";
import type { User } from "./users.ts";

/** The pause between two checks, in milliseconds. */
const every = 5;

/**
 * Descriptions of violations: holders with more slots in use than their burst (by the rows and by the counter), and
 * windows over their limit. Also two numbers for the report:
 * - how many seconds the oldest attempt of Weir's workers has held its slot
 * - how many jobs are claimed beyond the burst, which the guard will snooze
 */
const look = `
  WITH known AS (
    SELECT * FROM jsonb_to_recordset($1) AS k (id uuid, "atOnce" int, month int, minute int)
  ), held AS (
    SELECT r.holder, count(r.admitted_at) AS slots,
           count(*) FILTER (WHERE j.state = 'running') AS running,
           max(extract(epoch FROM clock_timestamp() - j.attempted_at)::float8)
             FILTER (WHERE j.state = 'running' AND r.admitted_at IS NOT NULL
                       AND j.attempted_by[array_upper(j.attempted_by, 1)] LIKE 'weir\\_%') AS oldest
    FROM quota_reservations r JOIN river_job j ON j.id = r.job_id GROUP BY 1
  ), over AS (
    SELECT format('holder %s: %s slots given, of %s', k.id, h.slots, k."atOnce") AS what
    FROM held h JOIN known k ON k.id = h.holder WHERE h.slots > k."atOnce"
    UNION ALL
    SELECT format('holder %s: %s slots counted, of %s', k.id, h.slots_in_use, k."atOnce")
    FROM holders h JOIN known k ON k.id = h.holder WHERE h.slots_in_use > k."atOnce"
    UNION ALL
    SELECT format('user %s: used %s + reserved %s in a %s, of %s', b.user_id, b.used, b.reserved, b.span,
                  CASE b.span WHEN 'month' THEN k.month ELSE k.minute END)
    FROM quota_balances b JOIN known k ON k.id = b.user_id
    WHERE b.used + b.reserved > CASE b.span WHEN 'month' THEN k.month WHEN 'minute' THEN k.minute END
  )
  SELECT (SELECT json_agg(what) FROM over) AS over, (SELECT max(oldest) FROM held) AS oldest,
         (SELECT sum(greatest(h.running - k."atOnce", 0))::int FROM held h JOIN known k ON k.id = h.holder) AS beyond`;

export interface Sample {
  over: string[];
  oldest: number;
  beyond: number;
}

export async function sample(admin: postgres.Sql, users: User[]): Promise<Sample> {
  const [row] = await admin.unsafe(look, [admin.json(users as never)], { prepare: true });
  return { over: row?.over ?? [], oldest: row?.oldest ?? 0, beyond: row?.beyond ?? 0 };
}

/** Checks every holder and window as often as possible, bypassing the proxy, until it is stopped. */
export class Watch {
  samples = 0;
  /** Each violation once, with the time of its first occurrence. */
  readonly seen = new Set<string>();
  /** The longest time that an attempt has held its slot, in seconds. */
  longest = 0;
  /** The number of samples with jobs claimed beyond their holder's burst, which the guard will snooze. */
  beyond = 0;
  #stopped = false;
  #over: Promise<void>;

  constructor(connect: () => postgres.Sql, users: User[]) {
    this.#over = this.#look(connect(), users);
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    await this.#over;
  }

  async #look(admin: postgres.Sql, users: User[]): Promise<void> {
    for (let next = performance.now(); !this.#stopped; next = Math.max(next + every, performance.now())) {
      await sleep(Math.max(0, next - performance.now()));
      try {
        const { over, oldest, beyond } = await sample(admin, users);
        this.samples++;
        for (const what of over) this.seen.add(what);
        this.longest = Math.max(this.longest, oldest);
        if (beyond > 0) this.beyond++;
      } catch {
        // The server is down, so there is nothing to check.
        await sleep(50);
      }
    }
    await admin.end({ timeout: 2 });
  }
}
