import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, describe, it } from "node:test";
import { root } from "../../scripts/lib/paths.ts";
import { someAddress, startStack } from "../harness/stack.ts";
import { startOrigin } from "../harness/weir.ts";
import { openPage } from "./browser.ts";

const stack = await startStack({ after });

/** Adds up the layout shifts since the first paint that no input caused. */
const watchShifts = `
  globalThis.shifted = 0;
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) shifted += entry.value;
  }).observe({ type: "layout-shift", buffered: true });
`;

describe("the page", () => {
  for (const [locale, width] of [
    ["en-GB", 360],
    ["ko-KR", 360],
    ["en-GB", 1920],
    ["ko-KR", 1920],
  ] as const) {
    it(`is small, uses no other host, and does not shift while it loads (${locale}, ${width} px)`, async (t) => {
      const { page, complaints } = await openPage(t, { address: someAddress(), locale, width, height: 900 });
      let bytes = 0;
      const devtools = await page.context().newCDPSession(page);
      await devtools.send("Network.enable");
      devtools.on("Network.loadingFinished", (loaded) => (bytes += loaded.encodedDataLength));
      const hosts = new Set<string>();
      page.on("request", (request) => hosts.add(new URL(request.url()).origin));
      await page.addInitScript(watchShifts);
      await page.goto(stack.edge.url);
      await page.locator(".lane-table").first().waitFor();
      await page.locator("#charts canvas").first().waitFor();
      // Long enough for two events of the lanes.
      await page.waitForTimeout(1500);
      assert.ok((await page.evaluate<number>("shifted")) < 0.005, `${await page.evaluate("shifted")}`);
      assert.deepEqual([...hosts], [new URL(stack.edge.url).origin]);
      assert.ok(bytes > 10_000 && bytes < 150_000, `${bytes} bytes`);
      assert.equal(
        await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"),
        0,
      );
      assert.deepEqual(complaints, []);
    });
  }

  it("renders before any data arrives", async (t) => {
    const { page } = await openPage(t, { address: someAddress() });
    await page.route("**/api/**", () => {});
    await page.goto(stack.edge.url);
    await page.getByRole("heading", { name: "Find the tests in a file" }).waitFor();
    await page.getByRole("rowheader", { name: "priority" }).first().waitFor();
    assert.ok(await page.evaluate("performance.getEntriesByName('first-contentful-paint').length"));
  });

  it("has the same texts in its HTML as in its script", async (t) => {
    const { page } = await openPage(t, { address: someAddress() });
    await page.goto(stack.edge.url);
    await page.getByRole("rowheader", { name: "priority" }).first().waitFor();
    const written = await page.evaluate<Record<string, string>>(
      "Object.fromEntries([...document.querySelectorAll('[data-t]')].map((node) => [node.dataset.t, node.textContent]))",
    );
    const html = readFileSync(join(root, "www", "index.html"), "utf8");
    const marked = [...html.matchAll(/data-t="(\w+)"[^>]*>([^<]*)</g)];
    assert.ok(marked.length > 30, `${marked.length}`);
    // These depend on the visitor.
    const fixed = marked.filter(([, key = ""]) => !["allowanceUnknown"].includes(key));
    for (const [, key = "", text] of fixed) assert.equal(text, written[key], key);
  });

  it("works with the keyboard alone", async (t) => {
    const { page } = await openPage(t, { address: someAddress() });
    await page.goto(stack.edge.url);
    const focused = (): Promise<string> =>
      page.evaluate("document.activeElement.id || document.activeElement.textContent");
    const tabTo = async (id: string): Promise<void> => {
      for (let n = 0; (await focused()) !== id; n++) {
        assert.ok(n < 40, `Tab does not reach ${id}`);
        await page.keyboard.press("Tab");
      }
    };
    await page.keyboard.press("Tab");
    assert.equal(await focused(), "Skip to the form");
    await tabTo("sample");
    await page.keyboard.type("Go");
    await tabTo("analyse");
    await page.keyboard.press("Enter");
    await page.getByText("3 tests found").waitFor();
    await tabTo("Free");
    await page.keyboard.press("Enter");
    await page.getByText("Plan: Free").waitFor();
    await tabTo("submit-one");
    await page.keyboard.press("Enter");
    const show = page.getByRole("button", { name: /^Show/ });
    await show.waitFor();
    await tabTo("jobs-scroll");
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await page.getByRole("dialog").getByRole("listitem").first().waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "hidden" });
    assert.match(await page.evaluate("document.activeElement.outerHTML"), /^<button.*Show/, "back to where it was");
  });

  it("says that the origin is away, without shifting, and recovers", async (t) => {
    const { page } = await openPage(t, { address: someAddress() });
    await page.goto(stack.edge.url);
    const notice = page.getByText("No answer from the server. Trying again…");
    await page.getByRole("rowheader", { name: "priority" }).first().waitFor();
    await page.waitForTimeout(1500);
    assert.ok(await notice.isHidden());
    const main = page.getByRole("main");
    const before = await main.boundingBox();
    await stack.origin.stop();
    await notice.waitFor();
    assert.deepEqual(await main.boundingBox(), before);
    await startOrigin(t, { database: stack.database, secrets: stack.secrets, port: stack.origin.port });
    await notice.waitFor({ state: "hidden" });
  });
});
