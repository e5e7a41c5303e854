import assert from "node:assert/strict";
import { after, test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";
import { startOrigin } from "./origin.ts";
import { costs, startEdge } from "./workerd.ts";

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
  const quiet = await startEdge({ after }, { originUrl: origin.url, secrets: origin.secrets });
  const submit = async (): Promise<number> =>
    (await quiet.from("203.0.113.6")("/api/jobs/analysis", { method: "POST", body: "{}" })).status;
  for (let sent = 0; sent < 7; sent++) assert.equal(await submit(), 200);
  // The last event in the object is the alarm of its snapshot, after eight seconds.
  await wait(25_000);
  assert.deepEqual(
    await costs(quiet),
    { calls: 0, rows: 0, addresses: 1 },
    "the object was evicted and constructed again",
  );
  const answers = [];
  for (let sent = 0; sent < 5; sent++) answers.push(await submit());
  assert.deepEqual(answers, [200, 200, 200, 429, 429]);
});
