import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, test } from "node:test";
import { tokenFor } from "../harness/identity.ts";
import { startOrigin } from "./origin.ts";
import { startEdge } from "./workerd.ts";

const origin = await startOrigin({ after });

test("ASSERTION_CLAIMS passes only its claims of the token to the origin", async () => {
  const edge = await startEdge(
    { after },
    {
      originUrl: origin.url,
      secrets: origin.secrets,
      vars: {
        ASSERTION_CLAIMS: ["roles", "org.id, plan"],
        ROUTES: [{ path: "/v1/*", limits: [{ by: { claim: "email" }, limit: 100, window: "1m" }] }],
      },
      without: ["LIMITED_ROUTES"],
    },
  );
  const ask = edge.from("203.0.113.1");
  const send = async (claims: Record<string, unknown>): Promise<Response> => {
    const token = await tokenFor(origin.secrets.jwt, randomUUID(), claims);
    return ask("/v1/x", { headers: { authorization: `Bearer ${token}` } });
  };
  const roles = ["admin", "é"];
  assert.equal((await send({ roles, org: { id: 17, name: "Acme" }, email: "a@example.com", plan: null })).status, 200);
  assert.deepEqual(origin.last().claims.claims, { roles, "org.id": 17 });
  assert.doesNotMatch(JSON.stringify(origin.last().claims), /Acme|example\.com/);
  assert.equal((await send({})).status, 200);
  assert.equal("claims" in origin.last().claims, false);
  assert.equal((await ask("/v1/x")).status, 200);
  assert.equal("claims" in origin.last().claims, false, "anonymous");

  const before = origin.received.length;
  const long = await send({ roles: Array.from({ length: 300 }, (_, role) => `role-${role}`) });
  assert.equal(long.status, 431);
  assert.match(await long.text(), /longer than 2048 bytes/);
  assert.equal(origin.received.length, before);
  assert.equal((await send({ email: "a".repeat(3000) })).status, 200, "a claim that is not listed may be long");
});
