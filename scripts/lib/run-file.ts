import { randomUUID } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Failure } from "./failure.ts";
import { onExit } from "./lifecycle.ts";
import { makeStateFolder, state } from "./paths.ts";
import { isAlive } from "./process.ts";
import { say } from "./progress.ts";

/** Describes a running development stack, for other commands, and for the next start if this one is killed. */
export interface Run extends Partial<Places> {
  /** Marks every process of the run, in its environment. */
  id: string;
  pid: number;
  /** When the process started, in the kernel's clock ticks: a later process may get the same pid. */
  started: string;
}

/** The addresses of a run's parts. */
export interface Places {
  databaseUrl: string;
  originPort: number;
  edgePort: number;
  /** The services file, if the user named one. */
  config?: string;
}

const file = join(state, "run.json");
const mark = "WEIR_RUN";

export async function readRun(): Promise<Run | undefined> {
  try {
    return JSON.parse(await readFile(file, "utf8")) as Run;
  } catch {
    return undefined;
  }
}

/** The current run; undefined if it was killed and only its file is left. */
export async function liveRun(): Promise<Run | undefined> {
  const run = await readRun();
  return run && isUp(run) ? run : undefined;
}

/** Writes the run file, marks every process of this run, and ends the remains of a killed run of this clone. */
export async function claimRunFile(): Promise<void> {
  makeStateFolder();
  const last = await readRun();
  if (last) {
    if (isUp(last)) {
      throw new Failure(
        `this clone's stack is already running: ${last.edgePort ? `http://127.0.0.1:${last.edgePort}, ` : ""}process ${last.pid}`,
        `stop it first: press Ctrl-C where it runs, or: kill ${last.pid}`,
      );
    }
    await endLeftovers(last.id);
  }
  const run: Run = { id: randomUUID(), pid: process.pid, started: startOf(process.pid) };
  markRun(run.id);
  await write(run);
  onExit(() => rm(file, { force: true }));
}

/** Adds the addresses of the parts to this process's run file. */
export async function recordPlaces(places: Places): Promise<void> {
  const run = await readRun();
  if (run) await write({ ...run, ...places });
}

function write(run: Run): Promise<void> {
  return writeFile(file, `${JSON.stringify(run, null, 2)}\n`, { mode: 0o600 });
}

/** Marks child processes from now on. */
export function markRun(id: string): void {
  process.env[mark] = id;
}

async function endLeftovers(id: string): Promise<void> {
  const left = marked(id);
  if (left.length === 0) return;
  say(`ending ${left.length} processes that a killed run left behind`);
  // After a second request, a worker no longer waits for its jobs, and ends their programs together with itself.
  for (const patience of [3000, 20_000]) {
    for (const pid of marked(id)) signal(pid, nameOf(pid) === "postgres" ? "SIGINT" : "SIGTERM");
    if (await areGone(id, patience)) return;
  }
  for (const pid of marked(id)) signal(pid, "SIGKILL");
  if (await areGone(id, 3000)) return;
  throw new Failure(
    `processes of a killed run do not stop: ${marked(id).join(" ")}`,
    `kill them: kill -9 ${marked(id).join(" ")}`,
  );
}

/** Waits until all processes of a run have ended, for at most `within` milliseconds. */
async function areGone(id: string, within: number): Promise<boolean> {
  for (const deadline = Date.now() + within; marked(id).length > 0; await sleep(50)) {
    if (Date.now() > deadline) return false;
  }
  return true;
}

/** Processes with a run's mark. Works on Linux only; empty elsewhere. */
export function marked(id: string): number[] {
  let entries: string[];
  try {
    entries = readdirSync("/proc");
  } catch {
    return [];
  }
  return entries.map(Number).filter((pid) => pid > 0 && pid !== process.pid && isOf(pid, id));
}

function isOf(pid: number, id: string): boolean {
  try {
    return readFileSync(`/proc/${pid}/environ`, "utf8").split("\0").includes(`${mark}=${id}`);
  } catch {
    return false;
  }
}

function isUp(run: Run): boolean {
  return isAlive(run.pid) && startOf(run.pid) === run.started;
}

/** The 22nd field of a process's status. The second one is its name, which may contain spaces and parentheses. */
function startOf(pid: number): string {
  try {
    return (
      readFileSync(`/proc/${pid}/stat`, "utf8")
        .replace(/^.*\) /s, "")
        .split(" ")[19] ?? ""
    );
  } catch {
    return "";
  }
}

export function nameOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/comm`, "utf8").trim();
  } catch {
    return "";
  }
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch {
    // The process has ended.
  }
}
