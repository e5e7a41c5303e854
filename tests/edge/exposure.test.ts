import assert from "node:assert/strict";
import { createHmac, randomUUID } from "node:crypto";
import { createConnection } from "node:net";
import { join } from "node:path";
import { after, test } from "node:test";
import { unstable_readConfig as readConfig } from "wrangler";
import { root } from "../../scripts/lib/paths.ts";
import { startOrigin } from "./origin.ts";
import { type Edge, startEdge } from "./workerd.ts";

// The edge must not disclose secrets, forward forbidden headers or leave routes open.

const origin = await startOrigin({ after });
const start = (vars: Record<string, string> = {}): Promise<Edge> =>
  startEdge({ after }, { originUrl: origin.url, secrets: origin.secrets, vars });
const production = await start({ DEVELOPMENT: "" });
const development = await start();

test("a misconfigured edge does not disclose settings or log credentials", async () => {
  const before = origin.received.length;
  const edge = await start({
    ANON_LIMIT: "ten",
    LIMITED_ROUTES: "jobs",
    EDGE_SECRET: "",
    ORIGIN_URL: "https://admin:hunter2@origin.internal",
    JWT_SECRET: "short",
  });
  const response = await edge.from("203.0.113.1")("/api/lanes");
  assert.equal(response.status, 500);
  assert.deepEqual(await response.json(), {
    type: "about:blank",
    title: "Misconfigured",
    status: 500,
    detail: "The edge is misconfigured. Its log has the errors.",
  });
  const log = (await edge.logged("configuration has errors")).join("\n");
  for (const name of ["ANON_LIMIT", "EDGE_SECRET", "JWT_SECRET", "LIMITED_ROUTES", "ORIGIN_URL"]) {
    assert.ok(log.includes(name), `the log names ${name}`);
  }
  assert.doesNotMatch(log, /hunter2/);
  assert.equal(origin.received.length, before, "nothing is forwarded");
});

test("the answer to a bad bearer token does not echo any of its bytes", async () => {
  const part = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString("base64url");
  const signed = (header: object, claims: object): string => {
    const message = `${part(header)}.${part(claims)}`;
    return `${message}.${createHmac("sha256", origin.secrets.jwt).update(message).digest("base64url")}`;
  };
  const exp = Math.floor(Date.now() / 1000) + 60;
  const tokens = [
    signed({ alg: "injected" }, { sub: randomUUID(), exp }),
    signed({ alg: "HS256" }, { sub: randomUUID(), exp: "injected" }),
    signed({ alg: "HS256" }, { sub: "injected\n", exp }),
    "injected",
    "injected.injected.injected",
  ];
  for (const token of tokens) {
    const response = await production.from("203.0.113.2")("/api/usage", {
      headers: { authorization: `Bearer ${token}` },
    });
    assert.equal(response.status, 401);
    const challenge = response.headers.get("www-authenticate") ?? "";
    assert.match(challenge, /^Bearer realm="weir", error="invalid_token", error_description="[^"]+"$/);
    assert.doesNotMatch(challenge + (await response.text()), /injected/);
  }
});

/** Sends a request with its target and host exactly as given, and returns the status. */
function raw(edge: Edge, target: string, host?: string): Promise<number> {
  const { port } = new URL(edge.url);
  const head = [
    `POST ${target} HTTP/1.1`,
    `Host: ${host ?? `127.0.0.1:${port}`}`,
    "CF-Connecting-IP: 203.0.113.3",
    "Content-Length: 0",
    "Connection: close",
  ];
  return new Promise((resolve, reject) => {
    const socket = createConnection(Number(port), "127.0.0.1");
    let text = "";
    socket.on("data", (data) => (text += String(data)));
    socket.on("end", () => resolve(Number(text.split(" ")[1])));
    socket.on("error", reject);
    socket.write(`${head.join("\r\n")}\r\n\r\n`);
  });
}

