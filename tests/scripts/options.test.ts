import assert from "node:assert/strict";
import { join } from "node:path";
import { describe, it } from "node:test";
import { root } from "../../scripts/lib/paths.ts";
import { attempt } from "../../scripts/lib/process.ts";

async function fails(script: string, ...args: string[]): Promise<string> {
  const { code, output } = await attempt(process.execPath, [join(root, "scripts", `${script}.ts`), ...args]);
  assert.equal(code, 1, output);
  assert.doesNotMatch(output, /please report/);
  return output;
}

describe("a mistyped word on the command line", () => {
  for (const [script, option] of Object.entries({
    chaos: "--minutes VALUE, --seed VALUE, --no-clocks",
    drills: "--quick, --from VALUE",
    fuzz: "--seconds VALUE",
    soak: "--minutes VALUE",
    test: "--no-skips, names without dashes",
  })) {
    it(`gets a suggestion from the options of ${script}`, async () => {
      assert.match(
        await fails(script, "--mistyped"),
        new RegExp(`unknown option '--mistyped'\n.*fix: there are ${option}`),
      );
    });
  }

  it("gets a suggestion when an option has no value", async () => {
    assert.match(await fails("soak", "--minutes"), /option '--minutes <value>' argument missing\n.*--minutes VALUE/);
  });

  it("gets a suggestion from the parts of mutants", async () => {
    for (const word of ["polcy", "--file"])
      assert.match(await fails("mutants", word), /fix: use one of policy, ledger as the first argument/);
  });

  it("gets a suggestion from the drills", async () => {
    const { run } = await import("../drills/run.ts");
    await assert.rejects(run({ quick: true, only: ["restarted", "no such drill"] }), {
      name: "Failure",
      message: 'no drill has "no such drill" in its name',
      remedy: /PostgreSQL restarted \(fast\), /,
    });
  });
});
