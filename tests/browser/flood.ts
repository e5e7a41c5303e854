import type { Page } from "playwright-core";
import type postgres from "postgres";

/** For a flood to be worked. */
export const patient = { timeout: 90_000 };

/** Three users submit 104 jobs from the page. */
export async function flood(page: Page): Promise<void> {
  await page.getByRole("button", { name: "Flood it" }).click();
  await page.getByText("104 jobs of 3 users are in.").waitFor(patient);
}

/** Nobody starts a job of a flood while this is done, however long a browser on a busy machine takes for it. */
export async function whilePaused(sql: postgres.Sql, doing: () => Promise<void>): Promise<void> {
  const said = (action: "pause" | "resume"): string => JSON.stringify({ action, queue: "*" });
  await sql`UPDATE river_queue SET paused_at = now() WHERE starts_with(name, 'demo_')`;
  await sql`SELECT pg_notify(river_channel('river_control'), ${said("pause")})`;
  try {
    await doing();
  } finally {
    await sql`UPDATE river_queue SET paused_at = NULL WHERE starts_with(name, 'demo_')`;
    await sql`SELECT pg_notify(river_channel('river_control'), ${said("resume")})`;
  }
}
