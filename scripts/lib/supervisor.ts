import { setTimeout as sleep } from "node:timers/promises";
import { isExiting } from "./lifecycle.ts";
import type { Service } from "./process.ts";
import { say } from "./progress.ts";

/** The exit code of a `weir` that lost the database for so long that others may have taken over its jobs. */
const fenced = 70;

/** The exit code of a `weir` that cannot start, for example because the database is still unavailable. */
const cannotStart = 2;

const firstPause = 500;
const longestPause = 2_000;

/** A server that has run for this many milliseconds has recovered. */
const steadyAfter = 10_000;

export interface Supervised {
  /** Resolves when the server has ended and is not restarted, to a description of how. */
  readonly ended: Promise<string>;
  /** The number of restarts. */
  readonly restarts: number;
  /** The current process, or the last one. */
  readonly current: Service;
  stop(): Promise<void>;
}

/**
 * Restarts a server that fences itself, with a growing pause until it stays up. Does not restart it after any other
 * exit.
 */
export function supervise(start: () => Service, onRestart: (service: Service) => void = () => {}): Supervised {
  let current = start();
  let restarts = 0;
  let stopped = false;
  const ended = (async () => {
    let pause = firstPause;
    for (let started = Date.now(), recovering = false; ; started = Date.now()) {
      const how = await current.ended;
      if (Date.now() - started > steadyAfter) {
        pause = firstPause;
        recovering = false;
      }
      const code = current.child.exitCode;
      recovering ||= code === fenced;
      if (stopped || isExiting() || !recovering || (code !== fenced && code !== cannotStart)) return how;
      say(`${current.name} ${how}: it had lost the database; restarting in ${pause / 1000} s`);
      await sleep(pause);
      pause = Math.min(pause * 2, longestPause);
      if (stopped || isExiting()) return how;
      current = start();
      restarts++;
      onRestart(current);
    }
  })();
  return {
    ended,
    get restarts() {
      return restarts;
    },
    get current() {
      return current;
    },
    stop: () => {
      stopped = true;
      return current.stop();
    },
  };
}
