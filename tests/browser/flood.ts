import type { Page } from "playwright-core";

/** For a flood to be worked. */
export const patient = { timeout: 90_000 };

/** Three users submit 104 jobs from the page. */
export async function flood(page: Page): Promise<void> {
  await page.getByRole("button", { name: "Flood it" }).click();
  await page.getByText("104 jobs of 3 users are in.").waitFor(patient);
}
