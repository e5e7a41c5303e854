import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, test } from "node:test";
import { tokenFor } from "../harness/identity.ts";
import { until } from "../harness/until.ts";
import { startOrigin } from "./origin.ts";
import { type Edge, edgeName, startEdge, type Variable } from "./workerd.ts";

// Settings from `[vars]` and the Secrets Store. An unusable setting must not be ignored.

const origin = await startOrigin({ after });
const user = randomUUID();

const start = (vars: Record<string, Variable>): Promise<Edge> =>
  startEdge({ after }, { originUrl: origin.url, secrets: origin.secrets, vars });

const submit = (edge: Edge, headers: Record<string, string> = {}): Promise<Response> =>
  edge.from("203.0.113.1")("/api/jobs/analysis", { method: "POST", body: "{}", headers });

async function statuses(edge: Edge, count: number, headers: Record<string, string> = {}): Promise<number[]> {
  const statuses = [];
  for (let sent = 0; sent < count; sent++) statuses.push((await submit(edge, headers)).status);
  return statuses;
}

const bearer = async (
  claims: Record<string, unknown> = {},
  secret = origin.secrets.jwt,
): Promise<{ authorization: string }> => ({
  authorization: `Bearer ${await tokenFor(secret, user, claims)}`,
});

test("limits may be numbers", async () => {
  const edge = await start({ ANON_LIMIT: 2, USER_LIMIT: 3, ANON_READ_LIMIT: 20 });
  assert.deepEqual(await statuses(edge, 3), [200, 200, 429]);
  assert.deepEqual(await statuses(edge, 4, await bearer()), [200, 200, 200, 429]);
  const read = await edge.from("203.0.113.1")("/api/lanes");
  assert.equal(read.headers.get("ratelimit-policy"), '"anon-read";q=20;w=60');
});

test("audiences, origins and routes may be lists", async () => {
  const edge = await start({
    JWT_AUDIENCE: ["https://api.example.com", "weir"],
    CORS_ORIGINS: ["https://a.example", "https://b.example"],
    LIMITED_ROUTES: ["* /api/usage", "* /api/lanes"],
  });
  for (const [aud, status] of [
    ["https://api.example.com", 200],
    [["other", "weir"], 200],
    ["https://other.example.com", 401],
    [undefined, 401],
  ] as const)
    assert.equal((await submit(edge, await bearer({ aud }))).status, status, String(aud));
  for (const [page, allowed] of [
    ["https://b.example", "https://b.example"],
    ["https://c.example", null],
  ]) {
    const answer = await edge.from("203.0.113.2")("/api/lanes", { headers: { origin: String(page) } });
    assert.equal(answer.headers.get("access-control-allow-origin"), allowed);
    assert.equal(answer.headers.get("ratelimit-policy"), '"anon";q=10;w=60');
  }
});

test("a value of another type is an error that names the setting", async () => {
  for (const [name, value] of Object.entries({
    ANON_LIMIT: [5],
    USER_LIMIT: true,
    JWT_AUDIENCE: { api: "weir" },
    JWT_ISSUER: ["https://id.test"],
    JWT_SECRET: 12345,
  })) {
    const edge = await start({ [name]: value });
    const answer = await submit(edge, await bearer());
    assert.equal(answer.status, 500, name);
    assert.equal(((await answer.json()) as { title: string }).title, "Misconfigured");
    const [line] = await edge.logged("internal_error");
    assert.match(line ?? "", new RegExp(`has errors: ${name} is`));
    assert.doesNotMatch(line ?? "", /12345/);
  }
});

test("a READ_LIMITER denial does not claim ANON_READ_LIMIT's policy", async () => {
  const edge = await startEdge(
    { after },
    {
      originUrl: origin.url,
      secrets: origin.secrets,
      vars: { ANON_READ_LIMIT: 500 },
      worker: { ratelimits: { READ_LIMITER: { namespace_id: "1", simple: { limit: 2, period: 60 } } } },
    },
  );
  // The limiter counts per clock minute, so the denial may take a few more requests.
  const denied = await until("a denial", async () => {
    const answer = await edge.from("203.0.113.3")("/api/lanes");
    return answer.status === 429 && answer;
  });
  assert.equal(denied.headers.get("ratelimit-policy"), null);
  assert.equal(denied.headers.get("ratelimit"), null);
  assert.equal(denied.headers.get("retry-after"), "60");
});

test("a misspelt setting is an error, other code's variable is not", async () => {
  for (const name of ["ANON_LIMTI", "anon_limit"]) {
    const edge = await start({ [name]: 5 });
    assert.equal((await submit(edge)).status, 500);
    const message = (await edge.logged("internal_error"))[0] ?? "";
    assert.ok(message.includes(`${name} is not a setting; did you mean ANON_LIMIT?`), message);
  }
  const other = await start({ DATABASE_URL: "postgres://x", LIMITS: [5], CORS_ORIGIN: "x", CORS_ORIGINS: "*" });
  assert.equal((await submit(other)).status, 200);
});

test("secrets come from the Secrets Store; a missing one is an error", async () => {
  const store = { store_id: "store" };
  const edge = await startEdge(
    { after },
    {
      originUrl: origin.url,
      secrets: origin.secrets,
      worker: {
        secretsStoreSecrets: {
          JWT_SECRET: { ...store, secret_name: "jwt" },
          EDGE_SECRET: { ...store, secret_name: "edge" },
        },
      },
      without: ["JWT_SECRET", "EDGE_SECRET"],
    },
  );
  const before = await submit(edge, await bearer());
  assert.equal(before.status, 500);
  assert.match((await edge.logged("internal_error"))[0] ?? "", /JWT_SECRET: the Secrets Store did not return a secret/);

  for (const [binding, value] of Object.entries({ JWT_SECRET: origin.secrets.jwt, EDGE_SECRET: origin.secrets.edge })) {
    const admin = await edge.miniflare.getSecretsStoreSecretAPI(binding, edgeName);
    await admin().create(value);
  }
  assert.equal((await submit(edge, await bearer())).status, 200, "the store is asked again");
  assert.equal(origin.last().claims.sub, user);
  assert.equal((await submit(edge, await bearer({}, "another secret that is long enough to be one"))).status, 401);
});
