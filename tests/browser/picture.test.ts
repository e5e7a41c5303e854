import assert from "node:assert/strict";
import { after, describe, it } from "node:test";
import type { Page } from "playwright-core";
import { type Stack, someAddress, startStack } from "../harness/stack.ts";
import { requireAccessible } from "./axe.ts";
import { openPage, picture } from "./browser.ts";
import { allDone, flood, joins, whilePaused } from "./flood.ts";
import { servicesOfALongFlood } from "./services.ts";
import { requireStill, watchShifts } from "./shifts.ts";

const stack = await startStack({ after }, { env: { WEIR_CONFIG: servicesOfALongFlood() } });
const production = await startStack({ after }, { env: { WEIR_ENV: "production" }, vars: { DEVELOPMENT: "" } });

interface Newcomer {
  seconds: number;
  place: number;
}

/** The database's record of the last job of a kind, which is the newcomer's. */
async function newcomer({ database: { sql } }: Stack, kind: string): Promise<Newcomer> {
  const [found] = await sql<Newcomer[]>`
    WITH mine AS (SELECT * FROM river_job WHERE kind = ${kind} ORDER BY id DESC LIMIT 1)
    SELECT extract(epoch FROM mine.finalized_at - mine.created_at)::float8 AS seconds,
           (SELECT count(*)::int FROM river_job WHERE kind = ${kind} AND finalized_at <= mine.finalized_at) AS place
      FROM mine`;
  assert.ok(found, "there is a newcomer");
  return found;
}

/** Records the letters last drawn on each canvas. */
const watchLetters = `
  const drawing = CanvasRenderingContext2D.prototype;
  const { clearRect, fillText } = drawing;
  drawing.clearRect = function (...box) {
    this.canvas.letters = [];
    return clearRect.apply(this, box);
  };
  drawing.fillText = function (text, x, y) {
    (this.canvas.letters ??= []).push({ text, x, y });
    return fillText.call(this, text, x, y);
  };
`;

/** The letters of the finished jobs, in the order shown in the picture. */
async function drawnOrder(page: Page, stage: string): Promise<string> {
  const letters = await page.evaluate<{ text: string; x: number; y: number }[]>(
    `(() => {
      const stage = document.querySelector("${stage}");
      const left = stage.querySelector(".done-box").getBoundingClientRect().left - stage.getBoundingClientRect().left;
      return stage.querySelector("canvas").letters.filter(({ x }) => x >= left);
    })()`,
  );
  const rows = letters.toSorted((a, b) => Math.round(a.y - b.y) || a.x - b.x);
  return rows.map(({ text }) => text).join("");
}

/** The numbers in the sentence about a newcomer. */
const sentence = new RegExp(
  "^(\\d+) jobs were waiting when you joined; you finished in ([\\d.]+) s, in (\\d+)(?:st|nd|rd|th) place\\. " +
    "In the shared queue: ([\\d.]+) s, in (\\d+)(?:st|nd|rd|th) place\\. All 105 jobs are done\\.$",
);

