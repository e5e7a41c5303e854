import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, test } from "node:test";
import { tokenFor } from "../harness/identity.ts";
import { startOrigin } from "./origin.ts";
import { costs, startEdge } from "./workerd.ts";

const origin = await startOrigin({ after });
const edge = await startEdge({ after }, { originUrl: origin.url, secrets: origin.secrets });
const preflight = {
  method: "OPTIONS",
  headers: {
    origin: "https://app.example",
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
  },
};

test("a preflight is answered by the edge and never counted", async () => {
  const submit = edge.from("203.0.113.30");
  for (let sent = 0; sent < 30; sent++) {
    const answer = await submit("/api/jobs/analysis", preflight);
    assert.equal(answer.status, 204);
    assert.equal(answer.headers.get("access-control-allow-origin"), "https://app.example");
    assert.match(answer.headers.get("access-control-allow-methods") ?? "", /POST/);
    assert.match(answer.headers.get("access-control-allow-headers") ?? "", /Authorization/);
    assert.match(answer.headers.get("vary") ?? "", /Origin/);
  }
  assert.equal(origin.received.length, 0);
  assert.equal((await costs(edge)).calls, 0);
  assert.equal(
    (await submit("/api/jobs/analysis", { method: "POST", body: "{}" })).headers.get("ratelimit"),
    '"anon";r=9;t=60',
  );
});

test("pages of any origin may read all responses, but without cookies", async () => {
  for (const [path, init, status] of [
    ["/api/usage", {}, 200],
    ["/api/jobs/analysis", { method: "POST", body: "{}" }, 200],
    ["/api/usage", { headers: { authorization: "Bearer nonsense" } }, 401],
  ] as const) {
    const answer = await edge.from("203.0.113.31")(path, {
      ...init,
      headers: { ...("headers" in init ? init.headers : {}), origin: "https://app.example" },
    });
    assert.equal(answer.status, status);
    assert.equal(answer.headers.get("access-control-allow-origin"), "https://app.example");
    assert.equal(answer.headers.get("access-control-allow-credentials"), null);
    assert.match(answer.headers.get("vary") ?? "", /Origin/);
    assert.match(answer.headers.get("access-control-expose-headers") ?? "", /Retry-After/);
  }
});

test("only pages of listed origins use cookies and read responses", async () => {
  const listed = await startEdge(
    { after },
    { originUrl: origin.url, secrets: origin.secrets, vars: { CORS_ORIGINS: "https://app.example" } },
  );
  const from = (page: string): Promise<Response> =>
    listed.from("203.0.113.32")("/api/usage", { headers: { origin: page } });
  assert.equal((await from("https://app.example")).headers.get("access-control-allow-credentials"), "true");
  const other = await from("https://evil.example");
  assert.equal(other.headers.get("access-control-allow-origin"), null);
  assert.equal(other.headers.get("vary"), "Origin");
});

test("a response to a request without Origin has no CORS fields but varies", async () => {
  const answer = await edge.from("203.0.113.33")("/api/usage");
  assert.equal(answer.headers.get("access-control-allow-origin"), null);
  assert.equal(answer.headers.get("vary"), "Origin", "a cache must not answer a page with it");
});

test("responses of the edge itself have an id and are readable by pages", async () => {
  const headers = { origin: "https://app.example" };
  const drilled = await startEdge(
    { after },
    { originUrl: "http://127.0.0.1:1", vars: { DRILLS: "on" }, secrets: origin.secrets },
  );
  for (const [path, init, status] of [
    ["/api/edge/counts", {}, 404],
    ["/api/jobs/analysis", preflight, 204],
    ["/api/usage", {}, 502],
    ["/api/usage", { headers: { "weir-drill-panic": "1" } }, 500],
  ] as const) {
    const answer = await drilled.from("203.0.113.34")(path, {
      ...init,
      headers: { ...("headers" in init ? init.headers : {}), ...headers },
    });
    assert.equal(answer.status, status);
    assert.match(answer.headers.get("x-request-id") ?? "", /^[0-9a-f-]{36}$/, path);
    assert.match(answer.headers.get("vary") ?? "", /Origin/, path);
    // After a panic, the configuration is lost with Rust's memory.
    const expected = status === 500 ? null : "https://app.example";
    assert.equal(answer.headers.get("access-control-allow-origin"), expected, `${path} ${status}`);
  }
  const wrong = await startEdge({ after }, { originUrl: "nowhere" });
  const answer = await wrong.from("203.0.113.34")("/api/usage", { headers });
  assert.equal(answer.status, 500);
  assert.match(answer.headers.get("x-request-id") ?? "", /^[0-9a-f-]{36}$/);
  assert.match((await wrong.logged("internal_error"))[0] ?? "", new RegExp(answer.headers.get("x-request-id") ?? "-"));
});

