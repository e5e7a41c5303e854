import assert from "node:assert/strict";
import { createHash, randomUUID } from "node:crypto";
import { after, test } from "node:test";
import type { V4WorkerOptions as WorkerOptions } from "miniflare";
import { tokenFor } from "../harness/identity.ts";
import { receive, startOrigin } from "./origin.ts";
import { costs, counterName, type Edge, type EdgeOptions, startEdge } from "./workerd.ts";

const origin = await startOrigin({ after }, async (request, response, origin) => {
  origin.received.push(await receive(request, Buffer.from(origin.secrets.edge)));
  const quota = request.headers["idempotency-key"] === "without a plan" ? [] : quotas;
  for (const [name, value] of quota) response.setHeader(name, value);
  response.writeHead(202).end("{}");
});
const quotas: [string, string][] = [
  ["RateLimit-Policy", '"renders-month";q=2000;w=2592000, "renders-hour";q=100;w=3600'],
  ["RateLimit", '"renders-month";r=7;t=99, "renders-hour";r=3;t=9'],
];
/** The name of a user's counting object. */
const nameOf = (user: string): string => `user-${createHash("sha256").update(user).digest("hex").slice(0, 16)}`;

const start = (vars: Record<string, string>, more: Partial<EdgeOptions> = {}): Promise<Edge> =>
  startEdge({ after }, { originUrl: origin.url, secrets: origin.secrets, vars, ...more });

const edge = await start({ USER_LIMIT: "3", HOLDER_CLAIM: "org_id" });

/** Sends a user's request, each from another address. */
let host = 0;
async function send(
  to: Edge,
  user: string,
  { claims = {}, ...init }: RequestInit & { claims?: Record<string, unknown> } = {},
  path = "/api/jobs/analysis",
): Promise<Response> {
  const headers = new Headers(init.headers);
  headers.set("authorization", `Bearer ${await tokenFor(origin.secrets.jwt, user, claims)}`);
  return to.from(`198.51.100.${host++ % 250}`)(path, { method: "POST", body: "{}", ...init, headers });
}

async function statuses(to: Edge, user: string, count: number): Promise<number[]> {
  const statuses = [];
  for (let sent = 0; sent < count; sent++) statuses.push((await send(to, user)).status);
  return statuses;
}

test("a user's submissions are limited across addresses and alone", async () => {
  assert.deepEqual(await statuses(edge, "anne", 5), [202, 202, 202, 429, 429]);
  assert.equal((await send(edge, "Anne")).status, 202);
  assert.equal((await edge.from("198.51.100.1")("/api/jobs/analysis", { method: "POST", body: "{}" })).status, 202);
});

test("the edge's policy is appended to the quotas of the origin", async () => {
  const user = randomUUID();
  const admitted = await send(edge, user);
  assert.equal(admitted.headers.get("ratelimit-policy"), `${quotas[0]?.[1]}, "user";q=3;w=60`);
  assert.equal(admitted.headers.get("ratelimit"), `${quotas[1]?.[1]}, "user";r=2;t=60`);
  const alone = await send(edge, user, { headers: { "idempotency-key": "without a plan" } });
  assert.equal(alone.headers.get("ratelimit-policy"), '"user";q=3;w=60');
  assert.match(alone.headers.get("ratelimit") ?? "", /^"user";r=1;t=(60|5\d)$/);
});

test("a denial names the policy and does not ask a user to sign in", async () => {
  const user = randomUUID();
  await statuses(edge, user, 3);
  const denied = await send(edge, user);
  assert.equal(denied.status, 429);
  assert.deepEqual(await denied.json(), {
    type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "Too Many Requests",
    status: 429,
    detail: "Rate limit exceeded. Please try again later.",
    "violated-policies": ["user"],
  });
  const seconds = Number(denied.headers.get("retry-after"));
  assert.ok(seconds > 40 && seconds <= 60, String(seconds));
  assert.equal(denied.headers.get("ratelimit-policy"), '"user";q=3;w=60');
  assert.equal(denied.headers.get("ratelimit"), `"user";r=0;t=${seconds}`);
});

