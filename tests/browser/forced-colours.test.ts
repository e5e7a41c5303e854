import assert from "node:assert/strict";
import { after, describe, it } from "node:test";
import type { Page } from "playwright-core";
import sharp from "sharp";
import { someAddress, startStack } from "../harness/stack.ts";
import { until } from "../harness/until.ts";
import { requireAccessible } from "./axe.ts";
import { openPage, picture } from "./browser.ts";
import { allDone, floodAndJoin } from "./flood.ts";
import { servicesOfStart } from "./services.ts";

const stack = await startStack({ after }, { env: { WEIR_CONFIG: servicesOfStart } });

/** The share of these pixels (red, green, blue, alpha) that stands out from a black or white background. */
function visiblePart(pixels: ArrayLike<number>, ground: "black" | "white"): number {
  let visible = 0;
  for (let at = 0; at < pixels.length; at += 4) {
    const [red = 0, green = 0, blue = 0, alpha = 0] = [0, 1, 2, 3].map((n) => (pixels[at + n] ?? 0) / 255);
    const linear = (value: number): number => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    const luminance = 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
    const contrast = ground === "black" ? (luminance + 0.05) / 0.05 : 1.05 / (luminance + 0.05);
    // WCAG 1.4.11's requirement for graphics.
    if (alpha > 0.5 && contrast >= 3) visible++;
  }
  return (4 * visible) / pixels.length;
}

/** The same for the element with this selector. The page may replace it at any time, so its position is read once. */
async function visiblePartOf(page: Page, selector: string, ground: "black" | "white"): Promise<number> {
  const clip = await page.evaluate<{ x: number; y: number; width: number; height: number }>(
    `document.querySelector("${selector}").getBoundingClientRect().toJSON()`,
  );
  const shot = await page.screenshot({ clip });
  return visiblePart(await sharp(shot).ensureAlpha().raw().toBuffer(), ground);
}

/** The drawn pixels, without the text above them. */
async function drawn(page: Page): Promise<number[]> {
  return page.evaluate(`(() => {
    const canvas = document.querySelector("#weir-stage canvas");
    const { width, height } = canvas;
    return [...canvas.getContext("2d").getImageData(0, 0, width, height).data];
  })()`);
}

describe("the page in forced colours", () => {
  it("shows the picture and the bars on black and on white", async (t) => {
    const { page } = await openPage(t, { address: someAddress(), colorScheme: "dark" });
    const grounds = [
      ["dark", "black"],
      ["light", "white"],
    ] as const;
    const on = (colorScheme: "dark" | "light"): Promise<void> =>
      page.emulateMedia({ forcedColors: "active", colorScheme });
    await on("dark");
    await page.goto(stack.edge.url);
    await page.getByText("live,").waitFor();
    await floodAndJoin(page, stack.database.sql);
    await page.getByText(/you finished in/).waitFor();
    await allDone(page, 105);
    for (const [colorScheme, ground] of grounds) {
      await on(colorScheme);
      // The picture is redrawn when the colors change. It has a hundred dots with a radius of at least two pixels.
      await until(`the picture on ${ground}`, async () => visiblePart(await drawn(page), ground) > 0.005);
      // More than an outline: one bar is filled, the other striped.
      for (const bar of [".bar .mine", ".bar .shared"]) {
        const part = await visiblePartOf(page, bar, ground);
        assert.ok(part > 0.4, `${part} of ${bar} on ${ground}`);
      }
    }

    await page.getByRole("tab", { name: "Your jobs" }).click();
    await page.getByRole("button", { name: "Free", exact: true }).click();
    await page.getByText("Plan: Free").waitFor();
    await page.getByRole("button", { name: "Submit one" }).click();
    await page.getByText(/used 1 · reserved 0 · left 49 ·/).waitFor();
    for (const [colorScheme, ground] of grounds) {
      await on(colorScheme);
      const used = await visiblePartOf(page, ".track .used", ground);
      assert.ok(used > 0.4, `${used} of what is used on ${ground}`);
      await picture(page, `forced-colours-${colorScheme}`);
      await requireAccessible(page);
    }
  });
});
