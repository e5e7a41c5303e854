import assert from "node:assert/strict";
import { globSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { describe, it } from "node:test";
import { root } from "../../scripts/lib/paths.ts";
import { patternOf, select } from "../../scripts/lib/selection.ts";

/** Any unit test of the `weir-policy` crate, and its file. */
function someUnitTest(): { file: string; name: string } {
  for (const file of globSync(join(root, "policy", "src", "*.rs"))) {
    const name = /#\[test\]\s+fn (\w{20,})/.exec(readFileSync(file, "utf8"))?.[1];
    if (name) return { file: basename(file, ".rs"), name };
  }
  throw new Error("policy has no unit tests");
}

describe("npm test -- NAME", () => {
  it("selects everything without a name", async () => {
    const { selection } = await select([]);
    assert.deepEqual(selection.cargo, [{ args: ["--workspace"] }]);
    assert.ok(selection.node[0]?.files.includes(import.meta.filename));
  });

  it("selects a kind", async () => {
    const { selection } = await select(["scripts"]);
    assert.deepEqual(selection.cargo, []);
    assert.deepEqual(
      selection.node.flatMap(({ files }) => files).filter((file) => !file.includes(join("tests", "scripts"))),
      [],
    );
  });

  it("selects a file by a part of its name", async () => {
    for (const name of ["selecti", "selection.test.ts", "tests/scripts/selection.test.ts"]) {
      const { selection } = await select([name]);
      assert.deepEqual(selection, { cargo: [], node: [{ files: [import.meta.filename] }] }, name);
    }
  });

  it("selects a test by a part of its name", async () => {
    const { selection } = await select(["by a PART of its name"]);
    assert.deepEqual(selection.node, [{ files: [import.meta.filename], named: "by a PART of its name" }]);
  });

  it("runs a test by any spelling of its name", () => {
    for (const name of ["by a PART of its name", "by_a_part_of_its_name", "of-its name"]) {
      assert.match("selects a test by a part of its name", patternOf(name) ?? /^$/, name);
    }
    assert.doesNotMatch("selects a file", patternOf("a_part") ?? /^$/);
    assert.equal(patternOf(" "), undefined);
  });

  it("selects a Rust unit test by any spelling of its name and by file", async () => {
    const { file, name } = someUnitTest();
    for (const wanted of [name, name.replaceAll("_", " "), `${file}::tests::${name}`]) {
      const { selection } = await select([wanted]);
      assert.deepEqual(selection.cargo, [{ args: ["--package", "weir-policy", "--lib", "--", name] }], wanted);
    }
    const byFile = (await select([file])).selection.cargo.find(({ args }) => args.includes("weir-policy"));
    assert.ok(byFile?.args.includes(`${file}::`), JSON.stringify(byFile));
  });

  it("selects whole Rust tests by file in one build and run", async () => {
    const suite = ["--workspace", "--test", "suite"];
    const both = (await select(["whole_life.rs", "native/tests/suite/tls.rs"])).selection.cargo;
    assert.deepEqual(both, [{ args: [...suite, "--", "whole_life::", "tls::"] }]);
    const all = (await select(["suite/main.rs", "whole_life.rs"])).selection.cargo;
    assert.deepEqual(all, [{ args: suite }]);
  });

  it("reports names that match no test", async () => {
    const name = ["no", "such", "test"].join("-");
    assert.deepEqual((await select(["scripts", name])).unmatched, [name]);
  });
});
