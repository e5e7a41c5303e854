import { availableParallelism } from "node:os";
import { run } from "node:test";
import { spec } from "node:test/reporters";
import { onExit } from "./lifecycle.ts";
import { root } from "./paths.ts";
import type { NodeTests } from "./selection.ts";
import type { Totals } from "./totals.ts";

/** Runs test files by Node's own runner, each in a process of its own, and shows the results as they come. */
export async function runNodeTests(tests: NodeTests, env: NodeJS.ProcessEnv, totals: Totals): Promise<void> {
  const stop = new AbortController();
  const forget = onExit(() => stop.abort());
  const events = run({
    files: tests.files,
    ...(tests.named ? { testNamePatterns: new RegExp(RegExp.escape(tests.named), "i") } : {}),
    // Most of what a test does is waiting for other parts to act.
    concurrency: Math.min(2 * availableParallelism(), 8),
    // For a file as much as for a test in it; a server that hangs must not hang the whole run.
    timeout: 900_000,
    signal: stop.signal,
    cwd: root,
    env,
  });
  events.on("test:summary", (summary) => {
    if (summary.file !== undefined) return;
    const { passed, failed, cancelled, skipped, todo } = summary.counts as Record<string, number | undefined>;
    totals.add(passed ?? 0, (failed ?? 0) + (cancelled ?? 0), (skipped ?? 0) + (todo ?? 0));
  });
  // Node counts no suite that is skipped, and not the tests in it, either.
  events.on("test:pass", ({ details, skip }) => {
    if (details.type === "suite" && skip !== undefined) totals.add(0, 0, 1);
  });
  for await (const text of events.compose(spec())) process.stdout.write(text as string);
  forget();
}
