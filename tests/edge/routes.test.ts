import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, test } from "node:test";
import { tokenFor } from "../harness/identity.ts";
import { startOrigin } from "./origin.ts";
import { type Edge, type EdgeOptions, startEdge, type Variable } from "./workerd.ts";

// The edge in front of any backend: ROUTES and UNMATCHED.

const origin = await startOrigin({ after });
const start = (vars: Record<string, Variable>, worker: EdgeOptions["worker"] = {}): Promise<Edge> =>
  startEdge({ after }, { originUrl: origin.url, secrets: origin.secrets, vars, worker, without: ["LIMITED_ROUTES"] });
const user = randomUUID();
const bearer = `Bearer ${await tokenFor(origin.secrets.jwt, user)}`;

test("a route has any prefix, and says who may call and which credentials pass", async () => {
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

test("requests that match no route get the page, 404, or the backend", async () => {
  const routes = [{ path: "/v1/*", callers: "signed_in" }];
  const page = (await start({ ROUTES: JSON.stringify(routes) })).from("203.0.113.1");
  assert.match(await (await page("/")).text(), /<!doctype html>/i);
  assert.equal((await page("/api/jobs/1")).status, 404);

  // Without files, whose paths never reach the Worker.
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

test("all errors of ROUTES are logged at once, each with the path of its member", async () => {
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
