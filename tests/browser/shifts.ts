import assert from "node:assert/strict";
import type { Page } from "playwright-core";

/** Records the layout shifts since the first paint that no input caused. */
export const watchShifts = `
  globalThis.shifts = [];
  const place = ({ y, height }) => Math.round(y) + "+" + Math.round(height);
  new PerformanceObserver((list) => {
    for (const { value, hadRecentInput, sources } of list.getEntries()) {
      if (hadRecentInput) continue;
      const moved = sources.map(({ node, previousRect, currentRect }) =>
        (node?.outerHTML ?? node?.textContent ?? "").slice(0, 60) + " " + place(previousRect) + " to " + place(currentRect));
      shifts.push({ value, moved });
    }
  }).observe({ type: "layout-shift", buffered: true });
`;

/** Fails when the layout has shifted by more than `most`, and lists the shifts. */
export async function requireStill(page: Page, most: number): Promise<void> {
  const shifts = await page.evaluate<{ value: number; moved: string[] }[]>("shifts");
  const sum = shifts.reduce((total, { value }) => total + value, 0);
  assert.ok(sum < most, `${sum}: ${JSON.stringify(shifts, null, 1)}`);
}