test("a preflight allows the headers that an allowed page asks for", async () => {
  const listed = await startEdge(
    { after },
    { originUrl: origin.url, secrets: origin.secrets, vars: { CORS_ORIGINS: ["https://app.example"] } },
  );
  const allowed = async (requested: string, page = "https://app.example", to = listed): Promise<string> => {
    const answer = await to.from("203.0.113.35")("/api/jobs/analysis", {
      method: "OPTIONS",
      headers: { origin: page, "access-control-request-method": "POST", "access-control-request-headers": requested },
    });
    return (answer.headers.get("access-control-allow-headers") ?? "").toLowerCase();
  };
  const asked = "authorization,baggage,sentry-trace,x-requested-with";
  for (const list of [await allowed(asked), await allowed(asked, "https://any.example", edge)])
    for (const name of asked.split(",")) assert.ok(list.split(", ").includes(name), `${name} in ${list}`);
  const other = await allowed(asked, "https://evil.example");
  assert.ok(other.includes("authorization") && !other.includes("baggage"), other);
  // Invalid names, and names above the limit, are not echoed.
  const odd = await allowed('baggage,a b,x:y,"q",,é,x-ok');
  assert.ok(odd.includes("baggage") && odd.includes("x-ok"));
  for (const name of ["a b", "x:y", '"q"', "é"]) assert.ok(!odd.includes(name), name);
  const many = await allowed(Array.from({ length: 500 }, (_, n) => `x-${n}`).join(","));
  assert.ok(many.split(",").length <= 80, String(many.split(",").length));
  const long = await allowed(`x-${"a".repeat(200)},baggage`);
  assert.ok(long.includes("baggage") && !long.includes("x-aa"));
});

test("a wildcard is one label, and settings choose methods and headers", async () => {
  const listed = await startEdge(
    { after },
    {
      originUrl: origin.url,
      secrets: origin.secrets,
      vars: {
        CORS_ORIGINS: ["https://app.example", "https://*.pages.dev"],
        CORS_METHODS: "GET, QUERY",
        CORS_REQUEST_HEADERS: ["X-Api-Key"],
        CORS_RESPONSE_HEADERS: "X-Total-Count",
      },
    },
  );
  const ask = listed.from("203.0.113.36");
  const fields = (answer: Response): (string | null)[] => [
    answer.headers.get("access-control-allow-origin"),
    answer.headers.get("access-control-allow-credentials"),
  ];
  for (const [page, expected] of [
    ["https://app.example", ["https://app.example", "true"]],
    ["https://preview-1.pages.dev", ["https://preview-1.pages.dev", null]],
    ["https://a.b.pages.dev", [null, null]],
    ["https://pages.dev", [null, null]],
    ["http://preview-1.pages.dev", [null, null]],
    ["https://preview-1.pages.dev.evil.example", [null, null]],
  ] as const)
    assert.deepEqual(fields(await ask("/api/usage", { headers: { origin: page } })), expected, page);

  const allowed = await ask("/api/usage", {
    method: "OPTIONS",
    headers: {
      origin: "https://preview-1.pages.dev",
      "access-control-request-method": "QUERY",
      "access-control-request-headers": "x-api-key, x-other",
    },
  });
  assert.equal(allowed.headers.get("access-control-allow-methods"), "GET, QUERY");
  assert.match(
    allowed.headers.get("access-control-allow-headers") ?? "",
    /^Authorization, .*, X-Api-Key, x-api-key, x-other$/,
  );
  const answer = await ask("/api/usage", { headers: { origin: "https://preview-1.pages.dev" } });
  assert.match(answer.headers.get("access-control-expose-headers") ?? "", /^RateLimit, .*, X-Total-Count$/);
});

test("a page of a wildcard's origin cannot use the user's cookie", async () => {
  const listed = await startEdge(
    { after },
    {
      originUrl: origin.url,
      secrets: origin.secrets,
      vars: { CORS_ORIGINS: "https://app.example, https://*.pages.dev", TOKEN_COOKIE: "__Host-token" },
    },
  );
  const user = randomUUID();
  const token = await tokenFor(origin.secrets.jwt, user);
  const subject = async (page: string, cookie: string): Promise<unknown> => {
    await listed.from("203.0.113.37")("/api/usage", { headers: { origin: page, cookie } });
    return origin.last().claims.sub;
  };
  assert.equal(await subject("https://app.example", `theme=dark; __Host-token=${token}`), user);
  assert.equal(await subject("https://app.example", `auth_token=${token}`), undefined, "the default name");
  assert.equal(await subject("https://other.pages.dev", `__Host-token=${token}`), undefined);
});
