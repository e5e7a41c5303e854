import assert from "node:assert/strict";
import { mkdtempSync } from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";
import type { V4WorkerOptions as WorkerOptions } from "miniflare";
import { startOrigin } from "./origin.ts";
import { costs, counterName, edgeName, startEdge } from "./workerd.ts";

const adr = {
  title: "Too Many Requests",
  status: 429,
  detail: "Rate limit exceeded. Please sign in for higher limits or try again later.",
};

const origin = await startOrigin({ after });
const edge = await startEdge({ after }, { originUrl: origin.url, secrets: origin.secrets });

const submit = (address: string, init: RequestInit = {}): Promise<Response> =>
  edge.from(address)("/api/jobs/analysis", { method: "POST", body: "{}", ...init });

/** The statuses of this many submissions, sent one at a time. */
async function statuses(address: string, count: number): Promise<number[]> {
  const statuses = [];
  for (let sent = 0; sent < count; sent++) statuses.push((await submit(address)).status);
  return statuses;
}

test("ten submissions per address and window pass, the eleventh does not", async () => {
  const answers = await statuses("203.0.113.1", 12);
  assert.deepEqual(answers, [...Array(10).fill(200), 429, 429]);
  assert.equal((await submit("203.0.113.2")).status, 200);
});

test("a denial has the body of the ADR and the fields of the draft", async () => {
  await statuses("203.0.113.3", 10);
  const denied = await submit("203.0.113.3", { headers: { origin: "https://app.example" } });
  assert.equal(denied.status, 429);
  const body = (await denied.json()) as Record<string, unknown>;
  assert.deepEqual(body, {
    ...adr,
    type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    "violated-policies": ["anon"],
  });
  const seconds = Number(denied.headers.get("retry-after"));
  assert.ok(seconds > 50 && seconds <= 60, String(seconds));
  assert.equal(denied.headers.get("ratelimit-policy"), '"anon";q=10;w=60');
  assert.equal(denied.headers.get("ratelimit"), `"anon";r=0;t=${seconds}`);
  assert.equal(denied.headers.get("content-type"), "application/problem+json");
  assert.equal(denied.headers.get("cache-control"), "no-store");
  assert.equal(denied.headers.get("vary"), "Origin");
  assert.equal(denied.headers.get("access-control-allow-origin"), "https://app.example");
  assert.match(denied.headers.get("access-control-expose-headers") ?? "", /RateLimit, RateLimit-Policy, Retry-After/);
});

test("the response to an admitted submission has the remaining requests", async () => {
  const first = await submit("203.0.113.4");
  assert.equal(first.headers.get("ratelimit-policy"), '"anon";q=10;w=60');
  assert.equal(first.headers.get("ratelimit"), '"anon";r=9;t=60');
  const second = await submit("203.0.113.4");
  assert.match(second.headers.get("ratelimit") ?? "", /^"anon";r=8;t=(60|5\d)$/);
});

test("exactly 10 of 1000 concurrent submissions are admitted", async () => {
  const answers = await Promise.all(Array.from({ length: 1000 }, () => submit("203.0.113.5")));
  const passed = answers.filter((answer) => answer.status === 200).length;
  const denied = answers.filter((answer) => answer.status === 429).length;
  assert.deepEqual({ passed, denied }, { passed: 10, denied: 990 });
});

test("an IPv6 /64 shares a count; a v4-mapped address counts as IPv4", async () => {
  for (let n = 0; n < 10; n++) assert.equal((await submit(`2001:db8:1:2::${n}`)).status, 200);
  assert.equal((await submit("2001:db8:1:2:ffff:ffff:ffff:ffff")).status, 429);
  assert.equal((await submit("2001:db8:1:3::1")).status, 200);
  await statuses("203.0.113.60", 10);
  assert.equal((await submit("::ffff:203.0.113.60")).status, 429);
  assert.equal((await submit("::ffff:cb00:713c")).status, 429);
});

