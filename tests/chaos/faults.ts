import { setTimeout as sleep } from "node:timers/promises";
import type postgres from "postgres";
import { readOnly, withoutConnections } from "../drills/faults.ts";
import type { DatabaseBehindProxy } from "../drills/server.ts";
import { freeze } from "../harness/processes.ts";
import type { Installation } from "./installation.ts";
import type { Part } from "./part.ts";
import { type Fault, type Kind, whereOf } from "./plan.ts";

type Does = (installation: Installation, fault: Fault) => Promise<void>;

const does: Record<Kind, Does> = {
  "killed (-9)": (installation, fault) => partOf(installation, fault).kill(),
  "drained (SIGTERM) and started again": (installation, fault) => partOf(installation, fault).drain(),
  "frozen for a moment": (installation, fault) => partOf(installation, fault).frozen(fault.lasts),
  "frozen past the lease": (installation, fault) => partOf(installation, fault).frozen(fault.lasts),
  "PostgreSQL restarted, fast": restarted("SIGINT"),
  "PostgreSQL restarted, immediate": restarted("SIGQUIT"),
  "PostgreSQL killed (-9) and started again": restarted("SIGKILL"),
  async "PostgreSQL frozen"({ database }, { lasts }) {
    const thaw = freeze(database.pid());
    await sleep(lasts).finally(thaw);
  },
  async "PostgreSQL read-only"({ database }, { lasts }) {
    await readOnly(database, "on");
    await sleep(lasts);
    await readOnly(database, "off");
    // Open sessions stay writable, unlike those of a real standby.
    await asAdmin(database, terminate);
  },
  "no connection left": ({ database }, { lasts }) => withoutConnections(database, lasts / 1000),
  "all connections terminated": ({ database }) => asAdmin(database, terminate),
  "each COMMIT takes 100 ms longer": ({ database }, { lasts }) =>
    asAdmin(database, async (sql) => {
      await sql`ALTER SYSTEM SET commit_delay = 100000`;
      await sql`ALTER SYSTEM SET commit_siblings = 0`;
      await sql`SELECT pg_reload_conf()`;
      await sleep(lasts);
      await sql`ALTER SYSTEM RESET commit_delay`;
      await sql`SELECT pg_reload_conf()`;
    }),
  async "network delayed"({ database: { proxy } }, { lasts, count }) {
    proxy.delay(count * 20);
    await sleep(lasts);
    proxy.delay(0);
  },
  async "network stands still"({ database: { proxy } }, { lasts }) {
    proxy.freeze();
    await sleep(lasts);
    proxy.thaw();
  },
  async "all connections dropped"({ database: { proxy } }) {
    proxy.drop();
  },
  "cut before COMMIT": ({ database }, fault) => commitsFail(database, fault, "before"),
  "cut after COMMIT": ({ database }, fault) => commitsFail(database, fault, "after"),
  "a pooler's error after COMMIT": ({ database }, fault) => commitsFail(database, fault, "pooler"),
  "PostgreSQL's clock jumps ahead": (installation, fault) => shown(installation, "postgres", fault, 1),
  "PostgreSQL's clock jumps back": (installation, fault) => shown(installation, "postgres", fault, -1),
  "a process's clock jumps ahead": (installation, fault) => shown(installation, fault.part, fault, 1),
  "a process's clock jumps back": (installation, fault) => shown(installation, fault.part, fault, -1),
  "rows locked": ({ database }, { lasts, count }) =>
    asAdmin(database, async (sql) => {
      await sql.unsafe(`DO $$ BEGIN
        PERFORM FROM holders ORDER BY random() LIMIT ${count} FOR UPDATE SKIP LOCKED;
        PERFORM FROM river_job WHERE finalized_at IS NULL ORDER BY random() LIMIT ${count} FOR UPDATE SKIP LOCKED;
        PERFORM pg_sleep(${lasts / 1000});
      END $$`);
    }),
  "deadlocks provoked": ({ database }, { lasts }) =>
    asAdmin(database, async (sql) => {
      for (const until = performance.now() + lasts; performance.now() < until; ) await crossed(sql);
    }),
};

