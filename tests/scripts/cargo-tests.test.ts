import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { it } from "node:test";
import { runCargoTests } from "../../scripts/lib/cargo-tests.ts";
import { temporaryFolder } from "../../scripts/lib/temporary-folder.ts";
import { Totals } from "../../scripts/lib/totals.ts";

it("fails the tests that still run when no test has ended for a long time", async () => {
  const folder = temporaryFolder("weir-cargo-tests-");
  const printed = [
    "running 3 tests",
    "test one ... ok",
    "test two has been running for over 60 seconds",
    "test three has been running for over 60 seconds",
    "test three ... ok",
  ];
  const lines = printed.map((line) => `echo '${line}'; `).join("");
  writeFileSync(join(folder, "cargo"), `#!/bin/sh\n${lines}exec sleep 600\n`, { mode: 0o755 });
  const totals = new Totals();
  const env = { PATH: `${folder}:${process.env.PATH}`, CARGO_TARGET_DIR: folder };
  const shown: string[] = [];
  const { log } = console;
  console.log = (text: string): void => void shown.push(text);
  try {
    await runCargoTests({ args: [] }, env, totals, 2000);
  } finally {
    console.log = log;
  }
  assert.equal(`${totals}`, "0 passed, 1 failed, 0 skipped", shown.join("\n"));
  assert.equal(shown.at(-1), "\nno test ended for 2 s, so these are stopped: two");
});
