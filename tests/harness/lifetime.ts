import { runExitHooks } from "../../scripts/lib/lifecycle.ts";

/**
 * Whatever ends things when a test is over: a test's context, or, for what a whole file shares, `{ after }` of
 * node:test used at the top of the file. (Inside of `before`, `after` is that hook's own end, and comes too early.)
 */
export interface Lifetime {
  after(end: () => Promise<void> | void): void;
}

const ends = new WeakMap<Lifetime, (() => Promise<void> | void)[]>();

/** Registers an end. What was started last ends first: an edge before its origin, an origin before its database. */
export function whenOver(lifetime: Lifetime, end: () => Promise<void> | void): void {
  const known = ends.get(lifetime);
  if (known) {
    known.push(end);
    return;
  }
  const stack = [end];
  ends.set(lifetime, stack);
  lifetime.after(async () => {
    ends.delete(lifetime);
    const failures: unknown[] = [];
    for (const each of stack.reverse()) {
      try {
        await each();
      } catch (error) {
        failures.push(error);
      }
    }
    if (failures.length > 0) throw new AggregateError(failures, "not everything that the test started could be ended");
  });
}

// A test process that is told to end does not get to its `after` hooks; what it started must still go.
for (const signal of ["SIGTERM", "SIGINT"] as const) {
  process.once(signal, () => {
    void runExitHooks().finally(() => process.exit(1));
  });
}

/** A setting that `npm test` makes for the tests it runs. */
export function required(name: string): string {
  const value = process.env[name];
  if (value) return value;
  throw new Error(
    `${name} is not set: run the tests by \`npm test\` (or \`npm test -- edge\` for some of them), which starts what they need`,
  );
}
