import { setTimeout as sleep } from "node:timers/promises";
import { Failure } from "./failure.ts";

/** Polls a URL until it returns 200. Throws if that takes longer than `within` milliseconds. */
export async function untilOk(url: string, within: number): Promise<void> {
  const deadline = Date.now() + within;
  let last = "no answer";
  for (;;) {
    try {
      const response = await fetch(url, { signal: AbortSignal.timeout(5000) });
      const body = await response.text();
      if (response.ok) return;
      last = `${response.status} ${body.slice(0, 300)}`;
    } catch (error) {
      last =
        error instanceof Error ? String((error.cause as Error | undefined)?.message ?? error.message) : String(error);
    }
    if (Date.now() > deadline)
      throw new Failure(`${url} is not ready after ${within / 1000} s: ${last}`, "see the output of that server above");
    await sleep(100);
  }
}
