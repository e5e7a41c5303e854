import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";

it("only a failing test prints the end of the servers' logs", (t) => {
  const folder = mkdtempSync(join(tmpdir(), "weir-logs-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const file = join(folder, "some.test.ts");
  const logs = join(import.meta.dirname, "..", "harness", "logs.ts");
  writeFileSync(
    file,
    `import { describe, it } from "node:test";
    import { showOnFailure } from ${JSON.stringify(logs)};
    let log = "";
    showOnFailure("a server", () => log);
    describe("a suite", () => {
      it("passes", () => { log = "said while all was well"; });
      it("fails", () => { log = "said before the end"; throw new Error("failed"); });
    });`,
  );
  const { NODE_TEST_CONTEXT: _, ...env } = process.env;
  const ran = spawnSync(process.execPath, ["--test", file], { encoding: "utf8", env });
  assert.notEqual(ran.status, 0);
  assert.match(ran.stdout + ran.stderr, /"fails" failed\.\n--- the end of what a server logged:\nsaid before the end/);
  assert.doesNotMatch(ran.stdout + ran.stderr, /said while all was well/);
});
