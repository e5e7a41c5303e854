import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { nodeBin, nodeModules, root } from "../../scripts/lib/paths.ts";
import { skipWithoutGo } from "../harness/go.ts";

// Code blocks of the documentation. Those that read what strangers send must refuse hostile input, and go on.
// native/tests/suite/webhooks.rs runs those of webhooks.md.

const secret = "a secret of at least 32 characters";
const hostile = [
  undefined,
  "",
  ".",
  "..",
  "...",
  "a.b.c",
  "a.b.\u00e9",
  "\u00e9.\u00e9.\u00e9",
  "a.b.=",
  "a.b.A",
  `a.b.${"A".repeat(43)}`,
  "a".repeat(100_000),
];

/** Prints one line for each value of the header that is refused by an error of the documented kind. */
const verifiers: Record<string, { command: string[]; file: string; code: string }> = {
  js: {
    command: [process.execPath],
    file: "verify.mjs",
    code: `import { readFileSync } from "node:fs";
for (const given of JSON.parse(readFileSync(0, "utf8"))) {
  const headers = given === null ? {} : { "weir-assertion": given };
  try {
    verify({ method: "GET", url: "/", headers }, ${JSON.stringify(secret)});
  } catch (error) {
    if (!(error instanceof TypeError || error instanceof RangeError)) console.log("refused");
  }
}
`,
  },
  python: {
    command: ["python3"],
    file: "verify.py",
    code: `import sys
for given in json.load(sys.stdin):
    try:
        verify(given, "GET", "/", ${JSON.stringify(secret)}.encode())
    except ValueError:
        print("refused")
`,
  },
};

function blocks(page: string, language: string): string[] {
  const text = readFileSync(join(root, page), "utf8");
  const found = text.matchAll(new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\``, "gms"));
  return [...found].map((match) => match[1] ?? "");
}

function block(page: string, language: string): string {
  const [code] = blocks(page, language);
  assert.ok(code, `${page} has a block of ${language}`);
  return code;
}

for (const [language, { command, file, code }] of Object.entries(verifiers)) {
  it(`the documented ${language} verifier of assertions refuses hostile headers`, (context) => {
    const folder = mkdtempSync(join(tmpdir(), "weir-receivers-"));
    context.after(() => rmSync(folder, { recursive: true }));
    writeFileSync(join(folder, file), `${block("docs/how-to/put-weir-in-front.md", language)}\n${code}`);
    const [program = "", ...args] = [...command, file];
    const input = JSON.stringify(hostile.map((value) => value ?? null));
    const run = spawnSync(program, args, { cwd: folder, input, encoding: "utf8" });
    if ((run.error as NodeJS.ErrnoException | undefined)?.code === "ENOENT") {
      context.skip(`${program} is not installed`);
      return;
    }
    assert.equal(run.status, 0, run.stderr);
    assert.equal(run.stdout, "refused\n".repeat(hostile.length));
  });
}

it("the tutorial's handler ends with a result or an error for any arguments", (context) => {
  const folder = mkdtempSync(join(tmpdir(), "weir-receivers-"));
  context.after(() => rmSync(folder, { recursive: true }));
  writeFileSync(join(folder, "handler.mjs"), block("docs/tutorial/your-own-service.md", "js"));
  for (const [input, status] of [
    [{ text: "two words" }, 0],
    [{ text: "" }, 0],
    [{ text: "\u0000 \ud800" }, 0],
    [{ text: "a", seconds: "x" }, 0],
    [{ text: "a", seconds: -1 }, 0],
    [{}, 1],
    [{ text: null }, 1],
    [{ text: ["a"] }, 1],
  ] as const) {
    const run = spawnSync(process.execPath, ["handler.mjs"], {
      cwd: folder,
      input: JSON.stringify(input),
      encoding: "utf8",
    });
    assert.equal(run.status, status, `${JSON.stringify(input)}: ${run.stderr}`);
    if (status === 0) assert.ok(Number.isInteger(JSON.parse(run.stdout).used));
    else assert.equal(run.stderr, "text must be a string\n");
  }
});

it("the code in the TypeScript package's page and in README compiles", (context) => {
  const folder = mkdtempSync(join(tmpdir(), "weir-receivers-"));
  context.after(() => rmSync(folder, { recursive: true }));
  const client = join(root, "clients", "typescript");
  writeFileSync(join(folder, "page.mts"), blocks("clients/typescript/README.md", "ts").join("\n"));
  writeFileSync(join(folder, "readme.mts"), block("README.md", "ts"));
  const compilerOptions = {
    noEmit: true,
    rootDir: "/",
    typeRoots: [join(nodeModules, "@types")],
    paths: {
      "weir-client": [join(client, "weir.ts")],
      postgres: [join(nodeModules, "postgres", "types", "index.d.ts")],
    },
  };
  const settings = { extends: join(client, "tsconfig.json"), compilerOptions, files: ["page.mts", "readme.mts"] };
  writeFileSync(join(folder, "tsconfig.json"), JSON.stringify(settings));
  const run = spawnSync(join(nodeBin, "tsc"), ["--project", folder], { encoding: "utf8" });
  assert.equal(run.status, 0, run.stdout);
});

it("the code in the page of the Go package compiles", { skip: skipWithoutGo() }, (context) => {
  const folder = mkdtempSync(join(tmpdir(), "weir-receivers-"));
  context.after(() => rmSync(folder, { recursive: true }));
  const [submit = "", work = ""] = blocks("clients/go/README.md", "go");
  const [imported, ...statements] = submit.split("\n");
  writeFileSync(
    join(folder, "main.go"),
    `package main

${imported}
import ("context"; "fmt"; "github.com/jackc/pgx/v5"; "github.com/jackc/pgx/v5/pgxpool"; "github.com/riverqueue/river")

type order struct { Order int }
func (order) Kind() string { return "analysis:analyze" }

type worker struct { river.WorkerDefaults[order]; pool *pgxpool.Pool }

func submit(ctx context.Context, pool *pgxpool.Pool) error {
${statements.join("\n")}
return err
}

${work}
func main() { _ = submit(context.Background(), nil); var _ river.Worker[order] = &worker{} }
`,
  );
  // In the package's module, because the page's code needs its dependencies.
  const client = join(root, "clients", "go");
  const overlay = { Replace: { [join(client, "page", "main.go")]: join(folder, "main.go") } };
  writeFileSync(join(folder, "overlay.json"), JSON.stringify(overlay));
  const flags = ["build", "-overlay", join(folder, "overlay.json"), "-o", join(folder, "page"), "./page"];
  const run = spawnSync("go", flags, { cwd: client, encoding: "utf8" });
  assert.equal(run.status, 0, run.stderr);
});
