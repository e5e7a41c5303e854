import assert from "node:assert/strict";
import { generateKeyPairSync, type KeyObject, randomUUID, sign as signBytes } from "node:crypto";
import { createServer } from "node:http";
import { after, test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";
import { tokenFor } from "../harness/identity.ts";
import { whenOver } from "../harness/lifetime.ts";
import { freePort } from "../harness/ports.ts";
import { until } from "../harness/until.ts";
import { startOrigin } from "./origin.ts";
import { type Edge, startEdge } from "./workerd.ts";

// Tokens that are verified with the keys of an issuer.

const origin = await startOrigin({ after });
const user = randomUUID();

type Algorithm = "EdDSA" | "ES256" | "RS256";

/** An issuer that can rotate its keys, fail, and answer slowly. */
interface Issuer {
  url: string;
  /** The number of times that its key set was requested. */
  requests: number;
  fails: boolean;
  delayMs: number;
  addKey(kid: string, alg: Algorithm): void;
  token(kid: string, claims?: Record<string, unknown>): string;
}

async function startIssuer(): Promise<Issuer> {
  const keys = new Map<string, { alg: Algorithm; privateKey: KeyObject; jwk: object }>();
  const port = await freePort();
  const issuer: Issuer = {
    url: `http://127.0.0.1:${port}/jwks`,
    requests: 0,
    fails: false,
    delayMs: 0,
    addKey(kid, alg) {
      const { publicKey, privateKey } = keyPair(alg);
      keys.set(kid, { alg, privateKey, jwk: { ...publicKey.export({ format: "jwk" }), kid, alg, use: "sig" } });
    },
    token(kid, claims = {}) {
      const key = keys.get(kid);
      if (!key) throw new Error(kid);
      const part = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString("base64url");
      const exp = Math.floor(Date.now() / 1000) + 600;
      const payload = { sub: user, exp, iss: "https://id.test", aud: "weir", ...claims };
      const message = `${part({ alg: key.alg, kid })}.${part(payload)}`;
      const signature = signBytes(key.alg === "EdDSA" ? null : "sha256", Buffer.from(message), {
        key: key.privateKey,
        dsaEncoding: "ieee-p1363",
      });
      return `${message}.${signature.toString("base64url")}`;
    },
  };
  const server = createServer((_, response) => {
    issuer.requests++;
    const { fails } = issuer;
    setTimeout(() => {
      response.writeHead(fails ? 500 : 200);
      response.end(JSON.stringify({ keys: [...keys.values()].map((key) => key.jwk) }));
    }, issuer.delayMs);
  });
  await new Promise<void>((done) => server.listen(port, "127.0.0.1", done));
  whenOver({ after }, () => {
    server.closeAllConnections();
    server.close();
  });
  return issuer;
}

function keyPair(alg: Algorithm): { publicKey: KeyObject; privateKey: KeyObject } {
  if (alg === "EdDSA") return generateKeyPairSync("ed25519");
  if (alg === "ES256") return generateKeyPairSync("ec", { namedCurve: "P-256" });
  return generateKeyPairSync("rsa", { modulusLength: 2048 });
}

/** An edge that trusts `issuer`. */
const startTrusting = (issuer: Issuer, vars: Record<string, string> = {}): Promise<Edge> =>
  startEdge(
    { after },
    {
      originUrl: origin.url,
      secrets: origin.secrets,
      vars: { JWKS_URL: issuer.url, JWT_ISSUER: "https://id.test", JWT_AUDIENCE: "weir", ...vars },
    },
  );

/** The same, as a function that sends a token from another address each time. */
async function startVerifier(
  issuer: Issuer,
  vars: Record<string, string> = {},
): Promise<(bearer: string) => Promise<number>> {
  const edge = await startTrusting(issuer, vars);
  let host = 0;
  return async (bearer) => {
    const ask = edge.from(`203.0.113.${host++ % 250}`);
    return (await ask("/api/usage", { headers: { authorization: `Bearer ${bearer}` } })).status;
  };
}

test("an issuer's key set verifies EdDSA, ES256 and RS256", async () => {
  const issuer = await startIssuer();
  const algorithms = ["EdDSA", "ES256", "RS256"] as const;
  for (const alg of algorithms) issuer.addKey(alg, alg);
  const status = await startVerifier(issuer);
  for (const alg of algorithms) assert.equal(await status(issuer.token(alg)), 200, alg);
  assert.equal(issuer.requests, 1);
  assert.equal(await status(issuer.token("EdDSA", { iss: "https://other.test" })), 401);
  assert.equal(await status(issuer.token("EdDSA", { aud: "other" })), 401);
});

test("tokens with unknown keys do not make the edge fetch the key set more than once a minute", async () => {
  const issuer = await startIssuer();
  issuer.addKey("old", "EdDSA");
  const status = await startVerifier(issuer);
  assert.equal(await status(issuer.token("old")), 200);
  issuer.addKey("new", "EdDSA");
  for (let sent = 0; sent < 5; sent++) assert.equal(await status(issuer.token("new")), 401);
  assert.equal(issuer.requests, 1);
});

test("concurrent requests do not fetch the key set once each", async () => {
  const issuer = await startIssuer();
  issuer.addKey("a", "EdDSA");
  issuer.delayMs = 500;
  const status = await startVerifier(issuer);
  const token = issuer.token("a");
  const statuses = await Promise.all(Array.from({ length: 20 }, () => status(token)));
  assert.deepEqual(statuses, Array(20).fill(200));
  assert.equal(issuer.requests, 1);
});

test("a token with a new key is not refused because another request is fetching that key", async () => {
  const issuer = await startIssuer();
  issuer.addKey("old", "EdDSA");
  const status = await startVerifier(issuer, { JWKS_COOLDOWN_MS: "100" });
  assert.equal(await status(issuer.token("old")), 200);
  issuer.addKey("new", "EdDSA");
  issuer.delayMs = 500;
  await wait(200);
  const token = issuer.token("new");
  const statuses = await Promise.all(Array.from({ length: 10 }, () => status(token)));
  assert.deepEqual(statuses, Array(10).fill(200));
  assert.equal(issuer.requests, 2);
});

test("while the issuer fails it is asked again, and the keys that are known stay valid", async () => {
  const issuer = await startIssuer();
  issuer.addKey("old", "EdDSA");
  const status = await startVerifier(issuer, { JWKS_COOLDOWN_MS: "100" });
  assert.equal(await status(issuer.token("old")), 200);
  assert.equal(issuer.requests, 1);
  issuer.addKey("new", "EdDSA");
  issuer.fails = true;
  for (const attempt of [2, 3]) {
    await wait(200);
    assert.equal(await status(issuer.token("new")), 401);
    assert.equal(issuer.requests, attempt, "the issuer was asked");
    assert.equal(await status(issuer.token("old")), 200, "and its failure changed nothing");
  }
  issuer.fails = false;
  await wait(200);
  assert.equal(await status(issuer.token("new")), 200);
});

test("before the issuer has ever answered, a token that only its keys can verify is neither refused nor ignored", async () => {
  const issuer = await startIssuer();
  issuer.addKey("a", "EdDSA");
  issuer.fails = true;
  const edge = await startTrusting(issuer, { ANON_LIMIT: "1", REPORT_INTERVAL_MS: "300" });
  const submit = (headers: Record<string, string>): Promise<Response> =>
    edge.from("203.0.113.1")("/api/jobs/analysis", { method: "POST", body: "{}", headers });
  const bearer = (token: string): Record<string, string> => ({ authorization: `Bearer ${token}` });
  const token = issuer.token("a");
  const before = origin.received.length;
  for (const headers of [bearer(token), { cookie: `auth_token=${token}` }]) {
    const answer = await submit(headers);
    assert.equal(answer.status, 503, Object.keys(headers)[0]);
    assert.equal(answer.headers.get("content-type"), "application/problem+json");
    assert.equal(answer.headers.get("retry-after"), "5");
    assert.equal(answer.headers.get("www-authenticate"), null);
    assert.match(((await answer.json()) as { detail: string }).detail, /cannot be verified right now/);
  }
  assert.equal(origin.received.length, before);
  assert.equal((await submit(bearer("not.a.token"))).status, 401, "no key makes it one");
  assert.equal((await submit({ cookie: "auth_token=nonsense" })).status, 429, "nor this one: both are counted");

  issuer.fails = false;
  await until("the issuer to be asked again", async () => (await submit(bearer(token))).status === 200);
  assert.equal(origin.last().claims.sub, user);
  assert.equal((await submit({ cookie: `auth_token=${token}` })).status, 200);
  assert.equal(origin.last().claims.sub, user);
  await until("the requests to be reported", () => origin.reports.some(({ requests }) => requests.unverifiable));
});

test("what the shared secret verifies does not wait for the issuer", async () => {
  const issuer = await startIssuer();
  issuer.fails = true;
  const status = await startVerifier(issuer);
  const claims = { iss: "https://id.test", aud: "weir" };
  assert.equal(await status(await tokenFor(origin.secrets.jwt, user, claims)), 200);
  assert.equal(await status(await tokenFor("another secret that is long enough to be one", user, claims)), 401);
  assert.equal(issuer.requests, 0);
});
