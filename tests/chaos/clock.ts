import { existsSync, readdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { required } from "../harness/lifetime.ts";

/** Where packages install libfaketime. */
const folders = [
  ...["x86_64", "aarch64"].map((machine) => `/usr/lib/${machine}-linux-gnu/faketime`),
  ...["/usr/lib64/faketime", "/usr/lib/faketime", "/usr/local/lib/faketime"],
];

/** Where libfaketime leaves files when its process is killed. */
const shared = "/dev/shm";

/** Whether processes on this machine can get other clocks: whether libfaketime is installed. */
export function canShowClocks(): boolean {
  return library("libfaketime.so.1") !== undefined && library("libfaketimeMT.so.1") !== undefined;
}

/** The wall clock of a process: the machine's, plus a number of seconds. The monotonic clock does not change. */
export class Clock {
  /** The environment for processes that use this clock. */
  readonly env: Record<string, string>;
  #file: string;

  /** PostgreSQL has no threads, and its signal handlers read the time, so a lock could deadlock there. */
  constructor(name: string, { threads }: { threads: boolean }) {
    this.#file = join(required("WEIR_TEST_FOLDER"), `clock-${name}`);
    this.set(0);
    this.env = {
      LD_PRELOAD: library(threads ? "libfaketimeMT.so.1" : "libfaketime.so.1") ?? "",
      FAKETIME_TIMESTAMP_FILE: this.#file,
      // All processes of the clock see a jump at once, as with a machine's clock.
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

/** Removes files that libfaketime shares between processes, if the process that created them has ended. */
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
