import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";
import { tokenFor } from "../harness/identity.ts";
import { until } from "../harness/until.ts";
import { type Algorithm, algorithms, type Issuer, startIssuer } from "./issuer.ts";
import { startOrigin } from "./origin.ts";
import { type Edge, startEdge, type Variable } from "./workerd.ts";

// Tokens that are verified with the keys of an issuer.

const origin = await startOrigin({ after });
const user = randomUUID();

/** An issuer of tokens for `user`, as the edges of this file expect them. */
const newIssuer = (): Promise<Issuer> => startIssuer({ after }, { sub: user, iss: "https://id.test", aud: "weir" });

/** An edge that trusts `issuer`. */
const startTrusting = (issuer: Issuer, vars: Record<string, Variable> = {}): Promise<Edge> =>
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
  vars: Record<string, Variable> = {},
): Promise<(bearer: string) => Promise<number>> {
  const edge = await startTrusting(issuer, vars);
  let host = 0;
  return async (bearer) => {
    const ask = edge.from(`203.0.113.${host++ % 250}`);
    return (await ask("/api/usage", { headers: { authorization: `Bearer ${bearer}` } })).status;
  };
}

test("an issuer's key set verifies every algorithm but ES512", async () => {
  const issuer = await newIssuer();
  const names = Object.keys(algorithms) as Algorithm[];
  for (const alg of names) issuer.addKey(alg, alg);
  const status = await startVerifier(issuer);
  for (const alg of names) assert.equal(await status(issuer.token(alg)), alg === "ES512" ? 401 : 200, alg);
  assert.equal(issuer.requests, 1);
  assert.equal(await status(issuer.token("EdDSA", { iss: "https://other.test" })), 401);
  assert.equal(await status(issuer.token("EdDSA", { aud: "other" })), 401);
});

test("signatures of a blocked address are not checked", async () => {
  const issuer = await newIssuer();
  issuer.addKey("a", "RS256");
  const edge = await startTrusting(issuer, { ANON_READ_LIMIT: 3 });
  const send = (address: string, bearer: string): Promise<Response> =>
    edge.from(address)("/api/usage", { headers: { authorization: `Bearer ${bearer}` } });
  const [header, , signature] = issuer.token("a").split(".");
  // Older than the key set, so it is not a token of newer keys.
  const claims = issuer.token("a", { sub: "root", iat: 1_000_000_000 }).split(".")[1];
  const bad = [header, claims, signature].join(".");
  for (let sent = 0; sent < 3; sent++) assert.equal((await send("203.0.113.1", bad)).status, 401);
  const fresh = issuer.token("a", { sub: "another user" });
  const denied = await send("203.0.113.1", fresh);
  assert.equal(denied.status, 429, "its signature would be valid");
  assert.match(denied.headers.get("ratelimit") ?? "", /^"bad-token";r=0;t=\d+$/);
  assert.equal((await send("203.0.113.2", fresh)).status, 200);
  assert.equal((await send("203.0.113.1", fresh)).status, 200, "it was verified a moment ago");
  const cheap = await tokenFor(origin.secrets.jwt, "anne", { iss: "https://id.test", aud: "weir" });
  assert.equal((await send("203.0.113.1", cheap)).status, 200, "a token of the shared secret is verified");
});

test("a verified token is refused after its key is revoked", async () => {
  const issuer = await newIssuer();
  issuer.addKey("old", "ES256");
  issuer.addKey("new", "ES256");
  const status = await startVerifier(issuer, { JWKS_MAX_AGE_MS: 1000, JWKS_COOLDOWN_MS: 100 });
  // Older than the key set, so it is not a token of newer keys.
  const [old, other] = [issuer.token("old", { iat: 1_000_000_000 }), issuer.token("new")];
  assert.deepEqual([await status(old), await status(old), await status(other)], [200, 200, 200]);
  const changed = old.replace(/\.([^.]+)$/, (_, signature: string) => `.${signature.replace(/^../, "AA")}`);
  assert.equal(await status(changed), 401, "only the exact token is known");
  issuer.removeKey("old");
  await until("the key set to be fetched again", async () => (await status(old)) === 401);
  assert.equal(await status(other), 200);
});

