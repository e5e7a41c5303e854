import { constants } from "node:os";
import { report } from "./failure.ts";

type Cleanup = () => Promise<void> | void;

const cleanups: Cleanup[] = [];
let stopping: Promise<void> | undefined;
const asked = Promise.withResolvers<number>();

/**
 * Registers a clean-up for the end of the process, for any kind of end. The last registered one runs first. Returns a
 * function that unregisters it.
 */
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

/** Makes `runMain` stop everything and exit with this code. */
export function requestExit(code: number): void {
  asked.resolve(code);
}

/**
 * Runs a script's main function until it returns or throws, a signal arrives, or the parent process dies. Then stops
 * everything that it started, and exits.
 */
export async function runMain(main: () => Promise<number> | Promise<void>): Promise<never> {
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
    process.on(signal, () => requestExit(128 + constants.signals[signal]));
  }
  // npm can be killed without passing the signal on.
  const parent = process.ppid;
  const orphanWatch = setInterval(() => {
    if (process.ppid !== parent) requestExit(129);
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
  // Printed last, so that the remedy is the last line on the screen.
  if (failure !== undefined) report(failure);
  process.exit(code);
}
