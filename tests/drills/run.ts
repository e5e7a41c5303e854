import { setTimeout as sleep } from "node:timers/promises";
import { Failure } from "../../scripts/lib/failure.ts";
import { onExit } from "../../scripts/lib/lifecycle.ts";
import { say } from "../../scripts/lib/progress.ts";
import type { Lifetime } from "../harness/lifetime.ts";
import { until } from "../harness/until.ts";
import { weir } from "../harness/weir.ts";
import { Clients, type Visit } from "./clients.ts";
import { type Fault, faults, upgrade } from "./faults.ts";
import { type Installation, startInstallation } from "./installation.ts";

/** The maximum time for each of them. */
const longest = 120_000;

interface Result {
  fault: string;
  seconds: { fault: number; recovery: number | undefined };
  clients: number;
  refused: string;
  restarts: number;
  lost: number;
  doubled: number;
  uncharged: number;
  audit: string;
}

/** Runs the drills one at a time, and returns how many failed. With an older binary, runs only the upgrade. */
export async function run(options: {
  quick: boolean;
  only: string[];
  from?: { name: string; binary: string };
}): Promise<number> {
  const all = options.from ? [upgrade(options.from)] : faults(options.quick ? 3 : 30);
  const unknown = options.only.find((part) => !all.some(({ name }) => name.includes(part)));
  if (unknown !== undefined)
    throw new Failure(
      `no drill has "${unknown}" in its name`,
      `name parts of ${all.map(({ name }) => name).join(", ")}, or nothing`,
    );
  const chosen = all.filter(
    ({ name }) => options.only.length === 0 || options.only.some((part) => name.includes(part)),
  );
  const results: Result[] = [];
  for (const fault of chosen) {
    say(`drill: ${fault.name}`);
    const result = await onInstallation(fault, (installation) => drill(installation, fault));
    say(line(result));
    results.push(result);
  }
  console.log(`\n${table(results)}`);
  return results.filter((result) => !isGood(result)).length;
}

/** Runs the drill on a new installation. */
async function onInstallation<T>(fault: Fault, play: (installation: Installation) => Promise<T>): Promise<T> {
  const ends: (() => Promise<void> | void)[] = [];
  const lifetime: Lifetime = { after: (end) => void ends.push(end) };
  const over = async (): Promise<void> => {
    for (let end = ends.pop(); end; end = ends.pop()) await end();
  };
  const takeBack = onExit(over);
  try {
    return await play(await startInstallation(lifetime, fault.binary));
  } finally {
    await over();
    takeBack();
  }
}

async function drill(installation: Installation, fault: Fault): Promise<Result> {
  const restartsBefore = restarts(installation);
  const clients = new Clients(installation.caller);
  const began = performance.now();
  await until(
    "the service to be as on a good day before the drill",
    () => clients.recovered(began) !== undefined,
    longest,
  );
  const start = performance.now();
  await fault.happen(installation);
  const end = performance.now();
  const recovered = await until(
    "the service to be as before",
    () => clients.recovered(end) !== undefined,
    longest,
  ).then(
    () => clients.recovered(end),
    () => undefined,
  );
  await clients.stop();
  const outcome = await settled(installation, clients.visits);
  const audit = await weir(["audit"], installation.env);
  return {
    fault: fault.name,
    seconds: { fault: (end - start) / 1000, recovery: recovered && (recovered - end) / 1000 },
    clients: clients.visits.length,
    refused: counted(clients.visits.flatMap(({ refusals }) => refusals)),
    restarts: restarts(installation) - restartsBefore,
    ...outcome,
    audit: audit.code === 0 ? "holds" : audit.stdout,
  };
}

/** Waits until every accepted job is completed, and counts the violations. */
async function settled(
  installation: Installation,
  visits: Visit[],
): Promise<{ lost: number; doubled: number; uncharged: number }> {
  const sql = installation.admin();
  const users = visits.map(({ user }) => user);
  try {
    for (const deadline = performance.now() + longest; ; await sleep(200)) {
      const [row] = await sql`
        SELECT count(*)::int AS jobs, count(DISTINCT j.args ->> 'user_id')::int AS users,
               count(*) FILTER (WHERE j.state = 'completed')::int AS completed,
               count(u.job_id)::int AS charged, count(r.job_id)::int AS reserved
        FROM river_job j
        LEFT JOIN usage_events u ON u.job_id = j.id
        LEFT JOIN quota_reservations r ON r.job_id = j.id
        WHERE j.args ->> 'user_id' IN (SELECT jsonb_array_elements_text(${sql.json(users)}))`;
      const seen = row as { jobs: number; users: number; completed: number; charged: number; reserved: number };
      const isOver = seen.completed === seen.jobs && seen.reserved === 0;
      if (isOver || performance.now() > deadline) {
        return {
          lost: users.length - seen.users + seen.jobs - seen.completed,
          doubled: seen.jobs - seen.users,
          uncharged: seen.completed - seen.charged,
        };
      }
    }
  } finally {
    await sql.end({ timeout: 2 });
  }
}

function restarts(installation: Installation): number {
  return installation.parts.reduce((sum, part) => sum + part.process.restarts, 0);
}

function counted(what: string[]): string {
  const counts = new Map<string, number>();
  for (const one of what) counts.set(one, (counts.get(one) ?? 0) + 1);
  return [...counts].map(([one, count]) => `${count} × ${one}`).join(", ") || "none";
}

function isGood(result: Result): boolean {
  const { seconds, lost, doubled, uncharged, audit } = result;
  return seconds.recovery !== undefined && lost + doubled + uncharged === 0 && audit === "holds";
}

function cells(result: Result): string[] {
  const { fault, seconds, clients, refused, lost, doubled, uncharged, audit } = result;
  return [
    fault,
    seconds.fault.toFixed(1),
    seconds.recovery === undefined ? "never" : seconds.recovery.toFixed(1),
    String(clients),
    refused,
    String(result.restarts),
    `${lost} / ${doubled} / ${uncharged}`,
    audit,
  ];
}

function line(result: Result): string {
  return `${isGood(result) ? "good" : "NOT GOOD"}: ${cells(result).slice(1).join(" · ")}`;
}

function table(results: Result[]): string {
  const head = [
    "what happens",
    "lasts, s",
    "as before after, s",
    "clients",
    "refused first with",
    "restarts",
    "lost / doubled / uncharged",
    "audit",
  ];
  const row = (texts: string[]): string => `| ${texts.join(" | ")} |`;
  return [row(head), row(head.map(() => "---")), ...results.map((result) => row(cells(result)))].join("\n");
}
