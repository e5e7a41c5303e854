import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it, type TestContext } from "node:test";

const lib = join(import.meta.dirname, "..", "..", "scripts", "lib");

/** Runs a program, with its log `full` on a full device. */
function runWithFullDisk(t: TestContext, program: string): { stdout: string; stderr: string; logs: string } {
  const folder = mkdtempSync(join(tmpdir(), "weir-full-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const logs = join(folder, "logs");
  mkdirSync(logs);
  symlinkSync("/dev/full", join(logs, "full.log"));
  const { stdout, stderr, status } = spawnSync(process.execPath, ["--input-type=module", "-e", program], {
    env: { ...process.env, WEIR_STATE: folder },
    encoding: "utf8",
  });
  assert.equal(status, 0, stderr);
  return { stdout, stderr, logs };
}

const skip = process.platform !== "linux" && "only Linux has a device that is always full";

it("a log that cannot be written does not stop the part or other logs", { skip }, (t) => {
  const { stdout, stderr, logs } = runWithFullDisk(
    t,
    `
    import { partLog } from ${JSON.stringify(join(lib, "part-log.ts"))};
    const [full, fine] = ["full", "fine"].map((name) => partLog(name, { verbose: false }));
    for (let n = 0; n < 50; n++) {
      full.take("line " + n);
      fine.take("line " + n);
      await new Promise((done) => setTimeout(done, 2));
    }
    full.showEnd();
    console.log("went on");`,
  );
  assert.equal(stdout, "went on\n");
  assert.match(stderr, /^weir: full\.log cannot be written \(ENOSPC\b.*\), so it ends here$/m);
  assert.equal(stderr.match(/cannot be written/g)?.length, 1, stderr);
  assert.match(stderr, /^\[full\] line 49$/m);
  assert.match(readFileSync(join(logs, "fine.log"), "utf8"), /^line 49$/m);
});

it("a tool without a writable log runs to its end", { skip }, (t) => {
  const { stdout } = runWithFullDisk(
    t,
    `
    import { run } from ${JSON.stringify(join(lib, "process.ts"))};
    console.log(await run("sh", ["-c", "echo one; sleep 0.1; echo two"], { log: "full" }));`,
  );
  assert.equal(stdout, "one\ntwo\n\n");
});
