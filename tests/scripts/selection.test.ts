import assert from "node:assert/strict";
import { join } from "node:path";
import { describe, it } from "node:test";
import { select } from "../../scripts/lib/selection.ts";

describe("npm test -- NAME", () => {
  const own = import.meta.filename;

  it("selects everything without a name, and kinds", () => {
    const { selection } = select([]);
    assert.deepEqual(selection.cargo, [["--workspace"]]);
    assert.ok(selection.node[0]?.files.includes(own));
    const { cargo, node } = select(["scripts"]).selection;
    assert.deepEqual(cargo, []);
    assert.ok(node.every(({ files }) => files.every((file) => file.includes(join("tests", "scripts")))));
  });

  it("selects a file by a part of its name, or its path", () => {
    for (const name of ["selecti", "selection.test.ts", "tests/scripts/selection.test.ts"])
      assert.deepEqual(select([name]).selection, { cargo: [], node: [{ files: [own] }] }, name);
  });

  it("selects a test by any SPELLING of its name", () => {
    for (const name of ["any SPELLING of its name", "any_spelling_of_its_name", "of-its name"]) {
      const [only, ...others] = select([name]).selection.node;
      assert.deepEqual([only?.files, others], [[own], []]);
      assert.match("selects a test by any SPELLING of its name", only?.named ?? /^$/);
      assert.doesNotMatch("selects a file", only?.named ?? /^$/);
    }
  });

  it("selects a Rust test by its name and by its file, in one run", () => {
    const policy = ["--package", "weir-policy", "--lib", "--"];
    const name = "the_scheduled_lane_takes_precedence_over_the_plans";
    for (const wanted of [name, name.replaceAll("_", " "), `lane::tests::${name}`])
      assert.deepEqual(select([wanted]).selection.cargo, [[...policy, name]], wanted);
    const suite = ["--workspace", "--test", "suite"];
    const both = select(["whole_life.rs", "native/tests/suite/tls.rs"]).selection.cargo;
    assert.deepEqual(both, [[...suite, "--", "whole_life::", "tls::"]]);
  });

  it("reports names that match no test", () => {
    const name = ["no", "such", "test"].join("-");
    assert.deepEqual(select(["scripts", name]).unmatched, [name]);
  });
});
