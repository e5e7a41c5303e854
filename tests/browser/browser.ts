import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { after } from "node:test";
import { type Browser, chromium, type Page } from "playwright-core";
import { state } from "../../scripts/lib/paths.ts";
import { type Lifetime, required, whenOver } from "../harness/lifetime.ts";
import { until } from "../harness/until.ts";

const screenshots = join(state, "screenshots");

// Shared by all pages of a file, because starting a browser takes longer than many a test.
let browser: Promise<Browser> | undefined;
after(async () => (await browser)?.close());

/**
 * A page in Chromium without stored data of other pages. `complaints` collects its uncaught exceptions and the errors
 * on its console.
 */
export async function openPage(
  lifetime: Lifetime,
  options: {
    width?: number;
    height?: number;
    colorScheme?: "light" | "dark";
    locale?: string;
    address?: string;
    /** Whether the picture is animated. Only tests of motion need that. */
    moves?: boolean;
    hasScripts?: boolean;
  } = {},
): Promise<{ page: Page; complaints: string[] }> {
  browser ??= launch();
  const context = await (await browser).newContext({
    viewport: { width: options.width ?? 1200, height: options.height ?? 900 },
    colorScheme: options.colorScheme ?? "light",
    locale: options.locale ?? "en-GB",
    javaScriptEnabled: options.hasScripts ?? true,
    reducedMotion: options.moves ? "no-preference" : "reduce",
    // The visitor's address, in Cloudflare's header.
    ...(options.address ? { extraHTTPHeaders: { "CF-Connecting-IP": options.address } } : {}),
  });
  whenOver(lifetime, () => context.close());
  // Long enough for all jobs of a flood, including on an overloaded machine.
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
      // For identical screenshots on every machine.
      "--font-render-hinting=none",
      "--disable-lcd-text",
      "--force-color-profile=srgb",
    ],
  });
}

/**
 * Waits until an expression in the page is true. Playwright's `waitForFunction` evaluates a string again inside the
 * page, where the Content Security Policy blocks `eval`, unless the first evaluation is true.
 */
export async function untilTrue(page: Page, expression: string): Promise<void> {
  await until(expression, () => page.evaluate<boolean>(`Boolean(${expression})`));
}

/** Saves a screenshot of the page under .weir/screenshots for manual inspection. */
export async function picture(page: Page, name: string): Promise<void> {
  mkdirSync(screenshots, { recursive: true });
  await page.screenshot({ path: join(screenshots, `${name}.png`), fullPage: true });
}
