import { setTimeout as sleep } from "node:timers/promises";
import { Service } from "../../scripts/lib/process.ts";
import { freeze } from "../harness/processes.ts";

/** The pause before a restart, in milliseconds. */
const pause = 500;

/** The maximum time for a part to end before it is killed: Weir's processes, and programs in Go. */
const grace = { own: 45_000, others: 150_000 };

interface Make {
  file: string;
  args: string[];
  env: NodeJS.ProcessEnv;
  /** Whether it ends with its standard input instead of by SIGTERM. */
  untilStdinEnds?: boolean;
}

/** A process that is restarted whenever it ends, as systemd does. */
export class Part {
  readonly name: string;
  /** The number of starts. */
  starts = 0;
  /** Exits that no fault caused and that Weir does not expect. */
  readonly unexpected: string[] = [];
  #make: (start: number) => Make;
  #mayEnd: (code: number) => boolean;
  #onLine: (line: string) => void;
  #onGone: (start: number) => void;
  #service: Service | undefined;
  #stopped = false;
  #asked = false;
  #over: Promise<void>;

  constructor(
    name: string,
    options: {
      make: (start: number) => Make;
      mayEnd: (code: number) => boolean;
      onLine: (line: string) => void;
      /** Called after it has ended for any reason. */
      onGone?: (start: number) => void;
    },
  ) {
    this.name = name;
    this.#make = options.make;
    this.#mayEnd = options.mayEnd;
    this.#onLine = options.onLine;
    this.#onGone = options.onGone ?? (() => {});
    this.#over = this.#keepUp();
  }

  get pid(): number {
    return this.#service?.pid ?? 0;
  }

  async kill(): Promise<void> {
    this.#signal("SIGKILL");
    await this.#service?.ended;
  }

  /** Stops it, as before an update, and waits until it has ended. */
  async drain(): Promise<void> {
    const service = this.#service;
    if (!service) return;
    this.#asked = true;
    if (service.child.stdin) service.child.stdin.end();
    else this.#signal("SIGTERM");
    const within = service.child.stdin ? grace.others : grace.own;
    const timer = setTimeout(() => {
      this.unexpected.push(`${this.name} did not end within ${within / 1000} s`);
      this.#signal("SIGKILL");
    }, within);
    await service.ended;
    clearTimeout(timer);
  }

  async frozen(milliseconds: number): Promise<void> {
    const thaw = freeze(this.pid);
    try {
      await sleep(milliseconds);
    } finally {
      thaw();
    }
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    await this.drain();
    await this.#over;
  }

  async #keepUp(): Promise<void> {
    while (!this.#stopped) {
      const start = ++this.starts;
      const { file, args, env, untilStdinEnds } = this.#make(start);
      this.#asked = false;
      let isSilent = true;
      const service = new Service(this.name, file, args, {
        env,
        onLine: (line) => {
          isSilent = false;
          this.#onLine(line);
        },
        tied: true,
        ...(untilStdinEnds ? { stdin: "pipe" } : {}),
      });
      this.#service = service;
      const how = await service.ended;
      const { exitCode } = service.child;
      this.#onLine(`--- start ${start} ${how}`);
      // A process that gets SIGTERM before it handles the signal has not started.
      const hasNotBegun = this.#asked && isSilent && /SIGTERM/.test(how);
      const isFine =
        exitCode === null
          ? /SIGKILL/.test(how) || hasNotBegun
          : (this.#asked && exitCode === 0) || this.#mayEnd(exitCode);
      if (!isFine) this.unexpected.push(`${this.name} ${how}`);
      this.#onGone(start);
      await sleep(pause);
    }
  }

  #signal(signal: NodeJS.Signals): void {
    try {
      process.kill(this.pid, signal);
    } catch {
      // It has just ended.
    }
  }
}
