import { type ChildProcess, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { constants } from "node:os";
import { createInterface } from "node:readline";
import { Failure } from "./failure.ts";
import { isExiting, onExit } from "./lifecycle.ts";
import { openLog } from "./part-log.ts";
import { root } from "./paths.ts";
import { type Pulse, show } from "./progress.ts";

export interface RunOptions {
  uid?: number;
  gid?: number;
  cwd?: string;
  env?: NodeJS.ProcessEnv;
  /** Shown while the step runs. */
  pulse?: Pulse;
  /** The name of the file under .weir/logs with the whole output. */
  log?: string;
  /** The remedy for a failure. */
  remedy?: string;
  timeout?: number;
  /** The maximum time for it to end when the script stops, in milliseconds. Default: 2 000. */
  grace?: number;
}

export interface Outcome {
  code: number | null;
  signal: NodeJS.Signals | null;
  stdout: string;
  output: string;
  timedOut: boolean;
}

/** The exit code of a child process; after a signal 128 plus its number, as in a shell. */
export function exitCodeOf(child: ChildProcess): Promise<number> {
  return new Promise((done, failed) => {
    child.on("error", failed);
    child.on("exit", (code, signal) => done(code ?? 128 + (signal ? constants.signals[signal] : 0)));
  });
}

/** Stops a process group: with the signal, and after `grace` milliseconds with SIGKILL. */
export async function stopGroup(child: ChildProcess, grace: number, signal: NodeJS.Signals = "SIGTERM"): Promise<void> {
  const pid = child.pid;
  if (pid === undefined) return;
  signalGroup(pid, signal);
  if (await groupGone(pid, grace)) return;
  signalGroup(pid, "SIGKILL");
  await groupGone(pid, 5000);
}

function signalGroup(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(-pid, signal);
  } catch {
    // The group has ended.
  }
}

/** Whether a process with this number exists, of any user. */
export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}

async function groupGone(pid: number, within: number): Promise<boolean> {
  const deadline = Date.now() + within;
  while (groupLives(pid)) {
    if (Date.now() > deadline) return false;
    await new Promise((done) => setTimeout(done, 20));
  }
  return true;
}

function groupLives(pid: number): boolean {
  try {
    process.kill(-pid, 0);
    return true;
  } catch {
    return false;
  }
}

const counted = /^\d+ of \d+ crates/;

/** The text without cargo's progress bars. The last one is the pulse: how many crates are done, and which are being built. */
function withoutBars(text: string, pulse: Pulse): string {
  // Cargo may write the word in front of a bar separately.
  const bar = /(?: *Building )?\[[=> ]*\] (\d+)\/(\d+)[^:\r\n]*: ([^\r\n]*)\r?| *Building $/g;
  return text.replace(bar, (_, done, all, crates) => {
    if (done) pulse.latest = `${done} of ${all} crates: ${crates}`;
    return "";
  });
}

/**
 * Runs a tool to completion in a separate process group, so that stopping it also stops its children. Unlike `run`, it
 * does not throw when the tool fails.
 */
export async function attempt(file: string, args: string[], options: RunOptions = {}): Promise<Outcome> {
  const child = spawn(file, args, {
    cwd: options.cwd ?? root,
    env: options.env ?? process.env,
    stdio: ["ignore", "pipe", "pipe"],
    detached: true,
    ...(options.uid === undefined ? {} : { uid: options.uid }),
    ...(options.gid === undefined ? {} : { gid: options.gid }),
  });
  const forget = onExit(() => stopGroup(child, options.grace ?? 2000));
  const log = options.log ? openLog(options.log) : undefined;
  let stdout = "";
  let output = "";
  const take = (data: string, isStdout: boolean): void => {
    const text = options.pulse ? withoutBars(data, options.pulse) : data;
    if (isStdout) stdout += text;
    output += text;
    log?.write(text);
    const line = text
      .trimEnd()
      .split(/[\r\n]+/)
      .at(-1);
    // Hides cargo's messages for programs, and for the crates that its bars count.
    if (!options.pulse || !line?.trim() || line.startsWith("{")) return;
    if (!(counted.test(options.pulse.latest) && /^ *(Compiling|Checking) /.test(line))) options.pulse.latest = line;
  };
  child.stdout.setEncoding("utf8").on("data", (data: string) => take(data, true));
  child.stderr.setEncoding("utf8").on("data", (data: string) => take(data, false));
  let timedOut = false;
  const timer = options.timeout
    ? setTimeout(() => {
        timedOut = true;
        void stopGroup(child, 1000);
      }, options.timeout)
    : undefined;
  try {
    return await new Promise<Outcome>((done) => {
      child.on("error", (error) => done({ code: 127, signal: null, stdout, output: output + error.message, timedOut }));
      child.on("close", (code, signal) => done({ code, signal, stdout, output, timedOut }));
    });
  } finally {
    clearTimeout(timer);
    forget();
    log?.end();
  }
}

