import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { deadLinks, filesIn } from "../../scripts/lib/links.ts";
import { unknownNames } from "../../scripts/lib/named.ts";

it("finds every broken link to a page, anchor, image or folder", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "weir-links-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const write = (file: string, text: string): void => {
    mkdirSync(join(folder, file, ".."), { recursive: true });
    writeFileSync(join(folder, file), text);
  };
  write("README.md", '# Top\n\n[docs](docs/README.md) <img src="here.png"> <img src="gone.png">');
  write("here.png", "");
  write("deploy/unit.service", "");
  write("node_modules/package/README.md", "[gone](gone.md)");
  write(
    "docs/README.md",
    `# \`weir status\`, and its output

    Code is no link: \`[a](gone-in-code.md)\`.

    [up](../README.md#top) [folder](../deploy) [own](#weir-status-and-its-output) [other](https://example.invalid/)
    [gone page](gone.md) [gone folder](../gone) [gone anchor](#gone) [gone part](../README.md#gone)
    ![gone image](images/gone.png)`.replaceAll("\n    ", "\n"),
  );
  const dead = await deadLinks(folder, filesIn(folder, ".md"));
  assert.deepEqual(dead.map((line) => line.replace(/http:\/\/[^/]+\//, "")).sort(), [
    "README.md links to gone.png",
    "docs/README.md links to README.md#gone",
    "docs/README.md links to docs/README.md#gone",
    "docs/README.md links to docs/gone.md",
    "docs/README.md links to docs/images/gone.png",
    "docs/README.md links to gone",
  ]);
});

it("finds names in Markdown that the repository does not have", (t) => {
  const folder = mkdtempSync(join(tmpdir(), "weir-names-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const write = (file: string, text: string): void => {
    mkdirSync(join(folder, file, ".."), { recursive: true });
    writeFileSync(join(folder, file), text);
  };
  write("package.json", '{ "scripts": { "test": "" } }');
  write("src/work.rs", "struct Parts; fn stop() { metric(weir_jobs) }");
  write("docs/reference/commands.md", "## weir plan\n\nCommands:\n  set\n\n### weir plan set\n\nOptions:\n  --watch\n");
  const known = ["src/work.rs", "work.rs", "Parts::stop", "weir plan set --watch", "weir_jobs", "npm run test"];
  const unknown = ["src/gone.rs", "gone.rs", "Parts::run", "weir_gone_total", "WEIR_GONE", "npm run gone"];
  write(
    "page.md",
    [...known, ...unknown, "weir plan gone", "weir plan set --gone"].map((name) => `\`${name}\``).join("\n"),
  );
  assert.deepEqual(
    unknownNames(folder, ["page.md"]).map((line) => line.replace("page.md names what does not exist: ", "")),
    [...unknown, "weir plan gone", "weir plan set --gone"],
  );
});
