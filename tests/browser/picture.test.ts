import assert from "node:assert/strict";
import { after, describe, it } from "node:test";
import { type Stack, someAddress, startStack } from "../harness/stack.ts";
import { requireAccessible } from "./axe.ts";
import { openPage, picture } from "./browser.ts";
import { floodAndJoin, joins, whilePaused } from "./flood.ts";
import { servicesOfALongFlood } from "./services.ts";
import { requireStill, watchShifts } from "./shifts.ts";

const stack = await startStack({ after }, { env: { WEIR_CONFIG: servicesOfALongFlood() } });
const production = await startStack({ after }, { env: { WEIR_ENV: "production" }, vars: { DEVELOPMENT: "" } });

interface Newcomer {
  id: string;
  seconds: string;
  ahead: number;
  waiting: number;
}

/** What the database knows of the only user with one job. */
async function newcomer({ database: { sql } }: Stack): Promise<Newcomer> {
  const [found] = await sql<Newcomer[]>`
    WITH mine AS (
      SELECT j.id, j.created_at, j.finalized_at FROM river_job j JOIN submissions s ON s.job_id = j.id
       WHERE (SELECT count(*) FROM submissions o WHERE o.holder = s.holder) = 1 AND j.kind = 'demo:work')
    SELECT mine.id, extract(epoch FROM mine.finalized_at - mine.created_at)::text AS seconds,
           (SELECT count(*)::int FROM river_job o
             WHERE o.id < mine.id AND (o.finalized_at IS NULL OR o.finalized_at > mine.created_at)) AS ahead,
           (SELECT count(*)::int FROM river_job o
             WHERE o.id < mine.id AND (o.finalized_at IS NULL OR o.finalized_at > mine.finalized_at)) AS waiting
      FROM mine`;
  assert.ok(found, "there is a newcomer");
  return found;
}

describe("the picture", () => {
  it("shows the newcomer finished before the flood, as in the database", async (t) => {
    const { page, complaints } = await openPage(t, { address: someAddress() });
    await page.addInitScript(watchShifts);
    await page.goto(stack.edge.url);
    await page.getByText("live,").waitFor();
    const { sql } = stack.database;
    await floodAndJoin(page, sql);
    const says = page.getByText(/^Yours is done in/);
    await says.waitFor();
    const mine = await newcomer(stack);
    const words = (await says.textContent()) ?? "";
    await picture(page, "newcomer");

    assert.ok(mine.waiting > 10, `${mine.waiting} jobs of the flood were not done when it was`);
    const [, seconds, ahead, shared] = /in ([\d.]+) s: (\d+) jobs .*: ([\d.]+) s/.exec(words) ?? [];
    assert.equal(Number(ahead), mine.ahead, words);
    assert.ok(Math.abs(Number(seconds) - Number(mine.seconds)) < 0.02, `${words}; in truth ${mine.seconds}`);
    assert.ok(Number(shared) > Number(seconds) * 2, words);

    await page.getByText("105 of 105").waitFor();
    assert.equal(await says.textContent(), words, "the numbers stay");
    const [all] = await sql`
      SELECT count(*)::int AS done, count(DISTINCT s.holder)::int AS users
        FROM river_job j JOIN submissions s ON s.job_id = j.id WHERE j.state = 'completed'`;
    assert.deepEqual({ ...all }, { done: 105, users: 4 });
    for (const count of await page.locator(".count").all()) assert.equal(await count.textContent(), "0 waiting");
    await requireStill(page, 0.05);
    await requireAccessible(page);
    await page.getByRole("tab", { name: "Right now" }).click();
    for (const service of ["Analysis", "demo", "Specification"])
      await page.getByRole("rowheader", { name: service }).waitFor();
    assert.deepEqual(complaints, []);
  });

  it("is operated by the keyboard, which stays where it is", async (t) => {
    const { page } = await openPage(t, { address: someAddress() });
    await page.goto(stack.edge.url);
    await page.getByText("live,").waitFor();
    const focused = (): Promise<string> => page.evaluate("document.activeElement.id");
    while ((await focused()) !== "flood") await page.keyboard.press("Tab");
    await whilePaused(stack.database.sql, async () => {
      await page.keyboard.press("Enter");
      await page.getByText("104 jobs of 3 users are in.").waitFor();
      assert.equal(await focused(), "flood");
      await page.keyboard.press("Tab");
      await joins(stack.database.sql, () => page.keyboard.press("Enter"));
    });
    await page.getByText(/^Yours is done in/).waitFor();
    assert.equal(await focused(), "join");
    await page.getByText("105 of 105").waitFor();
  });

  it("plays a labelled recording once without development tokens", async (t) => {
    const { page, complaints } = await openPage(t, { address: someAddress(), width: 360, colorScheme: "dark" });
    await page.goto(production.edge.url);
    await page.getByText("A recording of a real run").first().waitFor();
    await page.getByText(/^Yours is done in/).waitFor();
    await page.getByText("105 of 105").waitFor();
    assert.ok(await page.getByRole("button", { name: "Join as a newcomer" }).isHidden());
    await page.getByRole("button", { name: "Play the recording" }).click();
    await page.getByText(/^[1-9]\d? of 105/).waitFor();
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
