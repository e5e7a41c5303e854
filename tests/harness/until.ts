import assert from "node:assert/strict";
import { sleep } from "../../scripts/lib/sleep.ts";

/** Asks until there is an answer; fails after `within` milliseconds. */
export async function until<T>(
  what: string,
  ask: () => T | false | undefined | Promise<T | false | undefined>,
  within = 30_000,
): Promise<T> {
  for (const deadline = Date.now() + within; ; await sleep(50)) {
    const answer = await ask();
    if (answer !== undefined && answer !== false) return answer;
    assert.ok(Date.now() < deadline, `waited ${within / 1000} s for ${what}`);
  }
}
