import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, it } from "node:test";
import { gzipSync } from "node:zlib";
import { root } from "../../scripts/lib/paths.ts";
import { openPage, untilTrue } from "./browser.ts";
import { servePage, site } from "./site.ts";

/**
 * The files that the form needs. The document names them, so a browser requests them at once, and the form works after
 * two round trips. A file that only the script names would add a third.
 */
const files = ["/", "/main.js", "/style.css", "/weir.svg"];

describe("a new page", () => {
  it("has a form that works after four requests and 36 KiB", async (t) => {
    const { page } = await openPage(t);
    const requested = new Set<string>();
    page.on("request", (request) => requested.add(new URL(request.url()).pathname));
    // The API never answers.
    await servePage(page, async () => {});
    await page.goto(site);
    await page.getByLabel("Or use a sample").selectOption("Go");
    await untilTrue(page, "document.getElementById('content').value !== ''");
    assert.deepEqual([...requested].filter((path) => !path.startsWith("/api/")).sort(), files);
    const texts = files.map((path) => readFileSync(join(root, "dist", path === "/" ? "index.html" : path)));
    for (const path of files.slice(1)) assert.ok(texts[0]?.includes(`"${path}"`), `index.html names ${path}`);
    const bytes = texts.reduce((sum, text) => sum + gzipSync(text).length, 0);
    assert.ok(bytes < 36 * 1024, `${bytes} bytes compressed`);
  });
});
