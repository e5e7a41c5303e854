import { existsSync, readdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { required } from "../harness/lifetime.ts";

/** Where packages of libfaketime put it. */
const folders = [
  ...["x86_64", "aarch64"].map((machine) => `/usr/lib/${machine}-linux-gnu/faketime`),
  ...["/usr/lib64/faketime", "/usr/lib/faketime", "/usr/local/lib/faketime"],
];

/** Where libfaketime leaves something behind when its process is killed. */
const shared = "/dev/shm";

/** Whether processes here can be shown other clocks than the machine's: libfaketime is installed. */
export function canShowClocks(): boolean {
  return library("libfaketime.so.1") !== undefined && library("libfaketimeMT.so.1") !== undefined;
}

/** The wall clock that a process is shown: the machine's, and so many seconds. Its monotonic clock is the machine's. */
export class Clock {
  /** What a process is started with that is to see it. */
  readonly env: Record<string, string>;
  #file: string;

  /** PostgreSQL has no threads, and its handlers of signals ask for the time: a lock there could wait for itself. */
  constructor(name: string, { threads }: { threads: boolean }) {
    this.#file = join(required("WEIR_TEST_FOLDER"), `clock-${name}`);
    this.set(0);
    this.env = {
      LD_PRELOAD: library(threads ? "libfaketimeMT.so.1" : "libfaketime.so.1") ?? "",
      FAKETIME_TIMESTAMP_FILE: this.#file,
      // All that see it see a jump at once, as of a machine's clock.
      FAKETIME_NO_CACHE: "1",
      FAKETIME_DONT_FAKE_MONOTONIC: "1",
      NO_FAKE_STAT: "1",
    };
  }

  set(seconds: number): void {
    writeFileSync(`${this.#file}.new`, `${seconds < 0 ? "" : "+"}${seconds}\n`);
    renameSync(`${this.#file}.new`, this.#file);
  }
}

/** Removes what libfaketime shares between the processes of a group, where the process that made it is gone. */
export function forgetClocks(): void {
  if (!existsSync(shared)) return;
  for (const name of readdirSync(shared)) {
    const [, pid] = /^(?:faketime_shm|sem\.faketime_sem)_(\d+)$/.exec(name) ?? [];
    if (pid && !existsSync(`/proc/${pid}`)) rmSync(join(shared, name), { force: true });
  }
}

function library(name: string): string | undefined {
  return folders.map((folder) => join(folder, name)).find((path) => existsSync(path));
}
