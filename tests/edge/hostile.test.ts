import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createHash, randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createConnection } from "node:net";
import { join } from "node:path";
import { after, test } from "node:test";
import { root } from "../../scripts/lib/paths.ts";
import { tokenFor } from "../harness/identity.ts";
import { startOrigin } from "./origin.ts";
import { costs, startEdge } from "./workerd.ts";

const origin = await startOrigin({ after });
const loose = { ANON_LIMIT: "100000", ANON_READ_LIMIT: "100000", ANON_WINDOW: "3600" };
const edge = await startEdge(
  { after },
  { originUrl: origin.url, secrets: origin.secrets, vars: loose, worker: { ratelimits: {} } },
);

/** Sends these bytes and returns the status, or undefined when the runtime closes the connection. */
function raw(head: string, url = edge.url): Promise<number | undefined> {
  const { port } = new URL(url);
  return new Promise((done) => {
    const socket = createConnection(Number(port), "127.0.0.1");
    let text = "";
    socket.on("data", (data) => (text += String(data)));
    socket.on("close", () => done(text ? Number(text.split(" ")[1]) : undefined));
    socket.on("error", () => done(undefined));
    socket.write(Buffer.from(head, "latin1"));
  });
}

test("headers do not cause errors or change the user or the address", { timeout: 300_000 }, async () => {
  const victim = randomUUID();
  const token = await tokenFor(origin.secrets.jwt, victim);
  // The seed is fixed, so that a failure is reproducible.
  let seed = createHash("sha256").update("header fuzzing").digest();
  const random = (below: number): number => {
    seed = createHash("sha256").update(seed).digest();
    return seed.readUInt32LE(0) % below;
  };
  const pick = <T>(of: readonly T[]): T => of[random(of.length)] as T;
  const names = [
    "Authorization",
    "Cookie",
    "X-Forwarded-For",
    "X-Real-IP",
    "Forwarded",
    "CF-Connecting-IPv6",
    "CF-Worker",
    "True-Client-IP",
    "Weir-Assertion",
    "X-User-Id",
    "Origin",
    "Traceparent",
    "Tracestate",
    "X-Request-Id",
    "Content-Type",
    "Accept",
    "Range",
    "If-None-Match",
    "Idempotency-Key",
    "Last-Event-ID",
    "Cache-Control",
    "X_Forwarded_For",
    "Access-Control-Request-Method",
    "Connection",
    "Upgrade",
    "Expect",
    "Referer",
    "Via",
    "Te",
    "Prefer",
  ];
  // Parts of a token and changed tokens, but never the token itself.
  const pieces = [
    token.slice(0, token.length / 2),
    `${token.slice(0, -3)}AAA`,
    `${token.split(".")[0]}..`,
    token.split(".").reverse().join("."),
  ];
  const value = (): string => {
    const texts = [
      "",
      " ",
      ",",
      ";;;",
      "=",
      '"',
      "\\",
      "%00",
      "%0d%0aX-User-Id: root",
      "\u00ff\u00fe",
      "a".repeat(random(3000)),
      "127.0.0.1",
      "::1",
      "[::1]:80",
      "for=127.0.0.1;proto=https",
      "auth_token=",
      "auth_token=a; auth_token=b",
      `Bearer ${pick(pieces)}`,
      `auth_token=${pick(pieces)}`,
      "Basic Og==",
      "Bearer",
      "null",
      "*",
      "0",
      "-1",
      "1e309",
      "bytes=0-,1-",
      "\tx\t",
    ];
    return pick(texts);
  };
  for (let sent = 0; sent < 400; sent++) {
    const headers = Array.from({ length: 1 + random(8) }, () => `${pick(names)}: ${value()}`).join("\r\n");
    const method = pick(["GET", "POST", "DELETE", "OPTIONS", "HEAD"]);
    const before = origin.received.length;
    const start = `${method} /api/jobs/x HTTP/1.1\r\nHost: x\r\nCF-Connecting-IP: 203.0.113.80`;
    const head = `${start}\r\n${headers}\r\nConnection: close\r\n\r\n`;
    const status = await raw(head);
    assert.ok(status === undefined || status < 500 || status === 501, `${status} for ${head}`);
    for (const received of origin.received.slice(before)) {
      assert.equal(received.claims.sub, undefined, head);
      assert.equal(received.claims.client_address, "203.0.113.80", head);
      assert.equal(received.headers["x-forwarded-for"], "203.0.113.80", head);
    }
  }
});

