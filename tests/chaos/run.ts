import { setTimeout as sleep } from "node:timers/promises";
import type { Lifetime } from "../harness/lifetime.ts";
import { Clients } from "./clients.ts";
import { burying, drained, slotsBack } from "./end.ts";
import { happen, secondsOff } from "./faults.ts";
import { type Installation, startInstallation } from "./installation.ts";
import { judge, type Verdict } from "./judge.ts";
import { type Fault, planOf } from "./plan.ts";
import { makeUsers, type User } from "./users.ts";
import { Watch } from "./watch.ts";

export interface Options {
  seed: number;
  minutes: number;
  /** The folder for the logs of the parts. */
  logs: string;
  /** The program of clients/go/example. Without it, no Go client takes part. */
  fleet: string | undefined;
  /** Whether clocks jump. */
  clocks: boolean;
  report: (line: string) => void;
}

export interface Result {
  plan: Fault[];
  verdict: Verdict;
  watch: Watch;
  /** Seconds after the last fault; `undefined` after a timeout. */
  slotsBack: number | undefined;
  left: string[];
  strange: string[];
  ends: string[];
  /** For each minute: the requests, and how many were answered in time. */
  minutes: { requests: number; served: number }[];
  starts: number;
  installation: Installation;
  clients: Clients;
  users: User[];
}

const userCount = 12;

/** The average pause between two submissions of a user, in milliseconds. */
const pause = 700;

/** The maximum time for all accepted jobs to end, in seconds. */
const longest = 120;

/** The maximum wait for the slots, in seconds. It must take less. */
const slotsWithin = 60;

/** Starts everything, runs the plan of the seed, and compares the clients' records with the database. */
export async function chaos(lifetime: Lifetime, options: Options): Promise<Result> {
  const { seed, minutes, logs, fleet, clocks, report } = options;
  const installation = await startInstallation(lifetime, { logs, fleet, clocks, each: 2 });
  const { parts } = installation;
  const plan = planOf(
    seed,
    minutes * 60_000,
    parts.map(({ name }) => name),
    { clocks },
  );
  const users = await makeUsers(installation.env, userCount, { month: Math.ceil(40 * minutes), minute: 45 });
  const stopBurying = burying(installation);
  const watch = new Watch(installation.database.admin, users);
  const begun = performance.now();
  const clients = new Clients(installation, users, { seed, pause });
  // They end even if something below fails.
  lifetime.after(async () => {
    clients.abandon();
    await Promise.all([watch.stop(), stopBurying()]);
  });

  const { failures } = await happen(installation, plan, (fault) => report(`${seconds(begun)} ${described(fault)}`));
  for (const failure of failures) report(`cut short: ${failure}`);
  await sleep(Math.max(0, minutes * 60_000 - (performance.now() - begun)));
  const over = performance.now();
  // Completions may have been lost while the process kept running. Only its end makes that known.
  await Promise.all(parts.filter(({ name }) => name.startsWith("fleet")).map((part) => part.drain()));
  const admin = installation.database.admin();
  const back = await slotsBack(admin, slotsWithin);
  report(
    `${seconds(begun)} the last fault is over; slots are back after ${back?.toFixed(1) ?? `more than ${slotsWithin}`} s`,
  );
  await clients.stop();
  const left = await drained(admin, longest);
  report(`${seconds(begun)} ${left.length === 0 ? "every job has ended" : `${left.length} jobs have not ended`}`);
  await watch.stop();
  const verdict = await judge(installation, admin, clients.entries);
  await stopBurying();
  await admin.end({ timeout: 2 });
  return {
    plan,
    verdict,
    watch,
    slotsBack: back,
    left,
    strange: clients.strange,
    ends: parts.flatMap(({ unexpected }) => unexpected),
    minutes: Array.from({ length: Math.ceil(minutes) }, (_, minute) => {
      const those = clients.requests.filter(({ at }) => at < over && Math.floor((at - begun) / 60_000) === minute);
      return { requests: those.length, served: those.filter(({ served }) => served).length };
    }),
    starts: parts.reduce((sum, part) => sum + part.starts, 0),
    installation,
    clients,
    users,
  };
}

function seconds(since: number): string {
  return `${((performance.now() - since) / 1000).toFixed(1)} s`;
}

function described({ kind, part, lasts, count }: Fault): string {
  const by = kind.includes("clock") ? ` by ${secondsOff(count)} s` : "";
  return `${part ? `${part} ` : ""}${kind}${by}${lasts > 0 ? `, ${(lasts / 1000).toFixed(1)} s` : ""}`;
}
