import { Service } from "../../scripts/lib/process.ts";
import { sleep } from "../../scripts/lib/sleep.ts";
import { freeze } from "../harness/processes.ts";

/** Before it is started again, in milliseconds. */
const pause = 500;

/** How long a part may take to end when it is asked to, before it is killed: Weir's own, and a program in Go. */
const grace = { own: 45_000, others: 150_000 };

interface Make {
  file: string;
  args: string[];
  env: NodeJS.ProcessEnv;
  /** Ends when its standard input does, and not by SIGTERM. */
  untilStdinEnds?: boolean;
}

/** A process that is started again whenever it has ended, as by systemd. */
export class Part {
  readonly name: string;
  /** How often it was started. */
  starts = 0;
  /** Ends that nothing here has caused and that are no part of how Weir copes. */
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
      /** After it has ended, whichever way. */
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

  /** Asks it to end, as before an update, and waits until it has. */
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
      // Whoever is asked to end before it listens for that has not begun.
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
