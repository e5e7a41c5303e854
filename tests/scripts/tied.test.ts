import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { canTie } from "../../scripts/lib/process.ts";

it("a tied service ends when its parent is killed", { skip: !canTie && "needs setpriv" }, async (t) => {
  const lib = join(import.meta.dirname, "..", "..", "scripts", "lib", "process.ts");
  const script = `import { Service } from ${JSON.stringify(lib)};
    const service = new Service("tied", "sh", ["-c", "echo up; exec sleep 600"], {
      tied: true,
      onLine: () => console.log(service.pid),
    });`;
  const parent = spawn(process.execPath, ["--input-type=module", "--eval", script], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  t.after(() => parent.kill("SIGKILL"));
  const pid = await new Promise<number>((done, failed) => {
    createInterface({ input: parent.stdout }).once("line", (line) => done(Number(line)));
    parent.once("exit", (code) => failed(new Error(`ended with ${code} before its service was up`)));
  });
  t.after(() => {
    if (runs(pid)) process.kill(pid, "SIGKILL");
  });
  assert.ok(runs(pid));
  parent.kill("SIGKILL");
  for (const deadline = performance.now() + 30_000; runs(pid); await sleep(20))
    assert.ok(performance.now() < deadline, `process ${pid} is still there`);
});

/** A zombie process counts as ended. */
function runs(pid: number): boolean {
  try {
    return !/^\d+ \(.*\) Z/.test(readFileSync(`/proc/${pid}/stat`, "utf8"));
  } catch {
    return false;
  }
}