describe("the picture", () => {
  it("describes the newcomer as the picture and the database do", async (t) => {
    const { page, complaints } = await openPage(t, { address: someAddress() });
    await page.addInitScript(watchShifts);
    await page.addInitScript(watchLetters);
    await page.goto(stack.edge.url);
    await page.getByText("live,").waitFor();
    const join = page.getByRole("button", { name: "Join as a newcomer" });
    assert.equal(await join.getAttribute("aria-disabled"), "true", "joining waits for the flood");
    const { sql } = stack.database;
    const says = page.locator("#flood-sentence");
    let waiting = 0;
    await whilePaused(sql, async () => {
      await flood(page);
      await page.locator("#join:not([aria-disabled])").waitFor();
      for (const count of await page.locator("#weir-stage .count").allTextContents())
        waiting += Number.parseInt(count, 10);
      await joins(sql, () => join.click());
      await says.getByText(`${waiting} jobs were waiting when you joined.`, { exact: true }).waitFor();
      const compared = await page.locator("#flood-result strong").count();
      assert.equal(compared, 0, "nothing is compared before the star has landed");
    });
    await says.getByText(/you finished in/).waitFor();
    await page
      .locator("#flood-result")
      .getByText(/ s so far$/)
      .waitFor();
    await picture(page, "newcomer");
    await says.getByText("All 105 jobs are done.").waitFor();
    await picture(page, "flooded");

    const words = (await says.textContent()) ?? "";
    const [ahead, seconds, place, sharedSeconds, sharedPlace] = (sentence.exec(words) ?? []).slice(1).map(Number);
    assert.equal(ahead, waiting, words);
    assert.equal(waiting, 101, "the rest of the flood has slots");
    for (const [stage, kind, shownPlace, shownSeconds] of [
      ["#weir-stage", "demo:work", place, seconds],
      ["#shared-stage", "demo:shared", sharedPlace, sharedSeconds],
    ] as const) {
      const order = await drawnOrder(page, stage);
      assert.equal(order.length, 105, order);
      assert.equal(order.indexOf("★") + 1, shownPlace, `${words}; ${order}`);
      const known = await newcomer(stack, kind);
      assert.equal(known.place, shownPlace, words);
      assert.ok(Math.abs(known.seconds - (shownSeconds ?? 0)) < 0.06, `${words}; measured: ${known.seconds}`);
    }
    // The last job to start may end before others that run at the same time.
    assert.ok((sharedPlace ?? 0) >= 100, `the shared queue is first come, first served: ${words}`);
    assert.ok((place ?? 105) < 50 && (seconds ?? 0) * 2 < (sharedSeconds ?? 0), words);
    const [lent] = await sql<{ demo: number; shared: number }[]>`
      SELECT count(*) FILTER (WHERE kind = 'demo:work')::int AS demo,
             count(*) FILTER (WHERE kind = 'demo:shared')::int AS shared
        FROM river_job WHERE metadata ? 'weir:lent'`;
    assert.ok((lent?.demo ?? 0) > 0, "A's last jobs use idle workers");
    assert.equal(lent?.shared, 0);
    assert.doesNotMatch((await page.locator("#crowded").textContent()) ?? "", /Other jobs/);
    const bars = await page.locator("#flood-result strong").allTextContents();
    assert.ok(
      bars.every((bar) => words.includes(bar)),
      `${bars}; ${words}`,
    );

    const [all] = await sql`
      SELECT count(*)::int AS done, count(DISTINCT s.holder)::int AS users
        FROM river_job j JOIN weir_jobs s ON s.job_id = j.id WHERE j.state = 'completed'`;
    assert.deepEqual({ ...all }, { done: 105, users: 4 });
    for (const count of await page.locator(".count").all()) assert.equal(await count.textContent(), "0 waiting");
    await page.getByRole("button", { name: "Flood again" }).waitFor();
    await requireStill(page, 0.05);
    await requireAccessible(page);
    await page.getByRole("tab", { name: "Right now" }).click();
    for (const service of ["Analysis", "Demonstration", "Specification"])
      await page.getByRole("rowheader", { name: service, exact: true }).waitFor();
    assert.deepEqual(complaints, []);
  });

  it("can be used with the keyboard, which keeps its focus", async (t) => {
    const { page } = await openPage(t, { address: someAddress() });
    await page.goto(stack.edge.url);
    await page.getByText("live,").waitFor();
    const focused = (): Promise<string> => page.evaluate("document.activeElement.id");
    while ((await focused()) !== "flood") await page.keyboard.press("Tab");
    await whilePaused(stack.database.sql, async () => {
      await page.keyboard.press("Enter");
      await page.getByText("104 jobs were submitted.").waitFor();
      assert.equal(await focused(), "flood");
      await page.keyboard.press("Tab");
      await joins(stack.database.sql, () => page.keyboard.press("Enter"));
    });
    await page.getByText(/you finished in/).waitFor();
    assert.equal(await focused(), "join");
    await allDone(page, 105);
  });

  it("does not compare when fewer than three jobs wait", async (t) => {
    const { page } = await openPage(t, { address: someAddress() });
    await page.goto(stack.edge.url);
    await page.getByText("live,").waitFor();
    await flood(page);
    const waiting = async (): Promise<number> =>
      (await page.locator("#weir-stage .count").allTextContents()).reduce(
        (sum, each) => sum + Number.parseInt(each, 10),
        0,
      );
    while ((await waiting()) > 1) await page.waitForTimeout(50);
    await page.getByRole("button", { name: "Join as a newcomer" }).click();
    await page.getByText("All 105 jobs are done.").waitFor();
    assert.match((await page.locator("#flood-sentence").textContent()) ?? "", /^[01] jobs? (was|were) waiting/);
    assert.doesNotMatch((await page.locator("#flood-sentence").textContent()) ?? "", /shared/);
    assert.equal(await page.locator("#flood-result strong").count(), 0);
  });

  it("offers a larger plan when many jobs use up the quota", async (t) => {
    const { page } = await openPage(t, { address: someAddress(), height: 1200 });
    await page.goto(`${stack.edge.url}/#account`);
    await page.getByRole("button", { name: "Free", exact: true }).click();
    await page.getByRole("button", { name: "Submit one" }).click();
    await page.getByText("1 accepted, 0 refused").waitFor();
    await page.getByRole("button", { name: "Submit 49" }).click();
    const hint = page.getByText("49 accepted, 0 refused");
    await hint.waitFor();
    const [button, words] = [await page.locator("#submit-many").boundingBox(), await hint.boundingBox()];
    assert.ok((words?.y ?? 0) >= (button?.y ?? 0) + (button?.height ?? 0), "the result stands below its button");
    await page.locator("#jobs tr").filter({ hasText: "Demonstration" }).nth(10).waitFor();
    const table = await page.locator("#jobs-scroll").boundingBox();
    assert.ok((table?.height ?? 0) > 400, "more than ten rows are in view");
    await page.getByRole("button", { name: "Submit one" }).click();
    await page.getByRole("alert").getByRole("button", { name: "Sign in as Pro" }).click();
    await page.getByText("Plan: Pro").waitFor();
    await page.getByRole("alert").waitFor({ state: "hidden" });
    await page.getByText("None yet.").waitFor();
    assert.equal(await page.locator("#jobs tr").count(), 0);
  });

  it("names another visitor's jobs to both visitors", async (t) => {
    const pages: Page[] = [];
    await whilePaused(stack.database.sql, async () => {
      for (let n = 0; n < 2; n++) {
        const { page } = await openPage(t, { address: someAddress() });
        pages.push(page);
        await page.goto(stack.edge.url);
        await page.getByText("live,").waitFor();
        await flood(page);
      }
      for (const page of pages) await page.getByText("Other jobs, such as another visitor's").waitFor();
    });
    for (const page of pages) await allDone(page, 104);
  });

  it("does not draw dots over numbers on a phone", async (t) => {
    const { page } = await openPage(t, { address: someAddress(), width: 360, height: 2400 });
    await page.goto(production.edge.url);
    await page.getByText(/you finished in/).waitFor();
    const covered = await page.evaluate<string[]>(`(() => {
      for (const canvas of document.querySelectorAll("canvas")) canvas.style.pointerEvents = "auto";
      const numbers = [...document.querySelectorAll(".count, .slot-text, .done-count")].filter((each) => each.textContent);
      return numbers.flatMap((each) => {
        const { x, y, width, height } = each.getBoundingClientRect();
        const clear = document.elementFromPoint(x + width / 2, y + height / 2) === each;
        return clear && x >= 0 && x + width <= innerWidth ? [] : [each.className];
      });
    })()`);
    assert.deepEqual(covered, []);
  });

  it("plays a labelled recording once without development tokens", async (t) => {
    const { page, complaints } = await openPage(t, { address: someAddress(), width: 360, colorScheme: "dark" });
    await page.goto(production.edge.url);
    await page.getByText("A recording of a real run").first().waitFor();
    await page.getByText(/you finished in/).waitFor();
    await page.getByText("All 105 jobs are done.").waitFor();
    await allDone(page, 105);
    assert.ok(await page.getByRole("button", { name: "Join as a newcomer" }).isHidden());
    await page.getByRole("button", { name: "Play again" }).click();
    await page
      .getByText(/^[1-9]\d? of 105/)
      .first()
      .waitFor();
    const [{ jobs } = { jobs: -1 }] = await production.database.sql<{ jobs: number }[]>`
      SELECT count(*)::int AS jobs FROM river_job`;
    assert.equal(jobs, 0);
    assert.deepEqual(complaints, []);
  });

  for (const [width, colorScheme, locale] of [
    [320, "dark", "en-GB"],
    [360, "light", "ko-KR"],
    [1280, "dark", "ko-KR"],
    [1920, "light", "en-GB"],
  ] as const) {
    it(`fits ${width} px (${colorScheme}, ${locale})`, async (t) => {
      const { page } = await openPage(t, { address: someAddress(), width, height: 900, colorScheme, locale });
      await page.addInitScript(watchShifts);
      await page.goto(production.edge.url);
      await page.locator("#flood-result strong").first().waitFor();
      await picture(page, `picture-${width}-${colorScheme}-${locale}`);
      assert.equal(
        await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"),
        0,
      );
      await requireStill(page, 0.05);
      await requireAccessible(page);
    });
  }
});
