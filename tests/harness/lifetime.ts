import { runExitHooks } from "../../scripts/lib/lifecycle.ts";

/**
 * Registers clean-ups: a test's context, or `{ after }` of node:test at the top of a file for resources that its tests
 * share. (Inside `before` or a test, `after` runs at the end of that hook or test, which is too early.)
 */
export interface Lifetime {
  after(end: () => Promise<void> | void): void;
}

const ends = new WeakMap<Lifetime, (() => Promise<void> | void)[]>();

/** Registers a clean-up. The last one registered runs first: an edge stops before its origin. */
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

// After a signal, `after` hooks do not run, but all started processes must still stop.
for (const signal of ["SIGTERM", "SIGINT"] as const) {
  process.once(signal, () => {
    void runExitHooks().finally(() => process.exit(1));
  });
}

/** A setting that `npm test` provides to tests. */
export function required(name: string): string {
  const value = process.env[name];
  if (value) return value;
  throw new Error(`${name} is not set: run the tests with \`npm test\`, which starts what they need`);
}
