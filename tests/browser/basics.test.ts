import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { after, describe, it } from "node:test";
import { promisify } from "node:util";
import { gzipSync } from "node:zlib";
import { root } from "../../scripts/lib/paths.ts";
import type { Accepted } from "../../www/src/generated/api.d.ts";
import { canFreeze, freeze } from "../harness/processes.ts";
import { someAddress, startStack } from "../harness/stack.ts";
import { startOrigin } from "../harness/weir.ts";
import { requireAccessible } from "./axe.ts";
import { openPage, picture, untilTrue } from "./browser.ts";
import { requireStill, watchShifts } from "./shifts.ts";

const stack = await startStack({ after });

/** Tries the form until it answers: a chosen sample fills it. Records when, and the longest task, in milliseconds. */
const watchForm = `
  globalThis.formWatch = { answered: undefined, longest: 0 };
  new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) formWatch.longest = Math.max(formWatch.longest, duration);
  }).observe({ type: "longtask", buffered: true });
  const attempt = setInterval(() => {
    const [sample, content] = ["sample", "content"].map((id) => document.getElementById(id));
    if (!sample || !content) return;
    sample.value = "Go";
    sample.dispatchEvent(new Event("change"));
    if (!content.value) return;
    formWatch.answered = performance.now();
    clearInterval(attempt);
  }, 10);
`;