test("oversized headers are refused or ignored, and the edge keeps working", async () => {
  for (const bytes of [9_000, 60_000, 200_000]) {
    for (const name of ["Authorization: Bearer", "Cookie: auth_token=", "Traceparent:", "Origin:"]) {
      const status = await raw(
        "GET /api/lanes HTTP/1.1\r\nHost: x\r\nCF-Connecting-IP: 203.0.113.81\r\n" +
          `${name} ${"a".repeat(bytes)}\r\nConnection: close\r\n\r\n`,
      );
      assert.ok(status === undefined || status < 500, `${name} with ${bytes} bytes: ${status}`);
    }
  }
  assert.equal((await edge.from("203.0.113.81")("/api/lanes")).status, 200);
});

test("a flood of new addresses does not grow the object without bounds", { timeout: 600_000 }, async () => {
  const before = (await costs(edge)).addresses;
  for (let batch = 0; batch < 20; batch++) {
    await Promise.all(
      Array.from({ length: 100 }, (_, n) =>
        edge.from(`2001:db8:${batch.toString(16)}:${n.toString(16)}::1`)("/api/jobs/x", { method: "POST", body: "{}" }),
      ),
    );
  }
  assert.equal((await costs(edge)).addresses - before, 2000, "each /64 once; see the bound in src/counter.rs");
});

// Bugs that users of Rust Workers and of rate limiters have reported.

test("a panic does not stop the Worker from answering", async () => {
  const drilled = await startEdge(
    { after },
    { originUrl: origin.url, secrets: origin.secrets, vars: { ...loose, DRILLS: "on" } },
  );
  for (let round = 0; round < 5; round++) {
    const started = Date.now();
    assert.equal(
      (await drilled.from("203.0.113.82")("/api/lanes", { headers: { "weir-drill-panic": "1" } })).status,
      500,
    );
    assert.equal((await drilled.from("203.0.113.82")("/api/lanes")).status, 200);
    assert.ok(Date.now() - started < 10_000);
  }
  await drilled.logged("this is a drill");
});

test("the program imports nothing but what wasm-bindgen and glue.mjs provide", async () => {
  // Node's types lack it.
  const { WebAssembly } = globalThis as unknown as {
    WebAssembly: {
      compile(bytes: Uint8Array): Promise<object>;
      Module: { imports(module: object): { module: string }[] };
    };
  };
  const module = await WebAssembly.compile(readFileSync(join(root, "build", "index_bg.wasm")));
  const from = new Set(WebAssembly.Module.imports(module).map((each) => each.module));
  assert.ok(
    [...from].every((module) => module === "./index_bg.js" || module.endsWith("/src/glue.mjs")),
    `no \`env\`, which no Worker has: ${[...from].join(" ")}`,
  );
});

test("every call into Rust restarts it after a panic", () => {
  const glue = readFileSync(join(root, "build", "index.js"), "utf8");
  const looks = [...glue.matchAll(/(.{20})(?:this\.__wbg_inst!==void 0|\w+\.instance!==)/gs)];
  assert.ok(looks.length > 5, String(looks.length));
  for (const [, before] of looks) assert.match(before ?? "", /\bif\(\w+\(\),$/);
});

test("wasm-bindgen's library and tool match", () => {
  const lock = readFileSync(join(root, "Cargo.lock"), "utf8");
  const version = /name = "wasm-bindgen"\nversion = "([^"]+)"/.exec(lock)?.[1];
  assert.match(readFileSync(join(root, "Cargo.toml"), "utf8"), new RegExp(`wasm-bindgen = "=${version}"`));
  assert.match(
    readFileSync(join(root, "scripts", "bindgen", "Cargo.toml"), "utf8"),
    new RegExp(`wasm-bindgen-cli-support = "=${version}"`),
  );
});

test("the smoke test accepts a correct edge and detects a faulty one", { timeout: 300_000 }, async () => {
  const smoke = (url: string, ...args: string[]): Promise<{ code: number | null; output: string }> =>
    new Promise((done) => {
      const child = spawn(process.execPath, [join(import.meta.dirname, "smoke.ts"), url, ...args], {
        stdio: ["ignore", "pipe", "inherit"],
      });
      let output = "";
      child.stdout.on("data", (data) => (output += String(data)));
      child.on("close", (code) => done({ code, output }));
    });
  const good = await startEdge({ after }, { originUrl: origin.url, secrets: origin.secrets });
  const fine = await smoke(good.url, "--token", await tokenFor(origin.secrets.jwt));
  assert.equal(fine.code, 0, fine.output);
  const shadow = await startEdge(
    { after },
    { originUrl: origin.url, secrets: origin.secrets, vars: { ANON_MODE: "shadow", DRILLS: "on" } },
  );
  const found = await smoke(shadow.url);
  assert.equal(found.code, 1);
  assert.match(found.output, /FAILS {2}submissions of one address are limited/);
  assert.match(found.output, /FAILS {2}a client cannot cause a panic/);
});
