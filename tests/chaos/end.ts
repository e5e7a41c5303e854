import { setTimeout as sleep } from "node:timers/promises";
import type postgres from "postgres";
import type { Installation } from "./installation.ts";

/**
 * A River client in Go has no heartbeat, so the jobs of a dead one are taken over after an hour. For clients that are
 * known to be dead, this ends the hour immediately.
 */
export async function bury(admin: postgres.Sql, { dead }: Installation): Promise<void> {
  // The session may have started while the database was read-only.
  await admin`SET default_transaction_read_only = off`;
  await admin`
    UPDATE river_job SET attempted_at = attempted_at - interval '2 hours'
    WHERE state = 'running' AND attempted_by[array_upper(attempted_by, 1)] IN (
        SELECT jsonb_array_elements_text(${admin.json([...dead])}))
      AND attempted_at > now() - interval '1 hour'`;
}

/** Repeats `bury`, because statements of a dead client may arrive late. Returns a function that stops it. */
export function burying(installation: Installation): () => Promise<void> {
  let stopped = false;
  const over = (async () => {
    const admin = installation.database.admin();
    for (; !stopped; await sleep(500)) await bury(admin, installation).catch(() => {});
    await admin.end({ timeout: 2 });
  })();
  return () => {
    stopped = true;
    return over;
  };
}

/**
 * After the last fault: the seconds until every slot of an earlier attempt is free again; `undefined` if that takes
 * longer than `within` seconds.
 */
export async function slotsBack(admin: postgres.Sql, within: number): Promise<number | undefined> {
  const begun = performance.now();
  // Not by their start times, which come from clocks that jump.
  const [before] = await admin`
    SELECT coalesce(json_agg(json_build_object('id', id, 'attempt', attempt)), '[]')::text AS all
    FROM river_job WHERE state = 'running'`;
  for (;;) {
    const [row] = await admin.unsafe(held, [before?.all]);
    const seconds = (performance.now() - begun) / 1000;
    if (row?.held === 0) return seconds;
    if (seconds > within) return undefined;
    await sleep(50);
  }
}

const held = `
  SELECT count(*)::int AS held
  FROM json_to_recordset($1::text::json) AS b (id bigint, attempt int)
  JOIN river_job j ON j.id = b.id AND j.attempt = b.attempt AND j.state = 'running'
  JOIN quota_reservations r ON r.job_id = j.id
  WHERE r.admitted_at IS NOT NULL`;

/**
 * Waits until every job has ended and holds nothing. Returns the remaining jobs if that takes longer than `within`
 * seconds.
 */
export async function drained(admin: postgres.Sql, within: number): Promise<string[]> {
  for (const deadline = performance.now() + within * 1000; ; await sleep(200)) {
    const left = await admin`
      SELECT format('job %s is %s in attempt %s (%s), slot %s', j.id, j.state, j.attempt,
                    j.attempted_by[array_upper(j.attempted_by, 1)], r.admitted_at) AS what
      FROM river_job j LEFT JOIN quota_reservations r ON r.job_id = j.id
      WHERE j.args ? 'order' AND (j.finalized_at IS NULL OR r.job_id IS NOT NULL)`;
    if (left.length === 0) return [];
    if (performance.now() > deadline) return left.map(({ what }) => what as string);
    // A Go client's retries, by River's default policy, wait for minutes.
    await admin`
      UPDATE river_job SET scheduled_at = now()
      WHERE args ? 'order' AND state = 'retryable' AND scheduled_at > now() + interval '10 s'`;
  }
}