for (const [name, paths] of Object.entries({
  "development's routes are": [
    "/api/dev/token",
    "/api/dev/",
    "/api//dev/token",
    "/api/%64ev/token",
    "/api/dev%2Ftoken",
    "/api/x/../dev/token",
    "/api/x%2f..%2fdev%2ftoken",
    "/api/x%5c..%5cdev%5ctoken",
  ],
  "the routes of operators and workers are": [
    "/admin/holders/x",
    "/worker/jobs/1/complete",
    "/api/../admin/holders/x",
    "/api/..%2fadmin/holders/x",
    "/api/%2e%2e%2fworker/jobs/1/complete",
    "/api/..%5cadmin",
    "//admin",
    "/console",
    "/console/jobs/1/cancel",
    "/api/../console",
    "/api/..%2fconsole",
  ],
})) {
  test(`${name} not reachable through the edge, in any spelling`, async () => {
    const before = origin.received.length;
    for (const path of paths) assert.equal(await raw(production, path), 404, path);
    assert.deepEqual(
      origin.received.slice(before).map((received) => received.target),
      [],
    );
  });
}

test("even in development, other websites cannot reach development routes", async () => {
  const ask = (headers: Record<string, string>): Promise<Response> =>
    development.from("203.0.113.4")("/api/dev/token", { method: "POST", body: "{}", headers });
  assert.equal((await ask({})).status, 200, "a script on this machine does");
  assert.equal((await ask({ origin: development.url })).status, 200, "the page does");
  const before = origin.received.length;
  for (const other of ["https://evil.example", "null", development.url.replace(/\d+$/, "1")]) {
    assert.equal((await ask({ origin: other })).status, 404, other);
  }
  // If an attacker's name resolved to this machine, the attacker's page would share the edge's origin.
  assert.equal(await raw(development, "/api/dev/token", "evil.example"), 404);
  assert.equal(origin.received.length, before);
});

test("responses do not let browsers guess their types", async () => {
  const misconfigured = await start({ ANON_LIMIT: "ten" });
  const drilled = await start({ DRILLS: "on" });
  const ask = production.from("203.0.113.5");
  const responses: [number, Response][] = [
    [200, await ask("/api/usage")],
    [401, await ask("/api/usage", { headers: { authorization: "Bearer x" } })],
    [404, await ask("/nothing")],
    [404, await ask("/api/edge/counts")],
    [
      204,
      await ask("/api/usage", {
        method: "OPTIONS",
        headers: { origin: "https://a.example", "access-control-request-method": "GET" },
      }),
    ],
    [500, await misconfigured.from("203.0.113.5")("/api/usage")],
    [500, await drilled.from("203.0.113.5")("/api/usage", { headers: { "weir-drill-panic": "1" } })],
  ];
  for (const [status, response] of responses) {
    assert.equal(response.status, status);
    assert.equal(response.headers.get("x-content-type-options"), "nosniff", `${response.url} ${status}`);
    assert.equal(response.headers.get("strict-transport-security"), null, "HSTS is ignored over plain HTTP");
  }
});

test("over TLS, every response prevents a downgrade to plain HTTP", async () => {
  const ask = (path: string): Promise<{ status: number; headers: { get(name: string): string | null } }> =>
    production.miniflare.dispatchFetch(`https://weir.example${path}`, {
      headers: { "CF-Connecting-IP": "203.0.113.6" },
    });
  for (const [path, status] of [
    ["/api/usage", 200],
    ["/nothing", 404],
    ["/api/edge/counts", 404],
  ] as const) {
    const response = await ask(path);
    assert.equal(response.status, status);
    assert.equal(response.headers.get("strict-transport-security"), "max-age=31536000", path);
  }
});

test("deployed environments do not enable drills or development routes", () => {
  for (const env of ["staging", "production"]) {
    const config = readConfig({ config: join(root, "wrangler.toml"), env });
    assert.equal(config.workers_dev, false, `${env} has no address at workers.dev`);
    assert.equal(config.preview_urls, false, `${env} has no preview addresses`);
    assert.notEqual(config.vars.DRILLS, "on", env);
    assert.notEqual(config.vars.DEVELOPMENT, "on", env);
  }
});
