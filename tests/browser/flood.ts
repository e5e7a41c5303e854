import type { Page } from "playwright-core";
import type postgres from "postgres";
import { until } from "../harness/until.ts";

/** A user submits 100 jobs from the page, and two others 2 each, with Weir and to the shared queue. */
export async function flood(page: Page): Promise<void> {
  await page.getByRole("button", { name: "Flood it" }).click();
  await page.getByText("104 jobs were submitted.").waitFor();
}

/** The same, and a newcomer submits one job while all of those wait. */
export async function floodAndJoin(page: Page, sql: postgres.Sql): Promise<void> {
  await whilePaused(sql, async () => {
    await flood(page);
    await joins(sql, () => page.getByRole("button", { name: "Join as a newcomer" }).click());
  });
}

/** Runs `doing`, which makes a newcomer submit a job, and waits for that job. */
export async function joins(sql: postgres.Sql, doing: () => Promise<void>): Promise<void> {
  const submissions = async (): Promise<number> => (await sql`SELECT FROM weir_jobs`).length;
  const before = await submissions();
  await doing();
  await until("the newcomer's job", async () => (await submissions()) > before);
}

/** Until then, no worker starts a job of a flood, even if the browser is slow on a busy machine. */
export async function whilePaused(sql: postgres.Sql, doing: () => Promise<void>): Promise<void> {
  const message = (action: "pause" | "resume"): string => JSON.stringify({ action, queue: "*" });
  await sql`UPDATE river_queue SET paused_at = now() WHERE starts_with(name, 'demo_')`;
  await sql`SELECT pg_notify(river_channel('river_control'), ${message("pause")})`;
  try {
    await doing();
  } finally {
    await sql`UPDATE river_queue SET paused_at = NULL WHERE starts_with(name, 'demo_')`;
    await sql`SELECT pg_notify(river_channel('river_control'), ${message("resume")})`;
  }
}

/** Waits until the pictures show all jobs of both queues as done. */
export async function allDone(page: Page, jobs: number): Promise<void> {
  for (const stage of ["#weir-stage", "#shared-stage"])
    await page.locator(`${stage} .done-count`).getByText(`${jobs} of ${jobs}`).waitFor();
}
