import { constants } from "node:os";
import { report } from "./failure.ts";

type Cleanup = () => Promise<void> | void;

const cleanups: Cleanup[] = [];
let stopping: Promise<void> | undefined;
const asked = Promise.withResolvers<number>();

/** Runs at the end, last registered first, however the end comes about. Returns a way to take it back. */
export function onExit(cleanup: Cleanup): () => void {
  cleanups.push(cleanup);
  return () => {
    const index = cleanups.lastIndexOf(cleanup);
    if (index >= 0) cleanups.splice(index, 1);
  };
}

/** Runs every clean-up once; a second call waits for the first. */
export function runExitHooks(): Promise<void> {
  stopping ??= (async () => {
    for (let cleanup = cleanups.pop(); cleanup; cleanup = cleanups.pop()) {
      try {
        await cleanup();
      } catch (error) {
        report(error);
      }
    }
  })();
  return stopping;
}

export function isExiting(): boolean {
  return stopping !== undefined;
}

/** Asks the running script to end with this exit code. */
export function end(code: number): void {
  asked.resolve(code);
}

/**
 * Runs a script to its end: its own return, an error, a signal, or the death of the process that started it.
 * In every case what it started is stopped before the process exits.
 */
export async function runMain(main: () => Promise<number | void>): Promise<never> {
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
    process.on(signal, () => end(128 + constants.signals[signal]));
  }
  // npm may be killed in a way that it cannot pass on; then nobody is left to tell us to stop.
  const parent = process.ppid;
  const orphanWatch = setInterval(() => {
    if (process.ppid !== parent) end(129);
  }, 500);
  orphanWatch.unref();

  let code = 0;
  let failure: unknown;
  try {
    code = (await Promise.race([main(), asked.promise])) ?? 0;
  } catch (error) {
    failure = error;
    code = 1;
  }
  await runExitHooks();
  // After the parts' last words, so that the line that says how to mend it is the last one.
  if (failure !== undefined) report(failure);
  process.exit(code);
}
