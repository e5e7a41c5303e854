import assert from "node:assert/strict";
import { it } from "node:test";
import { attempt } from "../../scripts/lib/process.ts";
import { Pulse } from "../../scripts/lib/progress.ts";

it("cargo's progress bars become the number of crates, and are not in its output", async () => {
  const pulse = new Pulse();
  const pieces = ["   Compiling a v1\n", "    Building ", "[=>  ] 3/7: a, b\r", "   Compiling b v1\n"];
  const script = `${JSON.stringify(pieces)}.forEach((piece, at) => setTimeout(() => process.stderr.write(piece), 50 * at))`;
  const { output } = await attempt(process.execPath, ["-e", script], { pulse });
  assert.equal(output, "   Compiling a v1\n   Compiling b v1\n");
  assert.equal(pulse.latest, "3 of 7 crates: a, b");
});
