import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { describe, it } from "node:test";
import { root } from "../../scripts/lib/paths.ts";
import { countsOf, failuresOf, findingsBelow, findingsOf } from "../../scripts/lib/prose/check.ts";
import { exceptions, unchecked } from "../../scripts/lib/prose/clean.ts";
import { sentencesOf, wordsIn } from "../../scripts/lib/prose/rules.ts";

function rulesIn(file: string, text: string): string[] {
  return findingsOf(file, text).map(({ rule }) => rule);
}

function words(count: number): string {
  return `Word${" word".repeat(count - 1)}.`;
}

describe("the prose check", () => {
  for (const [rule, sentence] of Object.entries({
    "relative clause as subject": "What waits is promoted.",
    "somebody, nobody, whose": "It delays nobody.",
    "tell, say, hear": "The owner is told.",
    "unless told": "All of it, unless\ntold otherwise.",
    "for ever": "Jobs stay for ever.",
    anew: "Start anew.",
    "beside, besides": "Beside another River.",
    begun: "A job that was begun.",
    "in vain": "It waits in vain.",
    "of its own": "A schema of its own.",
    "is looked for": "A slot is looked\nfor.",
    "there is no": "There is no such plan.",
    "how long as statement": "How long a job waits.",
    "give back, take back": "The slot is given back.",
    "could not be made": "The reservation could not\nbe made.",
    "event type": "Each event type has a limit.",
    duty: "It has the duty.",
    meanwhile: "Another job may start meanwhile.",
    ", too": "The edge counts it, too.",
    "of theirs": "It has a token of theirs.",
    "whatever, however many": "Each tick is enqueued once, however many processes run.",
    "one after the other": "Groups run one\nafter the other.",
    "for good": "The job failed for good.",
    "come to at most": "Grants may come to at most 5.",
    "the header X": "The user is in the header `Weir-User`.",
    "answered with a status": "Other requests are answered 404.",
    "go on": "The other jobs go on.",
    "long sentence": words(26),
  })) {
    it(`finds: ${rule}`, () => {
      assert.ok(rulesIn("page.md", sentence).includes(rule));
    });
  }

  it("accepts plain English", () => {
    const page = `# What it costs\n\nParked jobs wait. What is a lane? ${words(25)}\n\n| who | what |\n|---|---|\n| the edge | signs |`;
    assert.deepEqual(findingsOf("page.md", page), []);
  });

  it("accepts the same words in other meanings", () => {
    for (const text of [
      "How long does a job wait?",
      "It fails when the database is down, too many jobs wait, or the plan is unknown.",
      "Outcome is admitted, too_large or key_reused.",
      "The table of Weir's users.",
      "It uses your table instead of Weir's.",
      "The user is in the `Weir-User` header, or in the header `A` or `B`.",
      "The error log lists requests answered with 401.",
      "# How long jobs stay",
    ])
      assert.deepEqual(rulesIn("page.md", text), [], text);
  });

  it("counts the words of each item in a list with semicolons", () => {
    const item = words(12).slice(0, -1);
    assert.deepEqual(rulesIn("a.md", `${item}; ${item}; ${item}.`), []);
    assert.deepEqual(rulesIn("a.md", `${item}; ${item} and more.`), ["long sentence"]);
    assert.deepEqual(rulesIn("scripts/a.ts", `fail("${item}; ${item} and more (${item})");`), []);
  });

  it("accepts names of up to 70 letters", () => {
    const name = (letters: number): string => `fn ${"a".repeat(letters)}() {}`;
    assert.deepEqual(rulesIn("a.rs", name(70)), []);
    assert.deepEqual(rulesIn("a.rs", name(71)), ["long name"]);
    assert.deepEqual(rulesIn("a.test.ts", `it("${"a".repeat(71)}", () => {});`), ["long name"]);
    assert.deepEqual(rulesIn(`${"a".repeat(71)}.rs`, "// A comment."), ["long name"]);
  });

  it("finds riddles in short names, in camelCase and in types and variants", () => {
    const declared = (kind: string, name: string): string => `${kind} ${name} {}`;
    for (const [kind, name] of [
      ["function", "whatIsOutdated"],
      ["fn", "of_nobody"],
      ["fn", "who_wait"],
      ["struct", "WhoWaits"],
      ["interface", "WhyNot"],
    ] as const)
      assert.deepEqual(rulesIn("a.rs", declared(kind, name)), ["riddle"], name);
    assert.deepEqual(rulesIn("a.rs", "enum State {\n    Idle,\n    /// Waits.\n    WhatIsLost(u8),\n}"), ["riddle"]);
    assert.deepEqual(rulesIn("a.ts", declared("function", "itDelaysNobodyAtAll")), ["somebody, nobody, whose"]);
    for (const text of ["const what = 1;", "fn skip_reason() {}", "enum State {\n    Idle,\n}\nlet a = WhatIsLost;"])
      assert.deepEqual(rulesIn("a.rs", text), [], text);
  });

  it("finds negated objects in names, not in prose", () => {
    for (const verb of ["delays", "stop"])
      assert.deepEqual(rulesIn("a.rs", `fn one_user_${verb}_no_other() {}`), ["negated object"]);
    for (const name of ["users_without_a_plan_have_no_slot", "it_does_not_delay_others"])
      assert.deepEqual(rulesIn("a.rs", `fn ${name}() {}`), []);
    assert.deepEqual(rulesIn("a.md", "It delays no one else."), []);
  });

  it("reports the line of the sentence", () => {
    const page = "A first\nsentence. It delays\nnobody.\n\n- It delays nobody.";
    assert.deepEqual(
      findingsOf("page.md", page).map(({ line, text }) => [line, text]),
      [
        [2, "It delays nobody."],
        [5, "It delays nobody."],
      ],
    );
  });

  it("reads the prose of Markdown, not code, link targets or HTML", () => {
    const nobody = "somebody, nobody, whose";
    assert.deepEqual(rulesIn("a.md", "| a |\n|---|\n| nobody |"), [nobody]);
    assert.deepEqual(rulesIn("a.md", "1. nobody"), [nobody]);
    assert.deepEqual(rulesIn("a.md", "See [nobody](b.md)."), [nobody]);
    for (const text of ["```\nnobody\n```", "- item\n\n  ```sh\n  nobody\n  ```", "`nobody`", "[a](nobody.md)"])
      assert.deepEqual(rulesIn("a.md", text), [], text);
    assert.deepEqual(rulesIn("a.md", '<img alt="nobody">\n'), []);
  });

  it("reads comments, not code or commented-out settings", () => {
    const nobody = ["somebody, nobody, whose"];
    for (const [file, text] of [
      ["a.rs", "/// It delays\n/// nobody."],
      ["a.rs", 'let a = "//"; // It delays nobody.'],
      ["a.ts", "/**\n * It delays\n * nobody.\n */"],
      ["a.sql", "-- It delays nobody."],
      ["a.toml", "name = 1 # It delays nobody."],
      ["run", "#!/bin/sh\n# It delays nobody."],
      ["run", "#!/bin/sh\n# It delays\n# nobody."],
    ] as const)
      assert.deepEqual(rulesIn(file, text), nobody, text);
    for (const [file, text] of [
      ["a.rs", 'let nobody = "// nobody";'],
      ["a.rs", "/// ```\n/// nobody();\n/// ```"],
      ["a.toml", '# name = "nobody"'],
      ["a.sh", "nobody"],
      ["a.json", "nobody"],
    ] as const)
      assert.deepEqual(rulesIn(file, text), [], text);
  });

  it("reads workflows, the script of CI and fuzz targets", () => {
    const folder = mkdtempSync(join(tmpdir(), "weir-prose-"));
    try {
      const files = {
        ".ci/run": "#!/bin/sh\n# What every change must pass.",
        ".github/workflows/ci.yml": "      - name: What was packed runs here",
        "fuzz/fuzz_targets/a.rs": 'b("nobody signed it at all")',
      };
      for (const [file, text] of Object.entries(files)) {
        mkdirSync(dirname(join(folder, file)), { recursive: true });
        writeFileSync(join(folder, file), text);
      }
      const found = findingsBelow(folder).map(({ file, rule }) => [file, rule]);
      assert.deepEqual(found, [
        [".ci/run", "relative clause as subject"],
        [".github/workflows/ci.yml", "relative clause as subject"],
        ["fuzz/fuzz_targets/a.rs", "somebody, nobody, whose"],
      ]);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  it("reads the messages of programs, alerts and dashboards, not SQL or code", () => {
    const nobody = ["somebody, nobody, whose"];
    for (const [file, text] of [
      ["native/src/a.rs", '#[error("it delays \\\n    nobody at all")]'],
      ["scripts/a.ts", "fail(`it delays nobody at all`);"],
      ["deploy/alerts.yml", '  summary: "{{ $value }} jobs delay nobody"'],
      ["deploy/grafana/weir.json", '"description": "It delays nobody."'],
      ["deploy/grafana/weir.json", '"content": "Counts.\\n\\nIt delays nobody."'],
      ["native/src/a.rs", '#[cfg(test)]\nmod tests {\n    fn a() { b("it delays nobody") }\n}'],
      ["native/src/a.rs", 'b("it delays nobody if a < b")'],
      ["native/tests/a.rs", 'b("it delays nobody")'],
      ["bench/src/a.rs", 'b("it delays nobody")'],
      ["a.test.ts", 'b("it delays nobody")'],
      ["clients/go/a.go", 'b("it delays nobody")'],
      ["clients/python/a.py", 'b("it delays nobody")'],
      ["clients/python/a.py", '"""It delays nobody."""'],
      ["a.sql", "RAISE EXCEPTION 'it delays nobody' USING\n    HINT = 'a hint';"],
      ["a.sql", "COMMENT ON TABLE a IS\n    'It delays nobody.';"],
      ["a.sql", "RAISE invalid USING\n    MESSAGE = format('it delays nobody, %s', a);"],
    ] as const)
      assert.deepEqual(rulesIn(file, text), nobody, text);
    for (const [file, text] of [
      ["native/src/a.rs", "let sql = \"SELECT id FROM jobs WHERE name = 'nobody'\";"],
      ["native/src/a.rs", 'b("/admin/holders/nobody")'],
      ["native/src/a.rs", 'b("<p>It delays nobody.</p>")'],
      ["native/tests/suite/strange_json.rs", 'b("it delays nobody")'],
      ["a.sql", "SELECT 'it delays nobody';"],
      ["deploy/grafana/weir.json", '"expr": "it delays nobody"'],
    ] as const)
      assert.deepEqual(rulesIn(file, text), [], text);
  });

  it("reads each line of a list in columns by itself", () => {
    const list = `# name     ${words(16)}\n#          ${words(8)}\n# handler  ${words(16).replace("W", "w")}`;
    assert.deepEqual(rulesIn("a.toml", list), []);
  });

  it("counts code as one word, and ends sentences only before a new one", () => {
    const sentences = (text: string): string[] => sentencesOf(text).map(({ original }) => original.trim());
    assert.equal(wordsIn(sentencesOf("Run `npm run lint -- prose` now.")[0]?.plain ?? ""), 3);
    assert.deepEqual(sentences("**Fast.** It takes 0.5 s, i.e. little. `weir up` starts."), [
      "**Fast.**",
      "It takes 0.5 s, i.e. little.",
      "`weir up` starts.",
    ]);
  });

  it("fails for findings in checked files and for unused list entries", () => {
    const findings = ["a.md", "docs/b.md", "docsy.md"].flatMap((file) => findingsOf(file, "It delays nobody."));
    const unchecked = ["a.md", "docsy.md"].map((path) => ({ path, reason: "not rewritten yet" }));
    const exception = { path: "docs/b.md", rule: "somebody, nobody, whose", text: "delays", reason: "a quotation" };
    assert.deepEqual(failuresOf(findings, unchecked, []), ["docs/b.md:1: somebody, nobody, whose: It delays nobody."]);
    assert.deepEqual(failuresOf(findings, unchecked, [exception]), []);
    assert.deepEqual(failuresOf(findings, [...unchecked, { path: "src", reason: "" }], [exception]), [
      "src: no findings are left; remove it from clean.ts",
    ]);
    assert.deepEqual(failuresOf(findings, unchecked, [exception, { ...exception, path: "a.md" }]), [
      'a.md: no finding needs the exception "delays"',
    ]);
  });

  it("prints counts by folder and rule", () => {
    const findings = ["a.md", "docs/adr/b.md", "docs/c.md", "docs/d.md"].flatMap((file) => findingsOf(file, "Anew."));
    const rows = countsOf(findings).split("\n").slice(2);
    assert.deepEqual(
      rows.map((row) => row.trim().split(/\s+/)).map(([folder, ...counts]) => [folder, counts.at(-1)]),
      [
        [".", "1"],
        ["docs", "2"],
        ["docs/adr", "1"],
        ["all", "4"],
      ],
    );
  });

  it("passes for this repository", () => {
    assert.deepEqual(failuresOf(findingsBelow(root), unchecked, exceptions), []);
  });
});
