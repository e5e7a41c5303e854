import assert from "node:assert/strict";
import { after, test } from "node:test";
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

test("pages of listed origins may use cookies, and others may not read responses", async () => {
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

test("a response to a request without Origin has no CORS fields", async () => {
  const answer = await edge.from("203.0.113.33")("/api/usage");
  assert.equal(answer.headers.get("access-control-allow-origin"), null);
  assert.equal(answer.headers.get("vary"), null);
});
