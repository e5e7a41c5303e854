import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { openPage } from "./browser.ts";
import { servePage, site } from "./site.ts";

describe("the page without JavaScript", () => {
  it("explains the demonstration and shows no control without effect", async (t) => {
    const { page } = await openPage(t, { hasScripts: false });
    await servePage(page, (route) => route.abort());
    await page.goto(site);
    for (const notice of await page.locator("noscript .notice").all()) assert.ok(await notice.isVisible());
    assert.equal(await page.locator("noscript .notice").count(), 2, "in English and in Korean");
    const visible = await page.locator("button, input, select, textarea, canvas, [role=tab], a[href^='#']").all();
    const shown: string[] = [];
    for (const control of visible) if (await control.isVisible()) shown.push((await control.textContent()) ?? "");
    assert.deepEqual(shown, []);
    assert.equal(await page.locator("form [name]").count(), 0, "a form sends no content in the address");
  });
});
