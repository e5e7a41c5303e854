import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";
import { tokenFor } from "../harness/identity.ts";
import { startOrigin } from "./origin.ts";
import { type Edge, type EdgeOptions, startEdge, type Variable } from "./workerd.ts";

// The edge in front of any backend: ROUTES and UNMATCHED.

const origin = await startOrigin({ after });
const start = (vars: Record<string, Variable>, worker: EdgeOptions["worker"] = {}): Promise<Edge> =>
  startEdge({ after }, { originUrl: origin.url, secrets: origin.secrets, vars, worker, without: ["LIMITED_ROUTES"] });
const user = randomUUID();
const bearer = `Bearer ${await tokenFor(origin.secrets.jwt, user)}`;

test("a route sets its prefix, allowed callers and forwarded credentials", async () => {
  const edge = await start({
    ROUTES: [
      { methods: ["GET"], path: "/v1/status", skip: true },
      { path: "/v1/account/*", callers: "signed_in" },
      { path: "/legacy/*", pass: ["authorization", "cookie"] },
      { path: "/v1/*" },
    ],
    ANON_READ_LIMIT: 2,
  });
  const ask = edge.from("203.0.113.1");
  for (let sent = 0; sent < 4; sent++) assert.equal((await ask("/v1/status")).status, 200);
  assert.equal((await ask("/v1/things?x=1")).status, 200);
  assert.equal(origin.last().target, "/v1/things?x=1");
  assert.equal((await ask("/v1/things")).status, 200);
  assert.equal((await ask("/v1/things")).status, 429, "anonymous requests have ANON_READ_LIMIT");

  const refused = await edge.from("203.0.113.2")("/v1/account/me");
  assert.equal(refused.status, 401);
  assert.equal(refused.headers.get("www-authenticate"), 'Bearer realm="weir"');
  const mine = await ask("/v1/account/me", { headers: { authorization: bearer, cookie: "a=b" } });
  assert.equal(mine.status, 200);
  assert.equal(origin.last().claims.sub, user);
  assert.equal(origin.last().headers.authorization, undefined);
  assert.equal(origin.last().headers.cookie, undefined);

  const legacy = edge.from("203.0.113.3");
  for (const [authorization, subject] of [
    [bearer, user],
    ["Basic dXNlcjpwYXNz", undefined],
    ["Bearer opaque", undefined],
  ] as const) {
    assert.equal((await legacy("/legacy/x", { headers: { authorization, cookie: "a=b; c=d" } })).status, 200);
    assert.equal(origin.last().headers.authorization, authorization);
    assert.equal(origin.last().headers.cookie, "a=b; c=d");
    assert.equal(origin.last().claims.sub, subject);
  }
  const key = await edge.from("203.0.113.4")("/legacy/x", { headers: { authorization: "Bearer weir_sk_AAAA" } });
  assert.equal(key.status, 401, "a service key never passes");
});

test("a preflight asks about the route of the request that follows", async () => {
  const edge = await start({
    ROUTES: [{ methods: ["POST"], path: "/v1/orders" }],
    UNMATCHED: "not_found",
    CORS_ORIGINS: "https://app.example.com",
  });
  const ask = edge.from("203.0.113.11");
  const preflight = async (method: string): Promise<number> => {
    const headers = { origin: "https://app.example.com", "access-control-request-method": method };
    return (await ask("/v1/orders", { method: "OPTIONS", headers })).status;
  };
  assert.equal(await preflight("POST"), 204);
  assert.equal(await preflight("PUT"), 404);
});

test("path parameters do not bypass a route", async () => {
  const edge = await start({
    ROUTES: [
      { path: "/public/*", skip: true },
      { path: "/v1/quotes", limits: [{ by: "address", limit: 1, window: "1m" }] },
      { path: "/v1/*", skip: true },
      { path: "/*", callers: "signed_in" },
    ],
  });
  const ask = edge.from("203.0.113.12");
  for (const path of ["/public/..;/admin/x", "/public/..%3b/admin/x", "/public/%2e%2e;a=1/admin/x"])
    assert.equal((await ask(path)).status, 401, path);
  assert.equal((await ask("/v1/quotes")).status, 200);
  assert.equal((await ask("/v1/quotes;a=1")).status, 429);
  assert.equal((await ask("/v1/other;a=1")).status, 200);
  assert.equal(origin.last().target, "/v1/other;a=1");
});

