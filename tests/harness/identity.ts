import { randomBytes, randomUUID } from "node:crypto";
import { SignJWT } from "jose";

/** The two secrets that an edge, an origin and a test share. */
export interface Secrets {
  jwt: string;
  edge: string;
}

export function freshSecrets(): Secrets {
  return { jwt: randomBytes(32).toString("hex"), edge: randomBytes(32).toString("hex") };
}

/** A user's token as an issuer creates it. `claims` replaces claims; undefined omits one. */
export async function tokenFor(
  secret: string,
  user: string = randomUUID(),
  claims: Record<string, unknown> = {},
  typ = "JWT",
): Promise<string> {
  const now = Math.floor(Date.now() / 1000);
  return new SignJWT({ sub: user, iat: now, exp: now + 3600, ...claims })
    .setProtectedHeader({ alg: "HS256", typ })
    .sign(Buffer.from(secret));
}
