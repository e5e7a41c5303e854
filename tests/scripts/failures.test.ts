import assert from "node:assert/strict";
import { test } from "node:test";
import { failureReader } from "../../scripts/lib/cargo-tests.ts";

test("the errors of failed Rust tests are read from the program's output", () => {
  const failures: string[] = [];
  const read = failureReader(failures);
  const output = [
    "test a::fails ... FAILED",
    "failures:",
    "",
    "---- a::fails stdout ----",
    "a line before",
    "",
    "thread 'a::fails' (7) panicked at a.rs:1:2:",
    "left is not right",
    "",
    "---- b::fails stdout ----",
    "Error: no panic",
    "failures:",
    "    a::fails",
    "test result: FAILED. 0 passed; 2 failed;",
  ];
  for (const line of output) read(line);
  assert.deepEqual(failures, [
    "a::fails:\n    thread 'a::fails' (7) panicked at a.rs:1:2:\n    left is not right",
    "b::fails:\n    Error: no panic",
  ]);
});
