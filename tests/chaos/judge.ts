import type postgres from "postgres";
import { weir } from "../harness/weir.ts";
import type { Entry } from "./clients.ts";
import type { Installation } from "./installation.ts";

interface Job {
  id: number;
  number: number;
  state: string;
  charges: number;
  charged: number;
  written: number;
}

/** All jobs with their charges, and how many results the Go fleet has written for each. */
const jobs = `
  SELECT j.id::int, (j.args ->> 'order')::int AS number, j.state::text,
         (SELECT count(*)::int FROM usage_events u WHERE u.job_id = j.id) AS charges,
         (SELECT coalesce(sum(u.quota_amount), 0)::int FROM usage_events u WHERE u.job_id = j.id) AS charged,
         (SELECT count(*)::int FROM results r WHERE r.number = (j.args ->> 'order')::int) AS written
  FROM river_job j WHERE j.args ? 'order'`;

/** The result of a run after everything has ended. */
export interface Verdict {
  acknowledged: number;
  completed: number;
  effects: number;
  /** Acknowledged jobs that do not exist, are not the acknowledged job, or never ended. */
  lost: string[];
  /** Jobs that exist although they were refused, or that exist more often than they were submitted. */
  doubled: string[];
  /** Jobs that were not charged exactly once, or were charged but not completed. */
  charges: string[];
  /** Completed jobs without their effect. In Go, where both are one transaction: without exactly one effect. */
  effectless: string[];
  audit: string[];
}

/** Compares the clients' records and the effects with the database, and runs the audit. */
export async function judge(installation: Installation, admin: postgres.Sql, entries: Entry[]): Promise<Verdict> {
  const found = (await admin.unsafe(jobs)) as unknown as Job[];
  const byNumber = Map.groupBy(found, ({ number }) => number);
  const done = installation.effects.perJob();
  const verdict: Verdict = {
    acknowledged: entries.reduce((sum, { jobs }) => sum + (jobs?.length ?? 0), 0),
    completed: found.filter(({ state }) => state === "completed").length,
    effects: [...done.values(), ...found.map(({ written }) => written)].reduce((sum, count) => sum + count, 0),
    lost: [],
    doubled: [],
    charges: [],
    effectless: [],
    audit: await audited(installation),
  };
  const submitted = new Set(entries.flatMap(({ numbers }) => numbers));
  for (const { id, number } of found)
    if (!submitted.has(number)) verdict.doubled.push(`job ${id}, number ${number}, was not submitted by a client`);
  for (const entry of entries) compare(entry, byNumber, done, verdict);
  return verdict;
}

function compare(
  entry: Entry,
  byNumber: Map<number, Job[]>,
  done: Map<number, number>,
  { lost, doubled, charges, effectless }: Verdict,
): void {
  const there = entry.numbers.map((number) => byNumber.get(number) ?? []);
  const what = `${entry.service} ${entry.numbers.join(", ")} of ${entry.user.id}, by ${entry.way}${entry.key ? " with a key" : ""}`;
  const have = there.filter((jobs) => jobs.length > 0).length;
  if (entry.jobs) {
    for (const [place, job] of entry.jobs.entries())
      if (!there[place]?.some(({ id }) => id === job))
        lost.push(`${what}: job ${job} was acknowledged and is not there`);
  } else if (entry.refused && !entry.unknown && have > 0) {
    doubled.push(`${what}: refused, and there all the same`);
  }
  if (have > 0 && have < entry.numbers.length) lost.push(`${what}: only ${have} of a batch are there`);
  for (const jobs of there) {
    if (jobs.length > 1)
      doubled.push(`${what}: there ${jobs.length} times, as jobs ${jobs.map(({ id }) => id).join(", ")}`);
    for (const job of jobs) {
      const isCompleted = job.state === "completed";
      const due = isCompleted ? 1 : 0;
      if (!isCompleted && !(job.state === "cancelled" && entry.cancelled))
        lost.push(`${what}: job ${job.id} is ${job.state}`);
      if (job.charges !== due || job.charged !== due)
        charges.push(`${what}: job ${job.id} (${job.state}) has ${job.charges} charges, of ${job.charged} in all`);
      const effects = entry.service === "analysis" ? job.written : (done.get(job.id) ?? 0);
      const isFine = entry.service === "analysis" ? effects === due : effects >= due;
      if (!isFine) effectless.push(`${what}: job ${job.id} (${job.state}) had its effect ${effects} times`);
    }
  }
}

async function audited({ env }: Installation): Promise<string[]> {
  const ran = await weir(["audit"], env);
  if (ran.code === 0) return [];
  return [
    `weir audit ended with ${ran.code}`,
    ...`${ran.stdout}\n${ran.stderr}`.split("\n").filter((line) => !/^holds|^$/.test(line)),
  ];
}
