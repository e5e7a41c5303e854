import { isExiting } from "./lifecycle.ts";
import type { Service } from "./process.ts";
import { say } from "./progress.ts";
import { sleep } from "./sleep.ts";

/** How `weir` ends when it has lost the database for so long that others may have its jobs. */
const fenced = 70;

/** How `weir` ends when it cannot start, for instance because the database is still away. */
const cannotStart = 2;

const firstPause = 500;
const longestPause = 10_000;

/** A server that has run for so long is up. */
const steadyAfter = 10_000;

export interface Supervised {
  /** Settles when the server has ended for good, with words on how. */
  readonly ended: Promise<string>;
  /** How often it has been started again. */
  readonly restarts: number;
  /** The process that runs now. */
  readonly current: Service;
  stop(): Promise<void>;
}

/**
 * Keeps a server running that ends itself to be safe: it is started again, later and later as long as it does not
 * stay up. Any other end is an end.
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
      say(`${current.name} ${how}: it has lost the database; it starts again in ${pause / 1000} s`);
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
