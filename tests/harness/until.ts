import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";

const pause = 50;

/**
 * Repeats `ask` until it returns a value, as often as fits into `within` milliseconds on a machine that responds at
 * once. Overloaded machines get more time.
 */
export async function until<T>(
  what: string,
  ask: () => T | false | undefined | Promise<T | false | undefined>,
  within = 30_000,
): Promise<T> {
  for (let left = within / pause; ; left--) {
    const answer = await ask();
    if (answer !== undefined && answer !== false) return answer;
    assert.ok(left > 0, `waited ${within / 1000} s for ${what}`);
    await sleep(pause);
  }
}
