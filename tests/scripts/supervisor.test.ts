import assert from "node:assert/strict";
import { mkdtempSync, readFileSync } from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, describe, it } from "node:test";
import { Service } from "../../scripts/lib/process.ts";
import { type Supervised, supervise } from "../../scripts/lib/supervisor.ts";
import { whenOver } from "../harness/lifetime.ts";

const folder = mkdtempSync(join(tmpdir(), "weir-supervisor-"));
whenOver({ after }, () => rm(folder, { recursive: true, force: true }));

/** A server that exits with these codes in turn, and then keeps running. */
function ending(name: string, ...codes: number[]): Supervised {
  const starts = join(folder, name);
  const program = `echo >> ${starts}; set -- ${codes.join(" ")}
    shift $(($(wc -l < ${starts}) - 1)); test $# -gt 0 && exit $1; exec sleep 60`;
  return supervise(() => new Service(name, "sh", ["-c", program], { grace: 1000 }));
}

function startsOf(name: string): number {
  return readFileSync(join(folder, name), "utf8").length;
}

describe("a supervised server", () => {
  it("is restarted when it exits after losing the database", async () => {
    const server = ending("fenced", 70);
    // The second one runs. If it is stopped before it has reported that, it is not counted.
    while (server.restarts < 1 || startsOf("fenced") < 2) await new Promise((done) => setTimeout(done, 20));
    assert.equal(server.current.child.exitCode, null);
    await server.stop();
    assert.match(await server.ended, /SIGTERM/);
    assert.equal(startsOf("fenced"), 2);
  });

  it("is restarted when the database is unreachable at its start", async () => {
    const server = ending("away", 70, 2, 70, 1);
    assert.equal(await server.ended, "ended with code 1");
    assert.equal(startsOf("away"), 4);
  });

  it("is not restarted after any other exit", async () => {
    for (const code of [0, 1, 2]) {
      assert.equal(await ending(`ends-${code}`, code).ended, `ended with code ${code}`);
      assert.equal(startsOf(`ends-${code}`), 1);
    }
  });

  it("is not restarted once it is stopped", async () => {
    const server = ending("stopped", 70, 70);
    await server.current.ended;
    await server.stop();
    await server.ended;
    assert.equal(startsOf("stopped"), 1);
  });
});