test("a limit by any address also counts users", async () => {
  const limits = [{ by: "any_address", limit: 2, window: "1m" }];
  const edge = await start({ ROUTES: [{ path: "/login", limits }] });
  const ask = edge.from("203.0.113.13");
  const statuses: number[] = [];
  for (const headers of [{ authorization: bearer }, {}, { authorization: bearer }, {}])
    statuses.push((await ask("/login", { headers })).status);
  assert.deepEqual(statuses, [200, 200, 429, 429]);
  assert.equal((await edge.from("203.0.113.14")("/login", { headers: { authorization: bearer } })).status, 200);
});

test("an expired token gets a 401 on a route that passes Authorization", async () => {
  const edge = await start({
    ROUTES: [
      {
        path: "/v1/*",
        pass: ["authorization"],
        limits: [{ by: "address", limit: 1, window: "1m" }],
      },
    ],
  });
  const ask = edge.from("203.0.113.15");
  assert.equal((await ask("/v1/x")).status, 200);
  assert.equal((await ask("/v1/x")).status, 429);
  const expired = await tokenFor(origin.secrets.jwt, user, { exp: 1 });
  assert.equal((await ask("/v1/x", { headers: { authorization: `Bearer ${expired}` } })).status, 401);
});

test("a route may set the longest body", async () => {
  const edge = await start({ ROUTES: [{ path: "/small/*", max_body_bytes: 10 }, { path: "/*" }] });
  const post = async (path: string): Promise<number> =>
    (await edge.from("203.0.113.16")(path, { method: "POST", body: "12345678901" })).status;
  assert.equal(await post("/small/x"), 413);
  assert.equal(await post("/x"), 200);
});

test("requests that match no route get the page, 404, or the backend", async () => {
  const routes = [{ path: "/v1/*", callers: "signed_in" }];
  const page = (await start({ ROUTES: JSON.stringify(routes) })).from("203.0.113.1");
  assert.match(await (await page("/")).text(), /<!doctype html>/i);
  assert.equal((await page("/api/jobs/1")).status, 404);

  // Without static files, because their paths never reach the Worker.
  const bare = { assets: undefined };
  const none = (await start({ ROUTES: routes, UNMATCHED: "not_found" }, bare)).from("203.0.113.1");
  assert.equal((await none("/")).status, 404);

  const all = (await start({ ROUTES: routes, UNMATCHED: "forward", ANON_READ_LIMIT: 1 }, bare)).from("203.0.113.1");
  for (let sent = 0; sent < 3; sent++) assert.equal((await all("/shop/cart")).status, 200, "without a limit");
  assert.equal(origin.last().target, "/shop/cart");
  const before = origin.received.length;
  for (const path of ["/V1/x", "//v1/x", "/%76%31/x", "/api/edge/counts"])
    assert.equal((await all(path)).status, 404, path);
  assert.equal(origin.received.length, before, "no other spelling of a route gets around it");
});

/** The number of responses with this status. */
const count = (answers: Response[], status: number): number =>
  answers.filter((answer) => answer.status === status).length;

const several = (times: number, send: () => Promise<Response>): Promise<Response[]> =>
  Promise.all(Array.from({ length: times }, send));

test("several limits hold at once, and denied requests do not count", { timeout: 120_000 }, async () => {
  const edge = await start({
    ROUTES: [
      {
        methods: ["POST"],
        path: "/v1/orders/*",
        limits: [
          { by: "address", limit: 4, window: "4s" },
          { by: "address", limit: 6, window: "1d" },
        ],
      },
      { path: "/v1/*", limits: [{ by: "address", limit: 2, window: "1d" }] },
    ],
  });
  const ask = edge.from("203.0.113.40");
  const order = (): Promise<Response> => ask("/v1/orders/1", { method: "POST", body: "{}" });
  const first = await several(30, order);
  assert.deepEqual([count(first, 200), count(first, 429)], [4, 26]);
  const denied = first.find((answer) => answer.status === 429);
  assert.equal(denied?.headers.get("ratelimit-policy"), '"address";q=4;w=4');
  await wait(4_500);
  const second = await several(30, order);
  assert.deepEqual([count(second, 200), count(second, 429)], [2, 28], "26 denials did not count for the day");
  const last = await order();
  assert.equal(last.headers.get("ratelimit-policy"), '"address";q=6;w=86400');
  const others = await several(10, () => ask("/v1/orders/1"));
  assert.deepEqual([count(others, 200), count(others, 429)], [2, 8], "another route counts apart");
});

