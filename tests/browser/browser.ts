import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { after } from "node:test";
import { type Browser, chromium, type Page } from "playwright-core";
import { state } from "../../scripts/lib/paths.ts";
import { type Lifetime, required, whenOver } from "../harness/lifetime.ts";

const screenshots = join(state, "screenshots");

// One for all the pages of a file: to start a browser takes longer than many a test.
let browser: Promise<Browser> | undefined;
after(async () => (await browser)?.close());

/** A page in Chromium, with nothing that another page has stored. `complaints` collects its uncaught exceptions and the errors on its console. */
export async function openPage(
  lifetime: Lifetime,
  options: {
    width?: number;
    height?: number;
    colorScheme?: "light" | "dark";
    locale?: string;
    address?: string;
    /** Whether the picture moves, which only tests of its motion need. */
    moves?: boolean;
  } = {},
): Promise<{ page: Page; complaints: string[] }> {
  browser ??= launch();
  const context = await (await browser).newContext({
    viewport: { width: options.width ?? 1200, height: options.height ?? 900 },
    colorScheme: options.colorScheme ?? "light",
    locale: options.locale ?? "en-GB",
    reducedMotion: options.moves ? "no-preference" : "reduce",
    // The visitor's address, as Cloudflare tells it.
    ...(options.address ? { extraHTTPHeaders: { "CF-Connecting-IP": options.address } } : {}),
  });
  whenOver(lifetime, () => context.close());
  // Long enough for a flood to be worked, and for a machine that has too much to do.
  context.setDefaultTimeout(90_000);
  const page = await context.newPage();
  const complaints: string[] = [];
  page.on("pageerror", (error) => complaints.push(error.message));
  page.on("console", (message) => {
    if (message.type() === "error") complaints.push(message.text());
  });
  return { page, complaints };
}

function launch(): Promise<Browser> {
  return chromium.launch({
    executablePath: required("WEIR_TEST_CHROMIUM"),
    args: [
      "--no-sandbox",
      "--disable-gpu",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
      // Screenshots look the same on every machine.
      "--font-render-hinting=none",
      "--disable-lcd-text",
      "--force-color-profile=srgb",
    ],
  });
}

/** Saves a screenshot of the page under .weir/screenshots, for people. */
export async function picture(page: Page, name: string): Promise<void> {
  mkdirSync(screenshots, { recursive: true });
  await page.screenshot({ path: join(screenshots, `${name}.png`), fullPage: true });
}
