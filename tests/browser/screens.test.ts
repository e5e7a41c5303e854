import assert from "node:assert/strict";
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, it } from "node:test";
import type { Page, Route } from "playwright-core";
import sharp from "sharp";
import { buildPage } from "../../scripts/lib/page.ts";
import { root, state } from "../../scripts/lib/paths.ts";
import { openPage } from "./browser.ts";
import { plainSite } from "./site.ts";

// Compares the page with stored screenshots. After an intended change, run UPDATE_SNAPSHOTS=1 npm test --
// screens.test.ts, and inspect the pictures before you commit them.

const kept = join(import.meta.dirname, "screens");
const font = join(import.meta.dirname, "font", "inter.woff2");
/** A pixel differs when a channel differs by more than this. Text rendering varies slightly between machines. */
const tolerance = 64;
/** The share of pixels that may differ. */
const allowed = 0.01;
/** A missing sentence is a small part of the page, so squares of this many pixels are also compared. */
const tile = 40;
/** A tile differs when more than this share of its pixels does. Text covers a tenth to a quarter of a tile. */
const allowedInTile = 0.05;
const allowedTiles = 3;

/** The same font on every machine, no blinking, and no clock. */
const style = `
  @font-face { font-family: Fixed; src: url(/font.woff2); font-weight: 100 900; }
  *, ::before { font-family: Fixed, sans-serif !important; caret-color: transparent !important; }
  #live, .notices { visibility: hidden; }
`;
const fixedFontOnCanvas = `
  const { set, get } = Object.getOwnPropertyDescriptor(CanvasRenderingContext2D.prototype, "font");
  Object.defineProperty(CanvasRenderingContext2D.prototype, "font", {
    get,
    set(font) { set.call(this, font.replace("system-ui", "Fixed")); },
  });
`;

const types: Record<string, string> = {
  html: "text/html",
  js: "text/javascript",
  css: "text/css",
  svg: "image/svg+xml",
};

/** Serves the page without a server, as one without development routes, so that the page shows its recording. */
async function serve(route: Route): Promise<void> {
  const path = new URL(route.request().url()).pathname;
  if (path === "/font.woff2") return route.fulfill({ path: font, contentType: "font/woff2" });
  if (path === "/api/openapi.json") return route.fulfill({ json: { info: {}, paths: {} } });
  if (path.startsWith("/api/")) return;
  const name = path === "/" ? "index.html" : path.slice(1);
  const file = join(root, "dist", name);
  if (!existsSync(file)) return route.fulfill({ status: 404 });
  const text = readFileSync(file, "utf8");
  await route.fulfill({
    body: name === "style.css" ? text + style : text,
    contentType: `${types[name.split(".").at(-1) ?? ""]}; charset=utf-8`,
  });
}

/** Compares the visible part with the stored screenshot, or stores it. */
async function compare(page: Page, name: string): Promise<void> {
  const shot = await page.screenshot({ animations: "disabled" });
  const path = join(kept, `${name}.png`);
  if (process.env.UPDATE_SNAPSHOTS) {
    mkdirSync(kept, { recursive: true });
    await sharp(shot).png({ palette: true, colours: 128, dither: 0 }).toFile(path);
    return;
  }
  const { share, tiles } = await difference(shot, path);
  if (share <= allowed && tiles <= allowedTiles) return;
  const seen = join(state, "screenshots", `${name}.png`);
  mkdirSync(join(state, "screenshots"), { recursive: true });
  await sharp(shot).toFile(seen);
  assert.fail(`${(100 * share).toFixed(1)} % of ${name} and ${tiles} tiles differ: compare ${seen} with ${path}`);
}

/** The share of different pixels, and the number of different tiles. */
async function difference(shot: Buffer, path: string): Promise<{ share: number; tiles: number }> {
  const pixels = (image: Buffer | string) => sharp(image).removeAlpha().raw().toBuffer({ resolveWithObject: true });
  const [now, before] = await Promise.all([pixels(shot), pixels(path)]);
  const { width, height } = now.info;
  assert.deepEqual([width, height], [before.info.width, before.info.height], path);
  const differs = (at: number): boolean =>
    [0, 1, 2].some((channel) => Math.abs((now.data[at + channel] ?? 0) - (before.data[at + channel] ?? 0)) > tolerance);
  let different = 0;
  const inTile = new Map<string, number>();
  for (let n = 0; n < width * height; n++) {
    if (!differs(3 * n)) continue;
    different++;
    const name = `${Math.floor((n % width) / tile)},${Math.floor(n / width / tile)}`;
    inTile.set(name, (inTile.get(name) ?? 0) + 1);
  }
  const tiles = [...inTile.values()].filter((count) => count > allowedInTile * tile * tile).length;
  return { share: different / (width * height), tiles };
}

/** Checks that the comparison sees a missing headline or sentence. */
async function requireSeen(page: Page, name: string): Promise<void> {
  if (process.env.UPDATE_SNAPSHOTS) return;
  for (const selector of [".claim", "#flood-sentence"]) {
    const set = (value: string) => page.evaluate(`document.querySelector("${selector}").style.visibility = "${value}"`);
    await set("hidden");
    const { tiles } = await difference(await page.screenshot({ animations: "disabled" }), join(kept, `${name}.png`));
    await set("");
    assert.ok(tiles > allowedTiles, `a missing ${selector} changes ${tiles} tiles of ${name}`);
  }
}

describe("the page matches its screenshots", () => {
  for (const [width, height] of [
    [390, 844],
    [1280, 800],
    [1440, 900],
  ] as const)
    for (const colorScheme of ["light", "dark"] as const)
      it(`${width} px, ${colorScheme}`, async (t) => {
        await buildPage();
        const { page } = await openPage(t, { width, height, colorScheme });
        await page.addInitScript(fixedFontOnCanvas);
        await page.clock.install();
        await page.route(`${plainSite}/**`, serve);
        await page.goto(plainSite);
        await page.evaluate("document.fonts.load('16px Fixed')");
        await page.clock.runFor(3000);
        await page.getByText("A recording of a real run").waitFor();
        // Plays the recording to its end.
        await page.clock.runFor(60_000);
        await page.getByText(/All 105 jobs are done\.$/).waitFor();
        await page.evaluate("document.activeElement?.blur()");
        const bars = await page.locator("#flood-result").boundingBox();
        assert.ok(bars && bars.y + bars.height < height, "the first screen shows the bars");
        await compare(page, `flooded-${width}-${colorScheme}`);
        await requireSeen(page, `flooded-${width}-${colorScheme}`);
        await page.locator("#tab-try").scrollIntoViewIfNeeded();
        await page.evaluate("document.querySelector('.bar-of-tabs').scrollIntoView()");
        await compare(page, `try-${width}-${colorScheme}`);
      });
});
