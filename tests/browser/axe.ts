import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import type { Page } from "playwright-core";

const source = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

interface Violation {
  id: string;
  help: string;
  nodes: { html: string; failureSummary?: string }[];
}

/** Fails when axe finds an accessibility problem. */
export async function requireAccessible(page: Page): Promise<void> {
  // Evaluated and not added as an element, because the page's content policy forbids that.
  await page.evaluate(source);
  const { violations } = await page.evaluate<{ violations: Violation[] }>("axe.run()");
  const found = violations.map(({ id, help, nodes }) => `${id}: ${help}\n  ${nodes.map((n) => n.html).join("\n  ")}`);
  assert.deepEqual(found, []);
}
