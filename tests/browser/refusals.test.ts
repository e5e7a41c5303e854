import assert from "node:assert/strict";
import { describe, it, type TestContext } from "node:test";
import type { Page, Route } from "playwright-core";
import { openPage } from "./browser.ts";
import { servePage, site } from "./site.ts";

const lane = { oldest_wait_ms: 0, paused: false, queued: 0, running: 0, lent: 0, workers: 1 };

/** A page for whom the server has only analyses. `answer` answers submissions. */
async function open(t: TestContext, answer: (route: Route) => Promise<void>, locale?: string): Promise<Page> {
  const { page } = await openPage(t, locale ? { locale } : {});
  page.setDefaultTimeout(10_000);
  await servePage(page, async (route, path) => {
    if (path === "/api/openapi.json") return route.fulfill({ json: { info: {}, paths: {} } });
    if (path === "/api/jobs/analysis") return answer(route);
    if (path !== "/api/lanes/events") return;
    const service = { parked: 0, priority: lane, default: lane, scheduled: lane };
    const body = { at: new Date().toISOString(), oldest_wait_ms: 0, parked: 0, services: { analysis: service } };
    return route.fulfill({ contentType: "text/event-stream", body: `event: lanes\ndata: ${JSON.stringify(body)}\n\n` });
  });
  await page.goto(site);
  await page.locator("#live.alive").waitFor();
  return page;
}

async function refusal(page: Page): Promise<string> {
  await page.locator("#analyse").click();
  return (await page.getByRole("alert").textContent()) ?? "";
}

const quota = { used: 50, reserved: 0, overage: 0, limit: 50, remaining: 0, reset_at: "2031-01-15T06:00:00Z" };

describe("the page's text for a refusal", () => {
  it("has no countdown that is over or contradicts it", async (t) => {
    let after: string | undefined = "0";
    const page = await open(t, (route) =>
      route.fulfill({ status: 503, json: {}, ...(after ? { headers: { "Retry-After": after } } : {}) }),
    );
    const title = "The service is temporarily unavailable";
    assert.equal(await refusal(page), `${title}Try again in a few seconds.`);
    after = "7";
    assert.match(await refusal(page), new RegExp(`^${title}You can try again in [67] s\\.$`));
    after = undefined;
    assert.equal(await refusal(page), `${title}Try again in a few seconds.`);
  });

  it("names the window that has no room", async (t) => {
    let window = "hour";
    const answer = (route: Route): Promise<void> =>
      route.fulfill({
        status: 429,
        headers: { "Retry-After": "1200" },
        json: { quota: { ...quota, remaining: 9 }, windows: [{ ...quota, window }] },
      });
    const page = await open(t, answer);
    assert.match(await refusal(page), /Your plan allows 50 per hour\. 0 are left until /);
    assert.doesNotMatch(await refusal(page), /try again/i, "the date says when");
    window = "month";
    assert.match(await refusal(page), /used up0 of 50 are left until /);
    const korean = await open(t, answer, "ko-KR");
    assert.match(await refusal(korean), /남은 한도: 50 중 0\. 2031년 1월 15일 (오전 )?\d+:00에 초기화됩니다\./);
  });

  it("marks only the server's words as English", async (t) => {
    const page = await open(t, (route) => route.fulfill({ status: 422, json: { detail: "no such thing" } }), "ko-KR");
    await refusal(page);
    assert.deepEqual(await page.locator("#notice-text [lang=en]").allTextContents(), ["no such thing"]);
  });
});
