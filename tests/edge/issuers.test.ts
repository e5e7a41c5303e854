import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { after, test } from "node:test";
import { tokenFor } from "../harness/identity.ts";
import { startIssuer } from "./issuer.ts";
import { startOrigin } from "./origin.ts";
import { startEdge } from "./workerd.ts";

// Tokens of several issuers (ISSUERS).

const a = "https://a.example";
const b = "https://b.example";
const c = "https://c.example";
const origin = await startOrigin({ after });
const secretOfB = randomBytes(32).toString("hex");
const issuerC = await startIssuer({ after }, { sub: "17", iss: c, use: "access" });
issuerC.addKey("1", "EdDSA");

const edge = await startEdge(
  { after },
  {
    originUrl: origin.url,
    secrets: origin.secrets,
    without: ["LIMITED_ROUTES"],
    vars: {
      JWT_ISSUER: a,
      HOLDER_CLAIM: "org",
      SECRET_OF_B: secretOfB,
      ISSUERS: [
        { issuer: b, secret: "SECRET_OF_B", audience: ["shop", "x"], holder_claim: "org" },
        { issuer: c, jwks_url: issuerC.url, required_claims: ["use=access"] },
      ],
      ROUTES: [
        { path: "/api/limited", callers: "signed_in", limits: [{ by: { claim: "team" }, limit: 2, window: "1m" }] },
        { path: "/api/*", callers: "signed_in" },
      ],
    },
  },
);
const ask = (token: string, path = "/api/me") =>
  edge.from("203.0.113.1")(path, { headers: { authorization: `Bearer ${token}` } });

const ofA = (claims = {}) => tokenFor(origin.secrets.jwt, "17", { iss: a, ...claims });
const ofB = (claims = {}) => tokenFor(secretOfB, "17", { iss: b, aud: "shop", ...claims });
const ofC = (claims = {}) => issuerC.token("1", claims);

test("equal subjects and organisations of two issuers are different users", async () => {
  const seen = [];
  for (const token of [await ofA(), await ofB(), ofC(), await ofA({ org: "o" }), await ofB({ org: "o" })]) {
    const answer = await ask(token);
    assert.equal(answer.status, 200, await answer.text());
    const { sub, act } = origin.last().claims as { sub?: string; act?: { sub: string } };
    seen.push(act ? [sub, act.sub] : [sub]);
  }
  assert.deepEqual(seen, [["17"], [`${b}|17`], [`${c}|17`], ["o", "17"], [`${b}|o`, `${b}|17`]]);
});

test("an issuer's tokens need its own keys and claims", async () => {
  const secretOfA = origin.secrets.jwt;
  const refused = {
    "B's token, signed by A": await tokenFor(secretOfA, "17", { iss: b, aud: "shop" }),
    "A's token, signed by B": await tokenFor(secretOfB, "17", { iss: a, aud: "shop" }),
    "C's token, signed by B": await tokenFor(secretOfB, "17", { iss: c, use: "access" }),
    "A's token, signed by C": ofC({ iss: a }),
    "no issuer, signed by A": await tokenFor(secretOfA, "17"),
    "an unknown issuer, signed by A": await tokenFor(secretOfA, "17", { iss: "https://d.example" }),
    "another audience than B's": await ofB({ aud: "other" }),
    "without C's required claim": ofC({ use: "other" }),
    "A's user with a name of B": await tokenFor(secretOfA, `${b}|17`, { iss: a }),
    "A's organisation with a name of C": await ofA({ org: `${c}|o` }),
    "a subject that is too long": await tokenFor(secretOfB, "x".repeat(250), { iss: b, aud: "shop" }),
  };
  for (const [name, token] of Object.entries(refused)) {
    const count = origin.received.length;
    const answer = await ask(token);
    assert.equal(answer.status, 401, `${name}: ${await answer.text()}`);
    assert.equal(origin.received.length, count, name);
  }
});

test("equal claims of two issuers have separate limits", async () => {
  const statuses = [];
  for (const token of [await ofA({ team: "t" }), await ofB({ team: "t" })])
    for (let n = 0; n < 3; n++) statuses.push((await ask(token, "/api/limited")).status);
  assert.deepEqual(statuses, [200, 200, 429, 200, 200, 429]);
});
