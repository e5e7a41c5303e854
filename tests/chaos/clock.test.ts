import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { it } from "node:test";
import { required } from "../harness/lifetime.ts";
import { Clock, canShowClocks, forgetClocks } from "./clock.ts";

const skip = !canShowClocks() && "needs libfaketime";

for (const threads of [true, false]) {
  it(`shifts only the wall clock (${threads ? "threads" : "one thread"})`, {
    skip,
  }, async (t) => {
    required("WEIR_TEST_FOLDER");
    const clock = new Clock(`of-${threads}`, { threads });
    const program = "setInterval(() => console.log(Date.now(), Math.round(performance.now())), 10)";
    const child = spawn(process.execPath, ["--eval", program], {
      env: { ...process.env, ...clock.env },
      stdio: ["ignore", "pipe", "inherit"],
    });
    const gone = new Promise((done) => child.once("exit", done));
    t.after(async () => {
      child.kill("SIGKILL");
      await gone;
      forgetClocks();
    });
    let steady = 0;
    const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
    for (const ahead of [0, 60, -60, 0]) {
      clock.set(ahead);
      for (let off = Number.NaN; Math.abs(off - ahead) > 5; ) {
        const [wall = 0, monotonic = 0] = String((await lines.next()).value)
          .split(" ")
          .map(Number);
        assert.ok(monotonic >= steady && monotonic < steady + 30_000, `from ${steady} to ${monotonic} ms`);
        steady = monotonic;
        off = (wall - Date.now()) / 1000;
      }
    }
  });
}