test("a key set without a usable key is reported with what it has", async () => {
  const issuer = await newIssuer();
  issuer.addKey("a", "ES512");
  issuer.addKey("b", "EdDSA");
  const bearer = issuer.token("b");
  issuer.removeKey("b");
  const edge = await startTrusting(issuer);
  const answer = await edge.from("203.0.113.1")("/api/usage", { headers: { authorization: `Bearer ${bearer}` } });
  assert.equal(answer.status, 503);
  assert.match((await edge.logged("key_set_unavailable"))[0] ?? "", /it has EC P-521 sig ES512/);
});

for (const [how, kid] of Object.entries({ "under the same kid": "a", "without a kid": "" })) {
  test(`a key that is replaced ${how} is fetched once per cooldown`, async () => {
    const issuer = await newIssuer();
    issuer.addKey(kid, "ES256");
    const status = await startVerifier(issuer, { JWKS_COOLDOWN_MS: "200" });
    const old = issuer.token(kid);
    assert.equal(await status(old), 200);
    issuer.addKey(kid, "ES256");
    await wait(300);
    assert.equal(await status(issuer.token(kid)), 200);
    assert.equal(issuer.requests, 2);
    await until("the token of the old key to be refused", async () => (await status(old)) === 401);
  });
}

test("a token with an unknown key gets 503 within the cooldown", async () => {
  const issuer = await newIssuer();
  issuer.addKey("old", "EdDSA");
  const edge = await startTrusting(issuer, { REPORT_INTERVAL_MS: "300" });
  const send = (bearer: string): Promise<Response> =>
    edge.from("203.0.113.1")("/api/usage", { headers: { authorization: `Bearer ${bearer}` } });
  assert.equal((await send(issuer.token("old"))).status, 200);
  const iat = Math.floor(Date.now() / 1000);
  issuer.addKey("new", "EdDSA");
  issuer.addKey("old", "EdDSA");
  for (const bearer of [issuer.token("new"), issuer.token("new", { iat }), issuer.token("old")]) {
    const answer = await send(bearer);
    assert.equal(answer.status, 503);
    const seconds = Number(answer.headers.get("retry-after"));
    assert.ok(seconds >= 1 && seconds <= 60, String(seconds));
    assert.equal(answer.headers.get("www-authenticate"), null);
  }
  await until("they are counted", () => origin.reports.some(({ requests }) => requests.unknown_key));
  assert.equal(issuer.requests, 1, "tokens with unknown keys do not fetch the key set more than once per cooldown");

  // These are refused with any keys.
  for (const claims of [{ iat: iat - 3600 }, { exp: iat - 60 }, { aud: "other" }, { token_use: "id" }, { exp: "x" }])
    assert.equal((await send(issuer.token("new", claims))).status, 401, JSON.stringify(claims));
  assert.equal(issuer.requests, 1);
});

test("an invented kid is refused and does not delay tokens with a new key", async () => {
  const issuer = await newIssuer();
  issuer.addKey("old", "EdDSA");
  const status = await startVerifier(issuer, { JWKS_COOLDOWN_MS: "2000" });
  const invented = (kid: string): string => issuer.token("old", {}, kid);
  assert.equal(await status(issuer.token("old")), 200);
  await until("an invented kid to use up the fetch", async () => {
    await status(invented(randomUUID()));
    return issuer.requests === 2;
  });
  issuer.addKey("new", "EdDSA");
  const bad = invented("bad");
  const statuses = new Set([await status(bad)]);
  await until("the new key to be fetched while others invent kids", async () => {
    await status(invented(randomUUID()));
    const answer = await status(issuer.token("new"));
    assert.ok(answer === 200 || answer === 503, String(answer));
    statuses.add(await status(bad));
    return answer === 200;
  });
  // Other tokens must not keep a bad token unverifiable: once keys were fetched after its arrival, it is invalid.
  assert.equal(await status(bad), 401);
  assert.equal(await status(bad), 401);
});

