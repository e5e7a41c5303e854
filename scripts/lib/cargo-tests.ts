import { spawn } from "node:child_process";
import { existsSync, readFileSync, rmSync } from "node:fs";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { usingCache } from "./cache.ts";
import { cargoEnvironment } from "./cargo.ts";
import { onExit } from "./lifecycle.ts";
import { root } from "./paths.ts";
import { stopGroup } from "./process.ts";
import type { CargoTests } from "./selection.ts";
import type { Totals } from "./totals.ts";

const line = /^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;/;
const first = /^running \d+ tests?$/;
const slow = /^test (\S+) has been running for over \d+ seconds$/;
const ended = /^test (\S+) \.\.\. /;

/**
 * Runs tests of the Rust crates, shows their output and counts them. Without a line of output for `patience`
 * milliseconds, the tests that still run fail. A test that hangs must not hang the whole run, and cargo has no timeout.
 */
export function runCargoTests(
  tests: CargoTests,
  env: NodeJS.ProcessEnv,
  totals: Totals,
  patience = 900_000,
): Promise<void> {
  return usingCache(() => runTests(tests, env, totals, patience));
}

async function runTests({ args }: CargoTests, env: NodeJS.ProcessEnv, totals: Totals, patience: number): Promise<void> {
  const child = spawn("cargo", ["test", "--locked", "--no-fail-fast", ...args], {
    cwd: root,
    // Most of a test's time is spent waiting for other parts. With more threads, connections run out.
    env: { RUST_TEST_THREADS: String(Math.min(3 * availableParallelism(), 8)), ...cargoEnvironment(env) },
    stdio: ["ignore", "pipe", "pipe"],
    detached: true,
  });
  const forget = onExit(() => stopGroup(child, 2000));
  const failedBefore = totals.failed;
  const running = new Set<string>();
  let isStopped = false;
  const silence = setTimeout(() => {
    const names = [...running].join(", ") || "their names are not known";
    console.log(`\nno test ended for ${patience / 1000} s, so these are stopped: ${names}`);
    totals.add(0, Math.max(running.size, 1), 0);
    isStopped = true;
    void stopGroup(child, 2000);
  }, patience);
  const extendWait = (): void => {
    if (!isStopped) silence.refresh();
  };
  createInterface({ input: child.stdout }).on("line", (text) => {
    extendWait();
    console.log(text);
    const match = line.exec(text);
    if (match) totals.add(Number(match[1]), Number(match[2]), Number(match[3]));
    // A test binary that was killed does not print the end of its tests.
    if (first.test(text)) running.clear();
    const started = slow.exec(text)?.[1];
    if (started) running.add(started);
    running.delete(ended.exec(text)?.[1] ?? "");
  });
  createInterface({ input: child.stderr }).on("line", (text) => {
    extendWait();
    console.error(text);
  });
  const code = await new Promise<number | null>((done) => {
    child.on("error", () => done(127));
    child.on("close", done);
  });
  clearTimeout(silence);
  forget();
  // The passed tests of a stopped binary are not counted, so its skipped ones cannot be subtracted.
  if (!isStopped) countSkipped(env, totals);
  // A crate that does not compile has no result line, but counts as a failure.
  if (code !== 0 && totals.failed === failedBefore) totals.add(0, 1, 0);
}

/** In cargo, a test cannot skip itself while it runs. Such a test prints a line, and passes. */
function countSkipped(env: NodeJS.ProcessEnv, totals: Totals): void {
  const file = join(env.WEIR_TEST_FOLDER ?? "", "skipped");
  if (!env.WEIR_TEST_FOLDER || !existsSync(file)) return;
  const reasons = readFileSync(file, "utf8").trim().split("\n");
  rmSync(file);
  for (const reason of reasons) console.log(`skipped: ${reason}`);
  totals.add(-reasons.length, 0, reasons.length);
}
