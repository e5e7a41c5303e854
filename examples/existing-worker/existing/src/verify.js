import { createHash, createHmac, timingSafeEqual } from "node:crypto";

/** Returns the claims of a request's assertion. */
export function verify(request, secret) {
  const [header, payload, signature = ""] = String(request.headers["weir-assertion"]).split(".");
  const expected = createHmac("sha256", secret).update(`${header}.${payload}`).digest();
  const given = Buffer.from(signature, "base64url");
  if (given.length !== expected.length || !timingSafeEqual(given, expected))
    throw new Error("the assertion's signature does not match");
  const claims = JSON.parse(Buffer.from(payload, "base64url").toString());
  const digest = createHash("sha256").update(request.url).digest("base64url");
  if (claims.aud !== "weir-origin" || claims.htm !== request.method || claims.htd !== digest)
    throw new Error("the assertion is for another request");
  if (claims.exp <= Date.now() / 1000) throw new Error("the assertion has expired");
  return claims;
}