test("the users of an organisation share its limit", async () => {
  const claims = { org_id: randomUUID() };
  const answers = [];
  for (const user of ["ben", "cleo", "dora", "emil"]) answers.push((await send(edge, user, { claims })).status);
  assert.deepEqual(answers, [202, 202, 202, 429]);
  assert.equal((await send(edge, "ben")).status, 202, "alone, Ben has his own limit");
});

test("a subject spelled like an address does not share its count", async () => {
  const address = "203.0.113.77";
  await statuses(edge, address, 4);
  const answer = await edge.from(address)("/api/jobs/analysis", { method: "POST", body: "{}" });
  assert.match(answer.headers.get("ratelimit") ?? "", /"anon";r=9;t=60$/);
});

test("users' reads are not counted; a denied user does not call an object", async () => {
  const user = randomUUID();
  await statuses(edge, user, 4);
  const { calls } = await costs(edge, nameOf(user));
  for (let sent = 0; sent < 5; sent++) {
    const answer = await send(edge, user, { method: "GET", body: null }, "/api/jobs");
    assert.equal(answer.status, 202);
    assert.equal(answer.headers.get("ratelimit"), quotas[1]?.[1]);
  }
  assert.deepEqual(await statuses(edge, user, 5), Array(5).fill(429));
  assert.ok((await costs(edge, nameOf(user))).calls <= calls);
});

test("a count outlives its object", async () => {
  const limited = await start({ USER_LIMIT: "3" });
  await statuses(limited, "anne", 2);
  await limited.evict(nameOf("anne"));
  assert.equal((await costs(limited, nameOf("anne"))).calls, 0, "the object was constructed again");
  const third = await send(limited, "anne");
  assert.match(third.headers.get("ratelimit") ?? "", /"user";r=0;t=(60|5\d)$/);
  assert.equal((await send(limited, "anne")).status, 429);
});

test("exactly as many concurrent submissions as the limit are admitted", async () => {
  const user = randomUUID();
  const answers = await Promise.all(Array.from({ length: 100 }, () => send(edge, user)));
  assert.equal(answers.filter((answer) => answer.status === 202).length, 3);
});

test("without USER_LIMIT, no object is called for a user", async () => {
  const unlimited = await start({ USER_WINDOW: "5" });
  assert.deepEqual(await statuses(unlimited, "anne", 20), Array(20).fill(202));
  assert.equal((await send(unlimited, "anne")).headers.get("ratelimit"), quotas[1]?.[1]);
  for (const name of [nameOf("anne"), counterName]) assert.equal((await costs(unlimited, name)).calls, 0, name);
});

test("in shadow mode users are counted and not denied", async () => {
  const shadow = await start({ USER_LIMIT: "1", ANON_MODE: "shadow" });
  assert.deepEqual(await statuses(shadow, "anne", 3), [202, 202, 202]);
  await shadow.logged("shadow_denial");
});

test("users' native limiter, then WITHOUT_COUNTER, decides on failure", async () => {
  const broken = {
    name: "broken",
    modules: true,
    durableObjects: { SELF: { className: "Broken", useSQLite: true } },
    compatibilityDate: "2026-09-01",
    script: `
      import { DurableObject } from "cloudflare:workers";
      export class Broken extends DurableObject { async take() { throw new Error('broken'); } }
      export default { fetch() { return new Response() } };`,
  } as WorkerOptions;
  const failing = (ratelimits: Record<string, unknown>): Promise<Edge> =>
    start(
      { USER_LIMIT: "100" },
      {
        beside: [broken],
        worker: {
          durableObjects: { ADDRESS_COUNTERS: { className: "Broken", scriptName: "broken", useSQLite: true } },
          ratelimits,
        } as Partial<WorkerOptions>,
      },
    );
  // One request per minute of the clock: of four, at least two fall in the same minute.
  const native = await failing({ USER_LIMITER: { namespace_id: "1", simple: { limit: 1, period: 60 } } });
  const answers = await statuses(native, "anne", 4);
  assert.equal(answers[0], 202);
  assert.ok(answers.includes(429), String(answers));
  const none = await failing({});
  const refused = await send(none, "anne");
  assert.equal(refused.status, 503);
  const { detail } = (await refused.json()) as { detail: string };
  assert.equal(detail, "Submissions cannot be counted right now. Please try again later.");
});
