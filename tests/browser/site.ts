import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Page, Route } from "playwright-core";
import { buildPage } from "../../scripts/lib/page.ts";
import { root } from "../../scripts/lib/paths.ts";

/** The address of a page that no server serves. Browsers trust localhost without TLS. */
export const site = "http://weir.localhost";

/** The same, which browsers do not trust: some of their APIs are missing. */
export const plainSite = "http://weir.test";

const types: Record<string, string> = {
  html: "text/html",
  js: "text/javascript",
  css: "text/css",
  svg: "image/svg+xml",
};

/** Serves the built page at both addresses, and lets the test answer its requests to the API. */
export async function servePage(page: Page, api: (route: Route, path: string) => Promise<void>): Promise<void> {
  await buildPage();
  await page.route(new RegExp(`^(${site}|${plainSite})/`), async (route) => {
    const path = new URL(route.request().url()).pathname;
    if (path.startsWith("/api/")) return api(route, path);
    const name = path === "/" ? "index.html" : path.slice(1);
    const file = join(root, "dist", name);
    if (!existsSync(file)) return route.fulfill({ status: 404 });
    await route.fulfill({
      body: readFileSync(file, "utf8"),
      contentType: `${types[name.split(".").at(-1) ?? ""]}; charset=utf-8`,
    });
  });
}
