import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, test } from "node:test";
import { CompactSign, decodeJwt } from "jose";
import { tokenFor } from "../harness/identity.ts";
import { startOrigin } from "./origin.ts";
import { startEdge } from "./workerd.ts";

const origin = await startOrigin({ after });
const edge = await startEdge({ after }, { originUrl: origin.url, secrets: origin.secrets });
const user = randomUUID();
const token = await tokenFor(origin.secrets.jwt, user);

const submit = (address: string, headers: Record<string, string> = {}): Promise<Response> =>
  edge.from(address)("/api/jobs/analysis", { method: "POST", body: "{}", headers });

test("a user's token bypasses the limit and becomes an assertion", async () => {
  for (let sent = 0; sent < 15; sent++) {
    const answer = await submit("203.0.113.10", { authorization: `Bearer ${token}` });
    assert.equal(answer.status, 200);
    assert.equal(answer.headers.get("ratelimit"), null);
  }
  const { claims, headers } = origin.last();
  assert.equal(claims.sub, user);
  assert.equal(claims.client_address, "203.0.113.10");
  assert.equal(claims.token_exp, decodeJwt(token).exp, "the origin ends longer requests");
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

test("the assertion of an anonymous request has its address and no user", async () => {
  await submit("2001:db8:9:9::1");
  assert.equal(origin.last().claims.sub, undefined);
  assert.equal(origin.last().claims.client_address, "2001:db8:9:9::/64");
  assert.equal(origin.last().claims.token_exp, undefined);
});

test("bad bearer tokens are refused, and are counted separately", async () => {
  const strict = await startEdge(
    { after },
    { originUrl: origin.url, secrets: origin.secrets, vars: { ANON_READ_LIMIT: 15 } },
  );
  const bad = await tokenFor("another secret that is long enough to be one", user);
  const send = (headers: Record<string, string> = {}): Promise<Response> =>
    strict.from("203.0.113.12")("/api/jobs/analysis", { method: "POST", body: "{}", headers });
  for (let sent = 0; sent < 10; sent++) assert.equal((await send()).status, 200);
  assert.equal((await send()).status, 429, "the address has no anonymous submissions left");
  for (let sent = 0; sent < 15; sent++) {
    const answer = await send({ authorization: `Bearer ${bad}` });
    assert.equal(answer.status, 401, "a page behind the same address can refresh its session");
    assert.match(
      answer.headers.get("www-authenticate") ?? "",
      /^Bearer realm="weir", error="invalid_token", error_description="[^"]+"$/,
    );
    assert.equal(answer.headers.get("content-type"), "application/problem+json");
    assert.equal(((await answer.json()) as { title: string }).title, "Unauthorized");
  }
  const full = await send({ authorization: `Bearer ${bad}` });
  assert.equal(full.status, 429);
  const problem = (await full.json()) as Record<string, unknown>;
  assert.deepEqual(problem["violated-policies"], ["bad-token"]);
  assert.doesNotMatch(String(problem.detail), /sign in/);
  assert.match(full.headers.get("retry-after") ?? "", /^\d+$/);
  assert.equal((await strict.from("203.0.113.12")("/api/lanes")).status, 200, "reads are counted separately");
  assert.equal((await send({ authorization: `Bearer ${token}` })).status, 200, "a user is admitted all the same");
});

test("expired, premature, unsigned and malformed tokens are refused", async () => {
  const now = Math.floor(Date.now() / 1000);
  const part = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString("base64url");
  const refused = {
    expired: await tokenFor(origin.secrets.jwt, user, { exp: now - 61 }),
    premature: await tokenFor(origin.secrets.jwt, user, { nbf: now + 120 }),
    "without an end": await tokenFor(origin.secrets.jwt, user, { exp: undefined }),
    "of no user": await tokenFor(origin.secrets.jwt, ""),
    "of a user with too long a name": await tokenFor(origin.secrets.jwt, "a".repeat(256)),
    "of a user with a NUL in the name": await tokenFor(origin.secrets.jwt, "a\0b"),
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

/** The response to a request with this token: its status, and for 401 the reason. */
async function outcome(bearer: string, to = edge): Promise<string> {
  const headers = { authorization: `Bearer ${bearer}` };
  const answer = await to.from(`198.51.100.${host++}`)("/api/jobs/analysis", { method: "POST", body: "{}", headers });
  if (answer.status !== 401) return String(answer.status);
  return `401 ${((await answer.json()) as { detail: string }).detail}`;
}
let host = 1;

test("refresh tokens and ID tokens are refused", async () => {
  const now = Math.floor(Date.now() / 1000);
  const refused = "401 The token is not an access token.";
  for (const claims of [
    { token_type: "refresh" },
    { type: "refresh" },
    { typ: "Refresh" },
    { typ: "Offline" },
    { token_use: "id" },
    { token_use: "refresh_token" },
  ])
    assert.equal(await outcome(await tokenFor(origin.secrets.jwt, user, claims)), refused, JSON.stringify(claims));
  for (const claims of [{ token_type: "access" }, { type: "user" }, { typ: "Bearer" }, { token_use: "access" }])
    assert.equal(await outcome(await tokenFor(origin.secrets.jwt, user, claims)), "200", JSON.stringify(claims));
  for (const typ of ["refresh+jwt", "application/refresh+jwt", "id+jwt", "logout+jwt"])
    assert.equal(await outcome(await tokenFor(origin.secrets.jwt, user, { exp: now + 60 }, typ)), refused, typ);
  for (const typ of ["at+jwt", "application/at+jwt", "AT+JWT", "JWT", "jwt"])
    assert.equal(await outcome(await tokenFor(origin.secrets.jwt, user, { exp: now + 60 }, typ)), "200", typ);
});

test("JWT_REQUIRED_CLAIMS names claims that tokens must have", async () => {
  for (const JWT_REQUIRED_CLAIMS of ["token_use=access, realm.name = main", ["token_use=access", "realm.name=main"]]) {
    const strict = await startEdge(
      { after },
      { originUrl: origin.url, secrets: origin.secrets, vars: { JWT_REQUIRED_CLAIMS } },
    );
    const refused = "401 The token lacks a claim that this service requires.";
    const realm = { name: "main" };
    for (const [claims, expected] of [
      [{ token_use: "access", realm }, "200"],
      [{ token_use: ["other", "access"], realm }, "200"],
      [{ token_use: "access" }, refused],
      [{ token_use: "Access", realm }, refused],
      [{ token_use: null, realm }, refused],
      [{}, refused],
    ] as const)
      assert.equal(await outcome(await tokenFor(origin.secrets.jwt, user, claims), strict), expected);
  }
});

test("a claim of another type is refused by its name", async () => {
  for (const [claims, reason] of [
    [{ sub: 17 }, "its sub claim is not a string"],
    [{ sub: undefined }, "it has no sub claim"],
    [{ exp: null }, "its exp claim is not a time in seconds"],
    [{ exp: "tomorrow" }, "its exp claim is not a time in seconds"],
    [{ exp: undefined }, "it has no exp claim"],
    [{ nbf: null }, "its nbf claim is not a time in seconds"],
    [{ iat: null }, "its iat claim is not a time in seconds"],
    [{ iss: 5 }, "its iss claim is not a string"],
    [{ aud: [5] }, "its aud claim is neither a string nor a list of strings"],
  ] as const) {
    const bearer = await signed({ sub: user, exp: 4_000_000_000, ...claims });
    assert.equal(await outcome(bearer), `401 The token is malformed: ${reason}.`);
  }
});

/** A token with exactly these claims. */
const signed = (claims: Record<string, unknown>): Promise<string> =>
  new CompactSign(Buffer.from(JSON.stringify(claims)))
    .setProtectedHeader({ alg: "HS256" })
    .sign(Buffer.from(origin.secrets.jwt));

test("a subject is any text, and reaches the origin as it is", async () => {
  for (const subject of ["user_2aB", "auth0|507f", "17", "anne@example.com", "Zoë 李", "a".repeat(255)]) {
    const authorization = `Bearer ${await tokenFor(origin.secrets.jwt, subject)}`;
    assert.equal((await submit("203.0.113.16", { authorization })).status, 200, subject);
    assert.equal(origin.last().claims.sub, subject);
    assert.equal(origin.last().claims.act, undefined, "they act for themselves");
  }
  const authorization = `Bearer ${await tokenFor(origin.secrets.jwt, user.toUpperCase())}`;
  await submit("203.0.113.16", { authorization });
  assert.equal(origin.last().claims.sub, user, "one spelling of a UUID");
});

test("HOLDER_CLAIM sets the account that a user acts for", async () => {
  const vars = { HOLDER_CLAIM: "o.id" };
  const ofOrganisations = await startEdge({ after }, { originUrl: origin.url, secrets: origin.secrets, vars });
  const as = async (claims: Record<string, unknown>): Promise<number> => {
    const headers = { authorization: `Bearer ${await tokenFor(origin.secrets.jwt, "user_1", claims)}` };
    const send = ofOrganisations.from("203.0.113.17");
    return (await send("/api/jobs/analysis", { method: "POST", body: "{}", headers })).status;
  };
  assert.equal(await as({ o: { id: "org_1", rol: "admin" } }), 200);
  assert.equal(origin.last().claims.sub, "org_1");
  assert.deepEqual(origin.last().claims.act, { sub: "user_1" });
  assert.equal(await as({}), 200);
  assert.equal(origin.last().claims.sub, "user_1", "without an organisation, for themself");
  assert.equal(await as({ o: { id: "" } }), 401);
  assert.equal(await as({ o: { id: 17 } }), 401);
});

test("a bad or expired cookie is ignored", async () => {
  const expired = await tokenFor(origin.secrets.jwt, user, { exp: Math.floor(Date.now() / 1000) - 61 });
  const other = await tokenFor(origin.secrets.jwt, randomUUID());
  for (const cookie of [`auth_token=${expired}`, "auth_token=nonsense", `auth_token=${token}; auth_token=${other}`]) {
    const answer = await submit("203.0.113.13", { cookie });
    assert.equal(answer.status, 200);
    assert.equal(origin.last().claims.sub, undefined);
  }
  assert.match((await submit("203.0.113.13")).headers.get("ratelimit") ?? "", /^"anon";r=6;t=(60|5\d)$/);
});

test("two equal cookies count as one", async () => {
  await submit("203.0.113.15", { cookie: `auth_token=${token}; auth_token=${token}` });
  assert.equal(origin.last().claims.sub, user);
});

test("another site's page cannot use its visitor's cookie", async () => {
  await submit("203.0.113.14", { cookie: `auth_token=${token}`, origin: "https://evil.example" });
  assert.equal(origin.last().claims.sub, undefined);
  await submit("203.0.113.14", { cookie: `auth_token=${token}`, origin: edge.url });
  assert.equal(origin.last().claims.sub, user);
});

test("headers of clients are not taken for identities", async () => {
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
    "proxy-authorization",
    "te",
    "cf-connecting-ip",
  ]) {
    assert.equal(lower.includes(name), false, name);
  }
  assert.equal(headers["x-forwarded-for"], "203.0.113.15");
  assert.equal(headers["x-real-ip"], "203.0.113.15");
  assert.equal(headers["x-forwarded-proto"], "http");
  assert.equal(headers.signature, "forged", "an end-to-end header that names nobody");
  assert.equal(headers["x-anything"], "else");
  assert.notEqual(headers["x-request-id"], "chosen");
  assert.equal(new Set(lower).size, lower.length, "no header is sent twice");
});
