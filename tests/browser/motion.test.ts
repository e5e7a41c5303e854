import assert from "node:assert/strict";
import { after, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import type { Page } from "playwright-core";
import type { Lifetime } from "../harness/lifetime.ts";
import { someAddress, startStack } from "../harness/stack.ts";
import { until } from "../harness/until.ts";
import { openPage } from "./browser.ts";
import { allDone, flood, whilePaused } from "./flood.ts";
import { servicesOfStart } from "./services.ts";

const stack = await startStack({ after }, { env: { WEIR_CONFIG: servicesOfStart } });

/** Records where dots are drawn. */
const watchDots = `
  globalThis.drawn = new Set();
  const arc = CanvasRenderingContext2D.prototype.arc;
  CanvasRenderingContext2D.prototype.arc = function (x, y, ...rest) {
    drawn.add(x.toFixed(1) + "," + y.toFixed(1));
    return arc.call(this, x, y, ...rest);
  };
`;

/** Records the drawing time of each frame, and the time between frames, in milliseconds. */
const watchFrames = `
  globalThis.frames = { draws: [], gaps: [] };
  const request = globalThis.requestAnimationFrame;
  let last;
  globalThis.requestAnimationFrame = (draw) => request((now) => {
    if (last !== undefined) frames.gaps.push(now - last);
    last = now;
    const begun = performance.now();
    draw(now);
    frames.draws.push(performance.now() - begun);
  });
`;

const quantile = (numbers: number[], part: number): number =>
  numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length * part)] ?? Number.NaN;

describe("the motion of the picture", () => {
  /** A page after all jobs of a flood are done. */
  async function flooded(lifetime: Lifetime, moves: boolean): Promise<Page> {
    const { page } = await openPage(lifetime, { address: someAddress(), moves });
    await page.addInitScript(watchDots);
    await page.addInitScript(watchFrames);
    await page.goto(stack.edge.url);
    await page.getByText("live,").waitFor();
    await flood(page);
    await allDone(page, 104);
    return page;
  }

  /**
   * The number of positions where dots were drawn. Both queues, the slots, the workers and the end have fewer than 800
   * in total.
   */
  const spots = (page: Page): Promise<number> => page.evaluate("drawn.size");

  it("moves smoothly, and draws a flood in a small part of a frame", async (t) => {
    const page = await flooded(t, true);
    const places = await spots(page);
    assert.ok(places > 2000, `${places}`);
    const { draws, gaps } = await page.evaluate<{ draws: number[]; gaps: number[] }>("frames");
    const shown = (numbers: number[]): string =>
      [0.5, 0.95, 0.99].map((part) => `${quantile(numbers, part).toFixed(1)} ms`).join(", ");
    t.diagnostic(
      `${draws.length} frames; p50, p95, p99: drawn in ${shown(draws)}; consecutive frames in ${shown(gaps)}`,
    );
    assert.ok(draws.length > 100, `${draws.length} frames`);
    // A sixtieth of a second must suffice for twice as many dots and for the browser's other work.
    assert.ok(quantile(draws, 0.5) < 1000 / 60 / 4, shown(draws));
  });

  it("does not draw while idle", async (t) => {
    const { page } = await openPage(t, { address: someAddress(), moves: true });
    await page.addInitScript(watchFrames);
    await page.goto(stack.edge.url);
    await page.getByText("live,").waitFor();
    await whilePaused(stack.database.sql, async () => {
      await flood(page);
      const drawn = (): Promise<number> => page.evaluate("frames.draws.length");
      assert.ok((await drawn()) > 0);
      // Allows at least twenty tries, because each takes a second.
      await until(
        "a second without frames",
        async () => {
          const before = await drawn();
          await sleep(1000);
          return (await drawn()) - before < 2;
        },
        1000,
      );
    });
    await allDone(page, 104);
  });

  it("stands still with reduced motion", async (t) => {
    const places = await spots(await flooded(t, false));
    assert.ok(places < 800, `${places}`);
  });
});
