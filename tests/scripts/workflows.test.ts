import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { root } from "../../scripts/lib/paths.ts";
import { attempt } from "../../scripts/lib/process.ts";
import { goProgram, skipWithoutGo } from "../harness/go.ts";

describe("workflows", { skip: skipWithoutGo() }, () => {
  it("are valid", async () => {
    const actionlint = await goProgram("github.com/rhysd/actionlint", "1.7.12", "cmd/actionlint");
    // Without the linters of scripts, which depend on the machine.
    const checked = await attempt(actionlint, ["-shellcheck=", "-pyflakes="], { cwd: root });
    assert.equal(checked.code, 0, checked.output);
  });
});
