import assert from "node:assert/strict";
import { generateKeyPairSync, randomUUID, sign as signBytes, type KeyObject } from "node:crypto";
import { createServer } from "node:http";
import { after, test } from "node:test";
import { tokenFor } from "../harness/identity.ts";
import { whenOver } from "../harness/lifetime.ts";
import { freePort } from "../harness/ports.ts";
import { startOrigin } from "./origin.ts";
import { startEdge } from "./workerd.ts";

const origin = await startOrigin({ after });
const edge = await startEdge({ after }, { originUrl: origin.url, secrets: origin.secrets });
const user = randomUUID();
const token = await tokenFor(origin.secrets.jwt, user);

const submit = (address: string, headers: Record<string, string> = {}): Promise<Response> =>
  edge.from(address)("/api/jobs/analysis", { method: "POST", body: "{}", headers });

test("a user's bearer token passes the limit and reaches the origin as an assertion only", async () => {
  for (let sent = 0; sent < 15; sent++) {
    const answer = await submit("203.0.113.10", { authorization: `Bearer ${token}` });
    assert.equal(answer.status, 200);
    assert.equal(answer.headers.get("ratelimit"), null);
  }
  const { claims, headers } = origin.last();
  assert.equal(claims.sub, user);
  assert.equal(claims.client_address, "203.0.113.10");
  assert.equal(headers.authorization, undefined);
  assert.equal(
    (await submit("203.0.113.10")).headers.get("ratelimit"),
    '"anon";r=9;t=60',
    "users' requests were not counted",
  );
});

test("the cookie names a user as well, and the bearer token wins over it", async () => {
  assert.equal((await submit("203.0.113.11", { cookie: `a=b; auth_token=${token}` })).status, 200);
  assert.equal(origin.last().claims.sub, user);
  assert.equal(origin.last().headers.cookie, undefined);
  const other = randomUUID();
  await submit("203.0.113.11", {
    cookie: `auth_token=${token}`,
    authorization: `Bearer ${await tokenFor(origin.secrets.jwt, other)}`,
  });
  assert.equal(origin.last().claims.sub, other);
});

test("an anonymous request is asserted as nobody's, with its address", async () => {
  await submit("2001:db8:9:9::1");
  assert.equal(origin.last().claims.sub, undefined);
  assert.equal(origin.last().claims.client_address, "2001:db8:9:9::/64");
});

test("a bad bearer token is a problem, and still counted", async () => {
  const bad = await tokenFor("another secret that is long enough to be one", user);
  for (let sent = 0; sent < 10; sent++) {
    const answer = await submit("203.0.113.12", { authorization: `Bearer ${bad}` });
    assert.equal(answer.status, 401);
    assert.match(
      answer.headers.get("www-authenticate") ?? "",
      /^Bearer realm="weir", error="invalid_token", error_description="[^"]+"$/,
    );
    assert.equal(answer.headers.get("content-type"), "application/problem+json");
    assert.equal(((await answer.json()) as { title: string }).title, "Unauthorized");
  }
  assert.equal((await submit("203.0.113.12", { authorization: `Bearer ${bad}` })).status, 429);
  assert.equal((await submit("203.0.113.12")).status, 429);
  assert.equal(
    (await submit("203.0.113.12", { authorization: `Bearer ${token}` })).status,
    200,
    "a user is let in all the same",
  );
});

test("expired, premature, unsigned, foreign and endless bearer tokens are refused", async () => {
  const now = Math.floor(Date.now() / 1000);
  const part = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString("base64url");
  const refused = {
    expired: await tokenFor(origin.secrets.jwt, user, { exp: now - 61 }),
    premature: await tokenFor(origin.secrets.jwt, user, { nbf: now + 120 }),
    "without an end": await tokenFor(origin.secrets.jwt, user, { exp: undefined }),
    "of no user": await tokenFor(origin.secrets.jwt, "root"),
    unsigned: `${part({ alg: "none" })}.${part({ sub: user, exp: now + 60 })}.`,
    "not a token": "hello",
    "too long": `${token}${"a".repeat(9000)}`,
    "not a bearer token": "",
  };
  let host = 20;
  for (const [what, bearer] of Object.entries(refused)) {
    const authorization = what === "not a bearer token" ? "Basic dXNlcjpwYXNz" : `Bearer ${bearer}`;
    assert.equal((await submit(`203.0.113.${host++}`, { authorization })).status, 401, what);
  }
});

test("a bad or expired cookie is as good as none", async () => {
  const expired = await tokenFor(origin.secrets.jwt, user, { exp: Math.floor(Date.now() / 1000) - 61 });
  for (const cookie of [`auth_token=${expired}`, "auth_token=nonsense", `auth_token=${token}; auth_token=${token}`]) {
    const answer = await submit("203.0.113.13", { cookie });
    assert.equal(answer.status, 200);
    assert.equal(origin.last().claims.sub, undefined);
  }
  assert.equal((await submit("203.0.113.13")).headers.get("ratelimit"), '"anon";r=6;t=60');
});