/** Runs all faults of a plan, each at its time, and not before an earlier fault of the same part has ended. */
export async function happen(
  installation: Installation,
  plan: Fault[],
  report: (fault: Fault) => void,
): Promise<{ failures: string[] }> {
  const begun = performance.now();
  const busy = new Map<string, Promise<void>>();
  const failures: string[] = [];
  const all = plan.map(async (fault) => {
    await sleep(Math.max(0, fault.at - (performance.now() - begun)));
    const where = whereOf(fault.kind, fault.part);
    const before = busy.get(where) ?? Promise.resolve();
    const now = before.then(async () => {
      report(fault);
      try {
        await does[fault.kind](installation, fault);
      } catch (error) {
        // The error of an outside session that another fault has ended.
        failures.push(`${fault.kind}: ${error instanceof Error ? error.message : error}`);
      }
      await restored(installation, fault);
    });
    busy.set(where, now);
    await now;
  });
  await Promise.all(all);
  return { failures };
}

/** Usually more than a lease. */
export function secondsOff(count: number): number {
  return 5 * count;
}

/** Changes a part's clock by up to a minute, then sets it back, which is a jump in the other direction. */
async function shown(
  { clocks }: Installation,
  name: string | undefined,
  { count, lasts }: Fault,
  sign: number,
): Promise<void> {
  const clock = clocks.get(name ?? "");
  if (!clock) throw new Error(`${name} has no separate clock`);
  clock.set(sign * secondsOff(count));
  await sleep(lasts);
  clock.set(0);
}

/** Reverts what the session could not revert, because another fault ended it. */
async function restored({ database }: Installation, { kind }: Fault): Promise<void> {
  if (kind !== "PostgreSQL read-only" && kind !== "each COMMIT takes 100 ms longer") return;
  for (;;) {
    try {
      await readOnly(database, "off");
      await asAdmin(database, async (sql) => {
        await terminate(sql);
        await sql`ALTER SYSTEM RESET commit_delay`;
        await sql`SELECT pg_reload_conf()`;
      });
      return;
    } catch {
      await sleep(200);
    }
  }
}

function partOf({ parts }: Installation, { part: name }: Fault): Part {
  const part = parts.find((each) => each.name === name);
  if (!part) throw new Error(`unknown part ${name}`);
  return part;
}

function restarted(signal: NodeJS.Signals): Does {
  return async ({ database }) => {
    await database.stopServer(signal);
    for (let tries = 1; ; tries++) {
      try {
        await database.startServer();
        return;
      } catch (error) {
        // Processes of the killed server may still hold its memory.
        if (tries === 10) throw error;
        await sleep(500);
      }
    }
  };
}

/** Fails the first `count` COMMITs that arrive within the fault's duration. */
async function commitsFail(
  { proxy }: DatabaseBehindProxy,
  { count, lasts }: Fault,
  how: "before" | "after" | "pooler",
): Promise<void> {
  await Promise.race([proxy.failCommits(count, how), sleep(lasts)]);
  void proxy.failCommits(0, how);
}

/** Locks a job's row and its holder's row in the opposite order of settlements. Either side may lose. */
async function crossed(sql: postgres.Sql): Promise<void> {
  // The session with the longer deadlock timeout does not detect the deadlock, and is not ended.
  const patience = Math.random() < 0.7 ? "10s" : "10ms";
  try {
    await sql.unsafe(`DO $$ DECLARE job bigint; owner uuid; BEGIN
      PERFORM set_config('deadlock_timeout', '${patience}', true);
      SELECT j.id, r.holder INTO job, owner FROM river_job j JOIN quota_reservations r ON r.job_id = j.id
      WHERE j.state IN ('running', 'available') ORDER BY random() LIMIT 1 FOR UPDATE OF j SKIP LOCKED;
      PERFORM pg_sleep(0.03);
      PERFORM FROM holders WHERE holder = owner FOR UPDATE;
    END $$`);
  } catch (error) {
    if ((error as { code?: string }).code !== "40P01") throw error;
  }
}

async function terminate(sql: postgres.Sql): Promise<void> {
  await sql`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'`;
}

async function asAdmin(database: DatabaseBehindProxy, work: (sql: postgres.Sql) => Promise<void>): Promise<void> {
  const sql = database.admin();
  try {
    await work(sql);
  } finally {
    await sql.end({ timeout: 2 });
  }
}