test("forwarding headers of a client are ignored", async () => {
  for (let n = 0; n < 10; n++) {
    const headers = {
      "x-forwarded-for": `198.51.100.${n}`,
      "x-real-ip": `198.51.100.${n}`,
      forwarded: `for=198.51.100.${n}`,
      "true-client-ip": `198.51.100.${n}`,
    };
    assert.equal((await submit("203.0.113.61", { headers })).status, 200);
  }
  assert.equal((await submit("203.0.113.61", { headers: { "x-forwarded-for": "198.51.100.200" } })).status, 429);
});

test("the count survives an eviction after ten seconds without requests", { timeout: 300_000 }, async () => {
  const quiet = await startEdge(
    { after },
    { originUrl: origin.url, secrets: origin.secrets, vars: { ANON_WINDOW: "300" } },
  );
  const submit = async (): Promise<number> =>
    (await quiet.from("203.0.113.6")("/api/jobs/analysis", { method: "POST", body: "{}" })).status;
  for (let sent = 0; sent < 7; sent++) assert.equal(await submit(), 200);
  await wait(15_000);
  assert.deepEqual(
    await costs(quiet),
    { calls: 0, rows: 0, addresses: 1 },
    "the object was evicted and constructed again",
  );
  const answers = [];
  for (let sent = 0; sent < 5; sent++) answers.push(await submit());
  assert.deepEqual(answers, [200, 200, 200, 429, 429]);
});

test("another window starts with new counts, and does not extend an open one", async () => {
  const storage = mkdtempSync(join(tmpdir(), "weir-edge-"));
  after(() => rm(storage, { recursive: true, force: true }));
  const statuses = async (window: string): Promise<number[]> => {
    const edge = await startEdge(
      { after },
      { originUrl: origin.url, secrets: origin.secrets, storage, vars: { ANON_LIMIT: "3", ANON_WINDOW: window } },
    );
    const statuses = [];
    for (let sent = 0; sent < 4; sent++) {
      const answer = await edge.from("203.0.113.7")("/api/jobs/analysis", { method: "POST", body: "{}" });
      statuses.push(answer.status);
    }
    await edge.miniflare.dispose();
    return statuses;
  };
  assert.deepEqual(await statuses("3600"), [200, 200, 200, 429]);
  assert.deepEqual(await statuses("86400"), [200, 200, 200, 429]);
  assert.deepEqual(await statuses("3600"), [429, 429, 429, 429], "the first window is still open");
});

/** A Worker that counts requests of many addresses. Each HTTP request would take longer than the counting. */
const flood = {
  name: "flood",
  modules: true,
  compatibilityDate: "2026-09-01",
  script: `export default {
    async fetch(request, { COUNTERS }) {
      const [from, to] = JSON.parse(new URL(request.url).searchParams.get("range"));
      const object = COUNTERS.getByName("${counterName}");
      let admitted = 0;
      for (let n = from; n < to; n += 500) {
        const numbers = Array.from({ length: Math.min(500, to - n) }, (_, index) => n + index);
        const results = await Promise.all(numbers.map((n) => object.take(4, 0, n, 1)));
        admitted += results.filter((packed) => packed % 2 === 1).length;
      }
      return Response.json(admitted);
    },
  }`,
  durableObjects: { COUNTERS: { className: "AddressCounter", scriptName: edgeName } },
  unsafeDirectSockets: [{ host: "127.0.0.1", port: 0 }],
} as WorkerOptions;

/** `policy/src/limit_set.rs` has a test with a million. */
const many = Number(process.env.WEIR_ADDRESSES ?? 20_000);

test("all addresses of a day have their own counts in one object", { timeout: 900_000 }, async () => {
  const day = await startEdge(
    { after },
    {
      originUrl: origin.url,
      secrets: origin.secrets,
      vars: { ANON_WINDOW: "86400", ANON_LIMIT: "2" },
      beside: [flood],
    },
  );
  const { host } = await day.miniflare.unsafeGetDirectURL(flood.name);
  const admitted = async (from: number, to: number): Promise<unknown> =>
    await (await fetch(`http://${host}/?range=[${from},${to}]`)).json();
  for (let from = 0; from < many; from += 10_000) assert.equal(await admitted(from, from + 10_000), 10_000);
  assert.equal((await costs(day)).addresses, many);
  for (const n of [0, 7_777, many - 1])
    assert.deepEqual([await admitted(n, n + 1), await admitted(n, n + 1)], [1, 0], `address ${n}`);
});