test("another site's page cannot act as its visitor by the cookie", async () => {
  await submit("203.0.113.14", { cookie: `auth_token=${token}`, origin: "https://evil.example" });
  assert.equal(origin.last().claims.sub, undefined);
  await submit("203.0.113.14", { cookie: `auth_token=${token}`, origin: edge.url });
  assert.equal(origin.last().claims.sub, user);
});

test("nothing that a client sends can pass for an identity", async () => {
  const forged = {
    "weir-assertion": "forged",
    "x-user-id": user,
    x_user_id: user,
    "x-forwarded-user": user,
    "x-real-ip": "198.51.100.1",
    "x-forwarded-for": "198.51.100.1",
    "x-forwarded-proto": "gopher",
    "x-forwarded-host": "evil.example",
    forwarded: "for=198.51.100.1",
    "x-request-id": "chosen",
    "cf-access-jwt-assertion": "forged",
    "x-http-method-override": "DELETE",
    "x-original-url": "/metrics",
    signature: "forged",
    "proxy-authorization": "Basic eA==",
    te: "trailers",
    "x-anything": "else",
  };
  await submit("203.0.113.15", forged);
  const { headers, names } = origin.last();
  const lower = names.map((name) => name.toLowerCase());
  for (const name of [
    "x-user-id",
    "x_user_id",
    "x-forwarded-user",
    "forwarded",
    "cf-access-jwt-assertion",
    "x-http-method-override",
    "x-original-url",
    "signature",
    "proxy-authorization",
    "te",
    "x-anything",
    "cf-connecting-ip",
  ]) {
    assert.equal(lower.includes(name), false, name);
  }
  assert.equal(headers["x-forwarded-for"], "203.0.113.15");
  assert.equal(headers["x-real-ip"], "203.0.113.15");
  assert.equal(headers["x-forwarded-proto"], "http");
  assert.notEqual(headers["x-request-id"], "chosen");
  assert.equal(new Set(lower).size, lower.length, "no header comes twice");
});

// Keys of an issuer, which can be rotated and which counts how often it is asked.
const issuer = {
  keys: [] as { kid: string; alg: string; privateKey: KeyObject; jwk: object }[],
  asked: 0,
  fails: false,
};
function newKey(kid: string, alg: "EdDSA" | "ES256" | "RS256"): void {
  const pair =
    alg === "EdDSA"
      ? generateKeyPairSync("ed25519")
      : alg === "ES256"
        ? generateKeyPairSync("ec", { namedCurve: "P-256" })
        : generateKeyPairSync("rsa", { modulusLength: 2048 });
  issuer.keys.push({
    kid,
    alg,
    privateKey: pair.privateKey,
    jwk: { ...pair.publicKey.export({ format: "jwk" }), kid, alg, use: "sig" },
  });
}
function issued(kid: string, claims: Record<string, unknown> = {}): string {
  const key = issuer.keys.find((key) => key.kid === kid);
  if (!key) throw new Error(kid);
  const part = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString("base64url");
  const message = `${part({ alg: key.alg, kid })}.${part({ sub: user, exp: Math.floor(Date.now() / 1000) + 600, iss: "https://id.test", aud: "weir", ...claims })}`;
  const signature = signBytes(key.alg === "EdDSA" ? null : "sha256", Buffer.from(message), {
    key: key.privateKey,
    dsaEncoding: "ieee-p1363",
  });
  return `${message}.${signature.toString("base64url")}`;
}

test("an issuer's key set verifies EdDSA, ES256 and RS256; new keys are asked for, but not again and again", async () => {
  newKey("a", "EdDSA");
  newKey("b", "ES256");
  newKey("c", "RS256");
  const port = await freePort();
  const server = createServer((_, response) => {
    issuer.asked++;
    response.writeHead(issuer.fails ? 500 : 200);
    response.end(JSON.stringify({ keys: issuer.keys.map((key) => key.jwk) }));
  });
  await new Promise<void>((done) => server.listen(port, "127.0.0.1", done));
  whenOver({ after }, () => void server.close());
  const vars = { JWKS_URL: `http://127.0.0.1:${port}/jwks`, JWT_ISSUER: "https://id.test", JWT_AUDIENCE: "weir" };
  const edge = await startEdge({ after }, { originUrl: origin.url, secrets: origin.secrets, vars });
  const status = async (bearer: string): Promise<number> =>
    (
      await edge.from(`203.0.113.${30 + Math.floor(Math.random() * 200)}`)("/api/usage", {
        headers: { authorization: `Bearer ${bearer}` },
      })
    ).status;

  for (const kid of ["a", "b", "c"]) assert.equal(await status(issued(kid)), 200, kid);
  assert.equal(issuer.asked, 1);
  assert.equal(await status(issued("a", { iss: "https://other.test" })), 401);
  assert.equal(await status(issued("a", { aud: "other" })), 401);
  // A key that came after the set was fetched: it is not asked for so soon again, whatever tokens say.
  newKey("d", "EdDSA");
  for (let sent = 0; sent < 5; sent++) assert.equal(await status(issued("d")), 401);
  assert.equal(issuer.asked, 1);
  // The issuer fails: what is known stays.
  issuer.fails = true;
  assert.equal(await status(issued("a")), 200);
});
