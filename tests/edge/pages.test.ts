import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { unstable_readConfig } from "wrangler";
import { root } from "../../scripts/lib/paths.ts";
import { startOrigin } from "./origin.ts";
import { startEdge, type Variable } from "./workerd.ts";

// The edge accepts the settings that the documentation shows.

const origin = await startOrigin({ after });
const folder = mkdtempSync(join(tmpdir(), "weir-pages-"));
after(() => rmSync(folder, { recursive: true }));

/** The variables of each block of TOML in a page. */
function blocks(page: string): Record<string, Variable>[] {
  const text = readFileSync(join(root, "docs", "how-to", page), "utf8");
  return [...text.matchAll(/^```toml\n(.*?)^```/gms)].map(([, code = ""], place) => {
    const config = join(folder, `${page}-${place}.toml`);
    writeFileSync(config, `compatibility_date = "2026-09-01"\n${code.includes("[vars]") ? "" : "[vars]\n"}${code}`);
    return unstable_readConfig({ config }).vars as Record<string, Variable>;
  });
}

for (const [page, count] of [
  ["put-weir-in-front.md", 4],
  ["deploy.md", 2],
] as const) {
  test(`the edge accepts the settings in ${page}`, { timeout: 60_000 }, async () => {
    const all = blocks(page);
    assert.equal(all.length, count);
    for (const vars of all) {
      const services = ["SITE", "API", "PRIVATE_API", "EDGE_CERTIFICATE"];
      const edge = await startEdge(
        { after },
        {
          originUrl: origin.url,
          secrets: origin.secrets,
          without: ["LIMITED_ROUTES"],
          vars: { ROUTES: [{ path: "/v1/*" }], ...vars, ORIGIN_URL: origin.url },
          worker: { serviceBindings: Object.fromEntries(services.map((name) => [name, "other"])) },
          beside: [
            {
              name: "other",
              compatibilityDate: "2026-09-01",
              modules: true,
              script: "export default { fetch: () => new Response() }",
            },
          ],
        },
      );
      const answer = await edge.from("203.0.113.90")("/nowhere/1");
      assert.ok(answer.status < 500, `${JSON.stringify(vars)}\n${edge.logs.join("\n")}`);
    }
  });
}
