import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { chromium, type Page } from "playwright-core";
import { state } from "../../scripts/lib/paths.ts";
import { type Lifetime, required, whenOver } from "../harness/lifetime.ts";

const screenshots = join(state, "screenshots");

/** A page in Chromium. `complaints` collects its uncaught exceptions and the errors on its console. */
export async function openPage(
  lifetime: Lifetime,
  options: { width?: number; height?: number; colorScheme?: "light" | "dark"; locale?: string; address?: string } = {},
): Promise<{ page: Page; complaints: string[] }> {
  const browser = await chromium.launch({
    executablePath: required("WEIR_TEST_CHROMIUM"),
    args: [
      "--no-sandbox",
      "--disable-gpu",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
    ],
  });
  whenOver(lifetime, () => browser.close());
  const context = await browser.newContext({
    viewport: { width: options.width ?? 1200, height: options.height ?? 900 },
    colorScheme: options.colorScheme ?? "light",
    locale: options.locale ?? "en-GB",
    // The visitor's address, as Cloudflare tells it.
    ...(options.address ? { extraHTTPHeaders: { "CF-Connecting-IP": options.address } } : {}),
  });
  const page = await context.newPage();
  const complaints: string[] = [];
  page.on("pageerror", (error) => complaints.push(error.message));
  page.on("console", (message) => {
    if (message.type() === "error") complaints.push(message.text());
  });
  return { page, complaints };
}

/** Saves a screenshot of the page under .weir/screenshots, for people. */
export async function picture(page: Page, name: string): Promise<void> {
  mkdirSync(screenshots, { recursive: true });
  await page.screenshot({ path: join(screenshots, `${name}.png`), fullPage: true });
}