describe("the page", () => {
  for (const [locale, width] of [
    ["en-GB", 360],
    ["ko-KR", 360],
    ["en-GB", 1920],
    ["ko-KR", 1920],
  ] as const) {
    it(`is small, needs no other host, does not shift (${locale}, ${width} px)`, async (t) => {
      const { page, complaints } = await openPage(t, { address: someAddress(), locale, width, height: 900 });
      let bytes = 0;
      const devtools = await page.context().newCDPSession(page);
      await devtools.send("Network.enable");
      devtools.on("Network.loadingFinished", (loaded) => (bytes += loaded.encodedDataLength));
      const hosts = new Set<string>();
      page.on("request", (request) => hosts.add(new URL(request.url()).origin));
      await page.addInitScript(watchShifts);
      await page.goto(stack.edge.url);
      await page.getByText(locale === "ko-KR" ? /^실시간 ·/ : /^live,/).waitFor();
      // Long enough for two events of the lanes.
      await page.waitForTimeout(1500);
      await requireStill(page, 0.005);
      assert.deepEqual([...hosts], [new URL(stack.edge.url).origin]);
      assert.ok(bytes > 10_000 && bytes < 150_000, `${bytes} bytes`);
      assert.equal(
        await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"),
        0,
      );
      const [tab, part] = [await page.locator("#tab-try").boundingBox(), await page.locator("#try").boundingBox()];
      const gap = (part?.y ?? 0) - (tab?.y ?? 0) - (tab?.height ?? 0);
      assert.ok(Math.abs(gap) < 2, `the tab is ${gap} px from its part`);
      assert.deepEqual(complaints, []);
    });
  }

  it("is under 60 KiB compressed, including everything it loads", async (t) => {
    const { page } = await openPage(t, { address: someAddress() });
    const folder = join(root, "dist");
    const sizes = readdirSync(folder).map((name) => [name, gzipSync(readFileSync(join(folder, name))).length] as const);
    const sum = sizes.reduce((total, [, size]) => total + size, 0);
    assert.ok(sum < 60 * 1024, `${sum} bytes: ${sizes.map(([name, size]) => `${name} ${size}`).join(", ")}`);
    const devtools = await page.context().newCDPSession(page);
    await devtools.send("Network.emulateNetworkConditions", {
      offline: false,
      latency: 40,
      downloadThroughput: (10_000_000 / 8) | 0,
      uploadThroughput: (5_000_000 / 8) | 0,
    });
    await devtools.send("Emulation.setCPUThrottlingRate", { rate: 4 });
    await page.addInitScript(watchForm);
    await page.goto(stack.edge.url);
    // This origin has no demonstration services, so the page loads the recording, its last part.
    await page.getByRole("button", { name: "Play again" }).waitFor();
    await untilTrue(page, "formWatch.answered !== undefined");
    const { answered, longest } = await page.evaluate<{ answered: number; longest: number }>("formWatch");
    // Reported but not asserted, because they depend on the machine's load.
    t.diagnostic(
      `${sum} bytes compressed; on 10 Mbit/s with a quarter of the CPU, the form answers after ` +
        `${Math.round(answered)} ms, and the longest task takes ${Math.round(longest)} ms`,
    );
  });

  it("renders before any data arrives", async (t) => {
    const { page } = await openPage(t, { address: someAddress() });
    await page.route("**/api/**", () => {});
    await page.goto(stack.edge.url);
    await page.getByRole("heading", { name: "Sample service: find tests in source files" }).waitFor();
    await page.getByText("Connecting…").waitFor();
    // The document is painted a moment after it is loaded.
    await untilTrue(page, "performance.getEntriesByName('first-contentful-paint').length");
  });

  it("never shows more busy workers than exist", async (t) => {
    const { page } = await openPage(t, { address: someAddress() });
    const lane = { oldest_wait_ms: 0, paused: false, queued: 0, running: 0, workers: 0 };
    const service = (running: number, workers: number) => ({
      parked: 0,
      priority: lane,
      default: { ...lane, running, workers },
      scheduled: lane,
    });
    const services = { fewer: service(2, 3), all: service(3, 3), more: service(4, 3), unknown: service(1, 0) };
    const body = `event: lanes\ndata: ${JSON.stringify({ oldest_wait_ms: 0, parked: 0, services })}\n\n`;
    await page.route("**/api/lanes/events", (route) => route.fulfill({ contentType: "text/event-stream", body }));
    await page.goto(stack.edge.url);
    await page.getByRole("tab", { name: "Right now" }).click();
    const workers = async (name: string): Promise<string | null> =>
      page.getByRole("row", { name }).locator("td").nth(2).textContent();
    await page.getByRole("rowheader", { name: "more" }).waitFor();
    assert.deepEqual(
      [await workers("fewer"), await workers("all"), await workers("more"), await workers("unknown")],
      ["2 of 3 workers", "3 of 3 workers", "4", "1"],
    );
  });

  it("has the same texts in its HTML and its script", async (t) => {
    const { page } = await openPage(t, { address: someAddress() });
    await page.route("**/api/**", () => {});
    await page.goto(stack.edge.url);
    await page.getByText("Connecting…").waitFor();
    const written = await page.evaluate<Record<string, string>>(
      "Object.fromEntries([...document.querySelectorAll('[data-t]')].map((node) => [node.dataset.t, node.textContent]))",
    );
    const html = readFileSync(join(root, "www", "index.html"), "utf8");
    const marked = [...html.matchAll(/data-t="(\w+)"[^>]*>([^<]*)</g)];
    assert.ok(marked.length > 30, `${marked.length}`);
    for (const [, key = "", text] of marked) assert.equal(text, written[key], key);
  });

  for (const [colorScheme, locale] of [
    ["light", "en-GB"],
    ["dark", "ko-KR"],
  ] as const) {
    it(`has no axe violations in any part (${colorScheme}, ${locale})`, async (t) => {
      const { page } = await openPage(t, { address: someAddress(), colorScheme, locale, width: 400 });
      await page.goto(`${stack.edge.url}/#account`);
      await page.getByRole("button", { name: "Pro Plus" }).click();
      await page.locator("#quotas .quota").first().waitFor();
      for (const part of ["try", "account", "now", "api"]) {
        await page.locator(`#tab-${part}`).click();
        if (part === "api") await page.locator(".route").first().waitFor();
        await requireAccessible(page);
      }
    });
  }

  it("shows the request just made, with its token, and every route", async (t) => {
    const { page, complaints } = await openPage(t, { address: someAddress() });
    await page.goto(`${stack.edge.url}/#account`);
    await page.getByRole("button", { name: "Free", exact: true }).click();
    await page.getByRole("button", { name: "Submit one" }).click();
    await page.getByText("1 accepted, 0 refused").waitFor();
    await page.getByRole("tab", { name: "API" }).click();
    await page.getByText("The request that this page has just made:").waitFor();
    const command = (await page.locator("#curl").textContent()) ?? "";
    const { stdout } = await promisify(execFile)("bash", ["-c", command.replace("curl", "curl -s")]);
    const { job } = JSON.parse(stdout) as Accepted;
    assert.equal(job.plan, "free", "the command does the same as the page");
    const described = JSON.parse(readFileSync(join(root, "native/tests/snapshots/openapi.json"), "utf8")) as {
      paths: Record<string, object>;
    };
    for (const path of ["/api/jobs/{service}", ...Object.keys(described.paths)]) {
      const shown = path.replace("{id}/batch", "{service}/batch");
      await page.locator("#document code").getByText(shown, { exact: true }).first().waitFor();
    }
    for (const group of ["that users call", "that your backend calls", "that workers call", "in development only"])
      await page.getByRole("heading", { name: `Routes ${group}` }).waitFor();
    await page.getByText("Submits a job. The body is the job's arguments.").first().click();
    await picture(page, "api");
    assert.deepEqual(complaints, []);
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
    while ((await focused()) !== "tab-try") await page.keyboard.press("Shift+Tab");
    await page.keyboard.press("ArrowRight");
    assert.equal(await focused(), "tab-account");
    await tabTo("Free");
    await page.keyboard.press("Enter");
    await page.getByText("Plan: Free").waitFor();
    await untilTrue(page, "document.activeElement.id === 'submit-one'");
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

  it("shows a lost connection and a slow submission only while they last", {
    skip: !canFreeze,
  }, async (t) => {
    const { page } = await openPage(t, { address: someAddress() });
    await page.goto(stack.edge.url);
    await page.getByText(/^live,/).waitFor();
    await page.getByLabel("Or use a sample").selectOption("Go");
    const frozen = stack.origin.process.current.pid;
    const thaw = freeze(frozen ?? 0);
    try {
      await page.getByRole("button", { name: "Analyse" }).click();
      await page.getByText(/^No answer yet after \d+ s\. Still waiting…$/).waitFor();
      await page.getByText(/^No data from the server since \d+:\d\d:\d\d/).waitFor();
      await page.getByText(/^silent for \d+\.\d s$/).waitFor();
      await picture(page, "silent");
      assert.equal(await page.evaluate("document.activeElement.id"), "analyse");
    } finally {
      thaw();
    }
    const found = page.getByText("3 tests found");
    await found.waitFor({ timeout: 15_000 }).catch(async () => {
      // If a busy machine freezes it for longer than its lease, it ends itself and is restarted.
      assert.notEqual(stack.origin.process.current.pid, frozen, "it continues, and does not answer");
      await page.getByRole("button", { name: "Analyse" }).click();
      await found.waitFor();
    });
    await page.locator("#hanging").waitFor({ state: "hidden" });
    await page.locator("#stale").waitFor({ state: "hidden" });
  });

  it("reports an unreachable origin without layout shifts, and recovers", async (t) => {
    const { page } = await openPage(t, { address: someAddress() });
    await page.goto(stack.edge.url);
    const notice = page.getByText("No data from the server since");
    await page.getByText(/^live,/).waitFor();
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
