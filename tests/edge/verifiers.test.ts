import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { createHash, randomUUID } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { type JWTPayload, SignJWT } from "jose";
import { root } from "../../scripts/lib/paths.ts";
import { tokenFor } from "../harness/identity.ts";
import { startOrigin } from "./origin.ts";
import { startEdge } from "./workerd.ts";

// The verifiers of docs/how-to/put-weir-in-front.md accept what the edge signs, and nothing else.

interface Case {
  name: string;
  method: string;
  target: string;
  assertion: string;
  valid: boolean;
}

const page = readFileSync(join(root, "docs", "how-to", "put-weir-in-front.md"), "utf8");
const folder = mkdtempSync(join(tmpdir(), "weir-verifiers-"));
after(() => rmSync(folder, { recursive: true }));

/** The first code block of the page in this language. */
function block(language: string): string {
  const [, code] = new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\``, "ms").exec(page) ?? [];
  assert.ok(code, `the page has a block of ${language}`);
  return code;
}

/** Each program reads the secret and cases from standard input, and prints the subject of each valid assertion. */
const programs: Record<string, { file: string; code: string; command: string[] }> = {
  go: {
    file: "main.go",
    command: ["go", "run", "main.go"],
    code: `package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"
)

${block("go")}
func main() {
	var input struct {
		Secret string
		Cases  []struct{ Method, Target, Assertion string }
	}
	if err := json.NewDecoder(os.Stdin).Decode(&input); err != nil {
		panic(err)
	}
	for _, one := range input.Cases {
		r := &http.Request{Method: one.Method, RequestURI: one.Target, Header: http.Header{}}
		r.Header.Set("Weir-Assertion", one.Assertion)
		claims, err := Verify(r, []byte(input.Secret))
		if err != nil {
			fmt.Println("refused")
		} else {
			fmt.Println(claims["sub"])
		}
	}
}
`,
  },
  js: {
    file: "verify.mjs",
    command: [process.execPath, "verify.mjs"],
    code: `import { readFileSync } from "node:fs";
${block("js")}
const { secret, cases } = JSON.parse(readFileSync(0, "utf8"));
for (const { method, target, assertion } of cases) {
  try {
    console.log(verify({ method, url: target, headers: { "weir-assertion": assertion } }, secret).sub);
  } catch {
    console.log("refused");
  }
}
`,
  },
  python: {
    file: "verify.py",
    command: ["python3", "verify.py"],
    code: `${block("python")}

import sys
given = json.load(sys.stdin)
for case in given["cases"]:
    try:
        print(verify(case["assertion"], case["method"], case["target"], given["secret"].encode())["sub"])
    except ValueError:
        print("refused")
`,
  },
};

const origin = await startOrigin({ after });
const user = randomUUID();
const cases: Case[] = await (async () => {
  const edge = await startEdge({ after }, { originUrl: origin.url, secrets: origin.secrets });
  const authorization = `Bearer ${await tokenFor(origin.secrets.jwt, user)}`;
  const target = "/api/a%2Fb?c=d%20e&f";
  assert.equal((await edge.from("203.0.113.1")(target, { headers: { authorization } })).status, 200);
  const assertion = String(origin.last().headers["weir-assertion"]);
  const [header, payload, signature] = assertion.split(".");
  const signed = (claims: JWTPayload, secret = origin.secrets.edge): Promise<string> =>
    new SignJWT({ ...origin.last().claims, ...claims }).setProtectedHeader({ alg: "HS256" }).sign(Buffer.from(secret));
  const none = Buffer.from('{"alg":"none"}').toString("base64url");
  const changed = Buffer.from(JSON.stringify({ ...origin.last().claims, sub: "admin" })).toString("base64url");
  const now = Math.floor(Date.now() / 1000);
  const forgeries: Record<string, string> = {
    none: "",
    "not a JWT": "a.b",
    "an empty signature": `${header}.${payload}.`,
    "a short signature": `${header}.${payload}.${signature?.slice(0, 20)}`,
    "the algorithm none": `${none}.${payload}.`,
    "changed claims": `${header}.${changed}.${signature}`,
    "another secret": await signed({}, randomUUID() + randomUUID()),
    "an assertion about the edge": await signed({ aud: "weir-origin/edge" }),
    "an expired one": await signed({ iat: now - 60, exp: now - 30 }),
    "another digest": await signed({ htd: createHash("sha256").update("/").digest("base64url") }),
  };
  const request = { method: "GET", target, assertion, valid: false };
  return [
    { ...request, name: "the edge's assertion", valid: true },
    { ...request, name: "another method", method: "POST" },
    { ...request, name: "another path", target: "/api/a/b?c=d%20e&f" },
    { ...request, name: "another query", target: "/api/a%2Fb" },
    ...Object.entries(forgeries).map(([name, forged]) => ({ ...request, name, assertion: forged })),
  ];
})();

for (const [language, { file, code, command }] of Object.entries(programs)) {
  test(`the ${language} verifier accepts only the edge's assertions`, { timeout: 120_000 }, (context) => {
    writeFileSync(join(folder, file), code);
    const [program = "", ...args] = command;
    const input = JSON.stringify({ secret: origin.secrets.edge, cases });
    const run = spawnSync(program, args, { cwd: folder, input, encoding: "utf8" });
    if ((run.error as NodeJS.ErrnoException | undefined)?.code === "ENOENT") {
      context.skip(`${program} is not installed`);
      return;
    }
    assert.equal(run.status, 0, run.stderr);
    const expected = cases.map(({ name, valid }) => `${name}: ${valid ? user : "refused"}`);
    const lines = run.stdout.trimEnd().split("\n");
    assert.deepEqual(
      lines.map((line, place) => `${cases[place]?.name}: ${line}`),
      expected,
    );
  });
}
