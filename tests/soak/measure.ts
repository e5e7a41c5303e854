import { readFileSync } from "node:fs";
import type postgres from "postgres";
import type { Installation } from "../chaos/installation.ts";
import { descendants } from "../harness/processes.ts";

export interface Table {
  rows: number;
  dead: number;
  bytes: number;
}

/** A measurement at one moment. */
export interface Moment {
  at: number;
  /** By process, in MiB. PostgreSQL's number of backends varies, and each needs some time to reach its full size. */
  memory: Map<string, number>;
  tables: Map<string, Table>;
  /** The number of settlements that took at most this many seconds, since the start of the process. */
  settlements: Map<number, number>;
}

export async function measure(installation: Installation, admin: postgres.Sql): Promise<Moment> {
  const memory = new Map(installation.parts.map(({ name, pid }) => [name, proportional(pid)]));
  const server = installation.database.pid();
  memory.set("postgres' largest process", Math.max(...[server, ...descendants(server)].map(proportional)));
  return {
    at: performance.now(),
    memory,
    tables: await tables(admin),
    settlements: await settlements(installation.metrics.get("work-1") ?? ""),
  };
}

/**
 * The memory of a process in MiB, with shared pages divided by the number of processes that share them. Without shared
 * memory, because PostgreSQL's buffers have a fixed size and fill with its tables.
 */
function proportional(pid: number): number {
  try {
    const rollup = readFileSync(`/proc/${pid}/smaps_rollup`, "utf8");
    const field = (name: string): number => Number(new RegExp(`^${name}:\\s+(\\d+)`, "m").exec(rollup)?.[1] ?? 0);
    return (field("Pss") - field("Pss_Shmem")) / 1024;
  } catch {
    // The backend process has already exited.
    return 0;
  }
}

async function tables(admin: postgres.Sql): Promise<Map<string, Table>> {
  const rows = await admin`
    SELECT relname AS name, n_live_tup::int AS rows, n_dead_tup::int AS dead, pg_total_relation_size(relid)::float8 AS bytes
    FROM pg_stat_user_tables`;
  return new Map(rows.map(({ name, rows, dead, bytes }) => [name as string, { rows, dead, bytes } as Table]));
}

async function settlements(origin: string): Promise<Map<number, number>> {
  const text = await (await fetch(`${origin}/metrics`, { signal: AbortSignal.timeout(10_000) })).text();
  const buckets = text.matchAll(/^weir_settlement_duration_seconds_bucket\{(?:[^}]*,)?le="([^"]+)"[^}]*\} (\d+)/gm);
  const counts = new Map<number, number>();
  for (const [, bound, count] of buckets) {
    const upTo = bound === "+Inf" ? Number.POSITIVE_INFINITY : Number(bound);
    counts.set(upTo, (counts.get(upTo) ?? 0) + Number(count));
  }
  return counts;
}

/** A quantile of the values in buckets between two moments, in milliseconds, as Prometheus would estimate it. */
export function quantileOf(before: Map<number, number>, after: Map<number, number>, quantile: number): number {
  const counts = [...after]
    .map(([bound, count]) => ({ bound, count: count - (before.get(bound) ?? 0) }))
    .sort((one, other) => one.bound - other.bound);
  const wanted = (counts.at(-1)?.count ?? 0) * quantile;
  let below = { bound: 0, count: 0 };
  for (const bucket of counts) {
    if (bucket.count >= wanted && bucket.count > below.count) {
      if (!Number.isFinite(bucket.bound)) return below.bound * 1000;
      const part = (wanted - below.count) / (bucket.count - below.count);
      return (below.bound + (bucket.bound - below.bound) * part) * 1000;
    }
    below = bucket;
  }
  return 0;
}
