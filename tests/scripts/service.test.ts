import assert from "node:assert/strict";
import { join } from "node:path";
import { describe, it } from "node:test";
import { root } from "../../scripts/lib/paths.ts";
import { attempt } from "../../scripts/lib/process.ts";

/** The signals that a script sends at its end, after one of its services has ended. */
async function signalsAfter(program: string, then: string): Promise<string[]> {
  const lib = (name: string): string => JSON.stringify(join(root, "scripts", "lib", name));
  const script = `import { runExitHooks } from ${lib("lifecycle.ts")};
    import { Service } from ${lib("process.ts")};
    const service = new Service("some", "sh", ["-c", ${JSON.stringify(program)}]);
    await service.ended;
    const kill = process.kill;
    process.kill = (pid, signal) => {
      if (signal !== 0) console.log(pid === -service.pid ? signal : "another");
      return kill.call(process, pid, signal);
    };
    ${then}`;
  const { code, stdout, output } = await attempt(process.execPath, ["--input-type=module", "--eval", script]);
  assert.equal(code, 0, output);
  return stdout.trim().split("\n").filter(Boolean);
}

describe("a service that has ended", () => {
  it("does not get a signal, because its process id may be reused", async () => {
    assert.deepEqual(await signalsAfter("exit 0", "await runExitHooks();"), []);
    assert.deepEqual(await signalsAfter("exit 0", "await service.stop();"), []);
  });

  it("gets a signal while its children run", async () => {
    assert.deepEqual(await signalsAfter("sleep 600 >&- 2>&- & exit 0", "await runExitHooks();"), ["SIGTERM"]);
  });
});