/** Runs a tool to completion and returns its standard output. Throws a `Failure` when the tool fails. */
export async function run(file: string, args: string[], options: RunOptions = {}): Promise<string> {
  const outcome = await attempt(file, args, options);
  if (outcome.code === 0) return outcome.stdout;
  if (!isExiting()) {
    const lines = outcome.output.trimEnd().split("\n");
    show(
      lines
        .filter((line) => !line.startsWith('{"reason"'))
        .slice(-60)
        .join("\n"),
    );
  }
  const how = outcome.timedOut ? "took too long" : `ended with ${outcome.signal ?? `code ${outcome.code}`}`;
  throw new Failure(`${[file, ...args].join(" ").slice(0, 200)} ${how}`, options.remedy ?? "see its output above");
}

const setpriv = ["/usr/bin/setpriv", "/bin/setpriv"].find((path) => existsSync(path));

/** Whether the system can end a service when its process is killed. */
export const canTie = setpriv !== undefined;

/** The same program, ended by the kernel together with this process: a `kill -9` runs no handlers. */
function tied(file: string, args: string[]): [string, ...string[]] {
  return setpriv ? [setpriv, "--pdeathsig", "KILL", "--", file, ...args] : [file, ...args];
}

/** A server that runs until this script exits. */
export class Service {
  readonly name: string;
  readonly child: ChildProcess;
  /** Resolves when the server has ended, to a description such as "ended with code 1". */
  readonly ended: Promise<string>;
  /** The last 100 lines of its output. */
  readonly recent: string[] = [];
  #grace: number;
  #signal: NodeJS.Signals;
  #stopped: Promise<void> | undefined;

  constructor(
    name: string,
    file: string,
    args: string[],
    options: {
      cwd?: string;
      env?: NodeJS.ProcessEnv;
      uid?: number;
      gid?: number;
      grace?: number;
      signal?: NodeJS.Signals;
      /** For a program that runs until its standard input ends. */
      stdin?: "pipe";
      /** Whether it ends with this process even after a `kill -9`, if the system supports that. */
      tied?: boolean;
      onLine?: (line: string) => void;
    } = {},
  ) {
    this.name = name;
    this.#grace = options.grace ?? 5000;
    this.#signal = options.signal ?? "SIGTERM";
    const [program, ...all] = options.tied ? tied(file, args) : [file, ...args];
    this.child = spawn(program, all, {
      cwd: options.cwd ?? root,
      env: options.env ?? process.env,
      stdio: [options.stdin ?? "ignore", "pipe", "pipe"],
      detached: true,
      ...(options.uid === undefined ? {} : { uid: options.uid }),
      ...(options.gid === undefined ? {} : { gid: options.gid }),
    });
    for (const stream of [this.child.stdout, this.child.stderr]) {
      if (!stream) continue;
      createInterface({ input: stream }).on("line", (line) => {
        this.recent.push(line);
        if (this.recent.length > 100) this.recent.shift();
        options.onLine?.(line);
      });
    }
    this.ended = new Promise((done) => {
      this.child.on("error", (error) => done(error.message));
      this.child.on("exit", (code, signal) => done(signal ? `was ended by ${signal}` : `ended with code ${code}`));
    });
    const forget = onExit(() => this.stop());
    // The system does not reuse its number while its group has a process.
    const forgetWhenEmpty = (): void => {
      if (this.pid !== undefined && groupLives(this.pid)) return void setTimeout(forgetWhenEmpty, 500).unref();
      this.#stopped ??= Promise.resolve();
      forget();
    };
    this.child.on("exit", forgetWhenEmpty);
  }

  get pid(): number | undefined {
    return this.child.pid;
  }

  stop(): Promise<void> {
    this.#stopped ??= stopGroup(this.child, this.#grace, this.#signal);
    return this.#stopped;
  }
}
