import { setTimeout as sleep } from "node:timers/promises";
import type postgres from "postgres";
import { Clients } from "../chaos/clients.ts";
import { drained } from "../chaos/end.ts";
import { startInstallation } from "../chaos/installation.ts";
import { judge } from "../chaos/judge.ts";
import { makeUsers } from "../chaos/users.ts";
import type { Lifetime } from "../harness/lifetime.ts";
import { compare, type Line, type Window } from "./compare.ts";
import { Control } from "./control.ts";
import { type Moment, measure } from "./measure.ts";

const userCount = 12;

/** The average pause between two submissions of a user, in milliseconds. */
const pause = 700;

/** The pause between two measurements, in milliseconds. */
const every = 5_000;

/** The maximum time for all accepted jobs to end, in seconds. */
const longest = 120;

export interface Result {
  lines: Line[];
  /** The same violations as in chaos runs. */
  violations: string[];
  submissions: number;
  completed: number;
}

/**
 * Constant load from users of all plans, with jobs that fail, are cancelled or are refused. The first twelfth of the
 * time is for warming up. The sixth after it is compared with the last sixth.
 */
export async function soak(
  lifetime: Lifetime,
  options: { minutes: number; logs: string; fleet: string | undefined; report: (line: string) => void },
): Promise<Result> {
  const span = options.minutes * 60_000;
  const installation = await startInstallation(lifetime, {
    logs: options.logs,
    fleet: options.fleet,
    each: 1,
    direct: true,
  });
  const users = await makeUsers(installation.env, userCount, { minute: 60 });
  const admin = installation.database.admin();
  const clients = new Clients(installation, users, { seed: 1, pause });
  const control = await Control.start(admin);
  const begun = performance.now();
  const epoch = Date.now();
  const moments: Moment[] = [];
  for (let next = begun; next < begun + span; next += every) {
    await sleep(Math.max(0, next - performance.now()));
    moments.push(await measure(installation, admin));
    if (moments.length % 60 === 0)
      options.report(`${Math.round((performance.now() - begun) / 60_000)} min: ${clients.entries.length} submissions`);
  }
  await sleep(Math.max(0, begun + span - performance.now()));
  await control.stop();
  await clients.stop();
  const left = await drained(admin, longest);
  const window = async (from: number, to: number): Promise<Window> => ({
    moments: moments.filter(({ at }) => at >= begun + from && at < begun + to),
    requests: clients.requests.filter(({ at, served }) => served && at >= begun + from && at < begun + to),
    wakes: await wakes(admin, epoch + from, epoch + to),
    commits: control.commits.filter(({ at }) => at >= begun + from && at < begun + to).map(({ took }) => took),
  });
  const lines = compare(await window(span / 12, span / 4), await window((span * 5) / 6, span));
  const verdict = await judge(installation, admin, clients.entries);
  await admin.end({ timeout: 2 });
  return {
    lines,
    violations: [
      ...left,
      ...clients.strange,
      ...verdict.lost,
      ...verdict.doubled,
      ...verdict.charges,
      ...verdict.effectless,
      ...verdict.audit,
      ...installation.parts.flatMap(({ unexpected }) => unexpected),
    ],
    submissions: clients.entries.length,
    completed: verdict.completed,
  };
}

/** The time from promotion to claim, for jobs that had waited for a slot and were claimed in this time. */
async function wakes(admin: postgres.Sql, from: number, to: number): Promise<number[]> {
  const rows = await admin`
    SELECT extract(epoch FROM attempted_at - scheduled_at)::float8 * 1000 AS wake FROM river_job
    WHERE args ? 'order' AND attempt = 1 AND scheduled_at > created_at AND attempted_at >= scheduled_at
      AND attempted_at >= to_timestamp(${from / 1000}) AND attempted_at < to_timestamp(${to / 1000})`;
  return rows.map(({ wake }) => wake as number);
}