test("ALLOW, DENY and IPV6_PREFIX choose addresses", async () => {
  const edge = await start({
    ROUTES: [{ path: "/v1/*", limits: [{ by: "address", limit: 2, window: "1m" }] }],
    ALLOW: ["203.0.113.0/24", "2001:db8:9::/48"],
    DENY: "203.0.113.7, 198.51.100.0/24",
    IPV6_PREFIX: 56,
  });
  const statuses = async (address: string): Promise<number[]> => {
    const answers = [];
    for (let sent = 0; sent < 3; sent++) answers.push((await edge.from(address)("/v1/x")).status);
    return answers;
  };
  assert.deepEqual(await statuses("203.0.113.1"), [200, 200, 200]);
  assert.deepEqual(await statuses("2001:db8:9:1::1"), [200, 200, 200]);
  const before = origin.received.length;
  assert.deepEqual(await statuses("203.0.113.7"), [403, 403, 403]);
  const refused = await edge.from("198.51.100.1")("/v1/x", { headers: { authorization: bearer } });
  assert.equal(refused.status, 403);
  assert.equal(origin.received.length, before);
  assert.deepEqual(await statuses("2001:db8:1:1::1"), [200, 200, 429]);
  assert.deepEqual(await statuses("2001:db8:1:ff::1"), [429, 429, 429], "the same /56");
  assert.deepEqual(await statuses("2001:db8:1:100::1"), [200, 200, 429], "another /56");
  assert.equal(origin.last().claims.client_address, "2001:db8:1:100::/64");
});

test("users have limits by holder and by claim", async () => {
  const edge = await start({
    ROUTES: [
      {
        path: "/v1/*",
        limits: [
          { by: "user", limit: 5, window: "1m" },
          { by: { claim: "org.id" }, limit: 7, window: "1d" },
          { by: "address", limit: 1, window: "1m" },
        ],
      },
    ],
  });
  const ask = edge.from("203.0.113.41");
  const as = async (subject: string, org?: string): Promise<number> => {
    const token = await tokenFor(origin.secrets.jwt, subject, org ? { org: { id: org } } : {});
    const headers = { authorization: `Bearer ${token}` };
    return count(await several(10, () => ask("/v1/things", { headers })), 200);
  };
  assert.equal(await as(randomUUID(), "acme"), 5, "by user");
  assert.equal(await as(randomUUID(), "acme"), 2, "by organisation");
  assert.equal(await as(randomUUID(), "other"), 5);
  assert.equal(await as(randomUUID()), 5, "without the claim");
  assert.equal(count(await several(5, () => ask("/v1/things")), 200), 1, "anonymous");
});

test("users of a plan and requests with a header have other limits", async () => {
  const edge = await start({
    ROUTES: [
      {
        path: "/v1/*",
        limits: [
          { by: "user", limit: 2, window: "1d", of: { claim: "plan", pro: 4 } },
          { by: { header: "X-API-Key" }, limit: 3, window: "1d" },
        ],
      },
    ],
  });
  const ask = edge.from("203.0.113.43");
  const passed = async (headers: Record<string, string>): Promise<number> =>
    count(await several(10, () => ask("/v1/things", { headers })), 200);
  const as = async (claims: Record<string, unknown>): Promise<number> =>
    passed({ authorization: `Bearer ${await tokenFor(origin.secrets.jwt, randomUUID(), claims)}` });
  assert.equal(await as({ plan: "pro" }), 4);
  assert.equal(await as({ plan: "free" }), 2);
  assert.equal(await as({}), 2, "without a plan");
  assert.equal(await passed({ "x-api-key": "one" }), 3, "anonymous");
  assert.equal(await passed({ "x-api-key": "two" }), 3);
  assert.equal(origin.last().headers["x-api-key"], "two");
  const token = await tokenFor(origin.secrets.jwt, randomUUID(), { plan: "pro" });
  assert.equal(await passed({ authorization: `Bearer ${token}`, "x-api-key": "three" }), 3, "by the header");
  assert.equal(await passed({}), 10, "without the header");
});

test("all errors of ROUTES are logged at once, each with its path", async () => {
  const edge = await start({
    ROUTES: [{ path: "v1" }, { path: "/v1/*", callers: "users", limit: 5 }],
    UNMATCHED: "page",
  });
  assert.equal((await edge.from("203.0.113.1")("/v1/x")).status, 500);
  const [line] = await edge.logged("internal_error");
  for (const error of [
    "ROUTES[0].path: expected",
    "ROUTES[1].callers: expected",
    "ROUTES[1].limit: this",
    "UNMATCHED is",
  ])
    assert.ok(line?.includes(error), `${error} in ${line}`);
  const both = await startEdge({ after }, { originUrl: origin.url, vars: { ROUTES: [{ path: "/v1/*" }] } });
  assert.equal((await both.from("203.0.113.1")("/v1/x")).status, 500);
  assert.match((await both.logged("internal_error"))[0] ?? "", /LIMITED_ROUTES and ROUTES are both set/);
});
