import { spawn } from "node:child_process";
import { existsSync, readFileSync, rmSync } from "node:fs";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { cargoEnvironment } from "./cargo.ts";
import { onExit } from "./lifecycle.ts";
import { root } from "./paths.ts";
import { exitCodeOf, stopGroup } from "./process.ts";

/** The numbers of tests. */
export interface Totals {
  passed: number;
  failed: number;
  skipped: number;
  /** The failed tests, each with the first lines of its error. */
  failures: string[];
}

/** The name of a failed test and the lines of its error, which stay readable if the error is a whole page. */
export function failureOf(name: string, lines: string[]): string {
  const shown = lines.slice(0, 12).map((line) => `    ${line.slice(0, 500)}`);
  return [`${name}:`, ...shown].join("\n");
}

/** Reads the errors that the test programs of cargo repeat at their end. Returns what takes each line. */
export function failureReader(failures: string[]): (line: string) => void {
  let name: string | undefined;
  let lines: string[] = [];
  return (line) => {
    const next = /^---- (.+) stdout ----$/.exec(line)?.[1];
    const ends = line === "failures:" || line.startsWith("test result:");
    if (name !== undefined && (next !== undefined || ends)) {
      const panic = lines.findIndex((text) => text.includes(" panicked at "));
      failures.push(failureOf(name, lines.slice(Math.max(panic, 0))));
      name = undefined;
    }
    if (next !== undefined) [name, lines] = [next, []];
    else if (name !== undefined && line !== "") lines.push(line);
  };
}

const result = /^test result: \w+\. (\d+) passed; (\d+) failed;/;

/** Runs `cargo test`, shows its output and counts the tests. */
export async function runCargoTests(args: string[], env: NodeJS.ProcessEnv, totals: Totals): Promise<void> {
  const child = spawn("cargo", ["test", "--locked", "--no-fail-fast", ...args], {
    cwd: root,
    // Most of a test's time is spent waiting for other parts. With more threads, connections run out.
    env: { RUST_TEST_THREADS: String(Math.min(3 * availableParallelism(), 8)), ...cargoEnvironment(env) },
    stdio: ["ignore", "pipe", "inherit"],
    detached: true,
  });
  const forget = onExit(() => stopGroup(child, 2000));
  const failedBefore = totals.failed;
  const readFailure = failureReader(totals.failures);
  createInterface({ input: child.stdout }).on("line", (text) => {
    console.log(text);
    readFailure(text);
    const [, passed = 0, failed = 0] = result.exec(text) ?? [];
    totals.passed += Number(passed);
    totals.failed += Number(failed);
  });
  const [code] = await Promise.all([exitCodeOf(child), new Promise((done) => child.on("close", done))]);
  forget();
  // A crate that does not compile has no result line.
  if (code !== 0 && totals.failed === failedBefore) totals.failed++;
  // In cargo, a test cannot skip itself while it runs. Such a test writes a line, and passes.
  const file = join(env.WEIR_TEST_FOLDER ?? "", "skipped");
  if (!env.WEIR_TEST_FOLDER || !existsSync(file)) return;
  const reasons = readFileSync(file, "utf8").trim().split("\n");
  rmSync(file);
  for (const reason of reasons) console.log(`skipped: ${reason}`);
  totals.passed -= reasons.length;
  totals.skipped += reasons.length;
}