test("concurrent requests do not fetch the key set once each", async () => {
  const issuer = await newIssuer();
  issuer.addKey("a", "EdDSA");
  issuer.delayMs = 500;
  const status = await startVerifier(issuer);
  const token = issuer.token("a");
  const statuses = await Promise.all(Array.from({ length: 20 }, () => status(token)));
  assert.deepEqual(statuses, Array(20).fill(200));
  assert.equal(issuer.requests, 1);
});

test("a token with a new key waits for a key fetch under way", async () => {
  const issuer = await newIssuer();
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

test("while the issuer hangs, known keys are used without waiting", async () => {
  const issuer = await newIssuer();
  issuer.addKey("a", "EdDSA");
  const edge = await startTrusting(issuer, { JWKS_COOLDOWN_MS: 100, JWKS_MAX_AGE_MS: 100 });
  const send = async (): Promise<Response> => {
    const headers = { authorization: `Bearer ${issuer.token("a")}` };
    return edge.from("203.0.113.1")("/api/usage", { headers });
  };
  assert.equal((await send()).status, 200);
  await wait(200);
  issuer.delayMs = 600_000;
  const answer = await send();
  assert.equal(answer.status, 200);
  await until("the issuer to be asked again", () => issuer.requests === 2);
  // The edge gives up after 5 s.
  const [, waited] = /edge;dur=(\d+)/.exec(answer.headers.get("server-timing") ?? "") ?? [];
  assert.ok(Number(waited) < 5000, `the request waited for ${waited} ms`);
  await edge.logged("key_set_unavailable");
  assert.equal((await send()).status, 200);
});

test("while the issuer fails, known keys stay valid and fetches repeat", async () => {
  const issuer = await newIssuer();
  issuer.addKey("old", "EdDSA");
  const status = await startVerifier(issuer, { JWKS_COOLDOWN_MS: "100" });
  assert.equal(await status(issuer.token("old")), 200);
  assert.equal(issuer.requests, 1);
  issuer.addKey("new", "EdDSA");
  issuer.fails = true;
  for (const attempt of [2, 3]) {
    await wait(200);
    assert.equal(await status(issuer.token("new")), 503);
    assert.equal(issuer.requests, attempt, "the issuer was asked");
    assert.equal(await status(issuer.token("old")), 200, "and its failure changed nothing");
  }
  issuer.fails = false;
  await wait(200);
  assert.equal(await status(issuer.token("new")), 200);
});

test("before the issuer's first answer, its tokens get 503", async () => {
  const issuer = await newIssuer();
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
  assert.equal((await submit({ cookie: "auth_token=nonsense" })).status, 200, "nor this one, which is ignored");
  assert.equal((await submit({ cookie: "auth_token=nonsense" })).status, 429, "and counted");

  issuer.fails = false;
  await until("the issuer to be asked again", async () => (await submit(bearer(token))).status === 200);
  assert.equal(origin.last().claims.sub, user);
  assert.equal((await submit({ cookie: `auth_token=${token}` })).status, 200);
  assert.equal(origin.last().claims.sub, user);
  await until("the requests to be reported", () => origin.reports.some(({ requests }) => requests.unverifiable));
});

test("tokens of the shared secret do not wait for the issuer", async () => {
  const issuer = await newIssuer();
  issuer.fails = true;
  const status = await startVerifier(issuer);
  const claims = { iss: "https://id.test", aud: "weir" };
  assert.equal(await status(await tokenFor(origin.secrets.jwt, user, claims)), 200);
  assert.equal(await status(await tokenFor("another secret that is long enough to be one", user, claims)), 401);
  assert.equal(issuer.requests, 0);
});
