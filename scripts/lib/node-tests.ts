import { availableParallelism } from "node:os";
import { relative } from "node:path";
import { run } from "node:test";
import { spec } from "node:test/reporters";
import { failureOf, type Totals } from "./cargo-tests.ts";
import { onExit } from "./lifecycle.ts";
import { root } from "./paths.ts";
import type { Selection } from "./selection.ts";

/** Runs test files with Node's runner, each in a separate process, and shows the results as they arrive. */
export async function runNodeTests(
  { files, named }: Selection["node"][number],
  env: NodeJS.ProcessEnv,
  totals: Totals,
): Promise<void> {
  const stop = new AbortController();
  const forget = onExit(() => stop.abort());
  const events = run({
    files,
    ...(named ? { testNamePatterns: named } : {}),
    // Most of a test's time is spent waiting for other parts.
    concurrency: Math.min(2 * availableParallelism(), 8),
    // Applies to a file and to each test in it. A server that hangs must not hang the whole run.
    timeout: 900_000,
    signal: stop.signal,
    cwd: root,
    env,
  });
  events.on("test:summary", (summary) => {
    if (summary.file !== undefined) return;
    const { passed, failed, cancelled, skipped, todo } = summary.counts as Record<string, number | undefined>;
    totals.passed += passed ?? 0;
    totals.failed += (failed ?? 0) + (cancelled ?? 0);
    totals.skipped += (skipped ?? 0) + (todo ?? 0);
  });
  // Node does not count skipped suites or the tests in them.
  events.on("test:pass", ({ details, skip }) => {
    if (details.type === "suite" && skip !== undefined) totals.skipped++;
  });
  events.on("test:fail", ({ name, file, details: { error } }) => {
    const { failureType, cause } = error as Error & { failureType?: string };
    // A suite fails with its tests, which have the reason.
    if (failureType === "subtestsFailed") return;
    const reason = cause instanceof Error ? cause.message : String(cause ?? error.message);
    totals.failures.push(failureOf(`${file ? `${relative(root, file)}: ` : ""}${name}`, reason.split("\n")));
  });
  for await (const text of events.compose(spec())) process.stdout.write(text as string);
  forget();
}
