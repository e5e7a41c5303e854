import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, describe, it } from "node:test";
import { withLock } from "../../scripts/lib/lock.ts";
import { whenOver } from "../harness/lifetime.ts";

const folder = mkdtempSync(join(tmpdir(), "weir-lock-"));
whenOver({ after }, () => rm(folder, { recursive: true, force: true }));

const lockModule = join(import.meta.dirname, "..", "..", "scripts", "lib", "lock.ts");

/** Runs a body under the lock in a separate process. */
function locked(file: string, body: string): ReturnType<typeof spawn> {
  const program = `
    import { readFileSync, writeFileSync } from "node:fs";
    import { setTimeout as sleep } from "node:timers/promises";
    import { withLock } from ${JSON.stringify(lockModule)};
    await withLock(${JSON.stringify(file)}, "testing", async () => { ${body} });`;
  return spawn(process.execPath, ["--input-type=module", "-e", program], { stdio: ["ignore", "pipe", "inherit"] });
}

describe("a lock", () => {
  it("is held by one process at a time", async () => {
    const counter = join(folder, "counter");
    writeFileSync(counter, "0");
    const path = JSON.stringify(counter);
    const count = `
      const before = Number(readFileSync(${path}, "utf8"));
      await sleep(30);
      writeFileSync(${path}, String(before + 1));`;
    const children = Array.from({ length: 6 }, () => locked(join(folder, "one"), count));
    await Promise.all(children.map((child) => new Promise((done) => child.once("exit", done))));
    assert.equal(readFileSync(counter, "utf8"), "6");
  });

  it("is free when the process that held it was killed", async () => {
    const file = join(folder, "killed");
    const holder = locked(file, `console.log("held"); await sleep(60_000);`);
    await new Promise((done) => holder.stdout?.once("data", done));
    let free = false;
    const waiting = withLock(file, "testing", async () => {
      free = true;
    });
    await new Promise((done) => setTimeout(done, 200));
    assert.equal(free, false);
    holder.kill("SIGKILL");
    await waiting;
    assert.equal(free, true);
  });
});
