import { constants, generateKeyPairSync, type KeyObject, sign as signBytes } from "node:crypto";
import { createServer } from "node:http";
import { type Lifetime, whenOver } from "../harness/lifetime.ts";
import { freePort } from "../harness/ports.ts";

/** The parameters of Node's signatures, by algorithm. */
export const algorithms = {
  EdDSA: { type: "ed25519" },
  ES256: { type: "ec", curve: "P-256", hash: "sha256" },
  ES384: { type: "ec", curve: "P-384", hash: "sha384" },
  ES512: { type: "ec", curve: "P-521", hash: "sha512" },
  RS256: { type: "rsa", hash: "sha256" },
  RS384: { type: "rsa", hash: "sha384" },
  RS512: { type: "rsa", hash: "sha512" },
  PS256: { type: "rsa", hash: "sha256", pss: true },
  PS384: { type: "rsa", hash: "sha384", pss: true },
  PS512: { type: "rsa", hash: "sha512", pss: true },
} as const satisfies Record<string, { type: string; curve?: string; hash?: string; pss?: boolean }>;

export type Algorithm = keyof typeof algorithms;

/** An issuer that can rotate its keys, fail, and respond slowly. */
export interface Issuer {
  url: string;
  /** The number of times that its key set was requested. */
  requests: number;
  fails: boolean;
  delayMs: number;
  /** Adds a key, or replaces the one with this `kid`. An empty `kid` is left out of the set and of tokens. */
  addKey(kid: string, alg: Algorithm): void;
  removeKey(kid: string): void;
  /** A token that the key of `kid` signs, with `named` as its `kid`. */
  token(kid: string, claims?: Record<string, unknown>, named?: string): string;
}

/** `common` are the claims of all its tokens. */
export async function startIssuer(lifetime: Lifetime, common: Record<string, unknown>): Promise<Issuer> {
  const keys = new Map<string, { alg: Algorithm; privateKey: KeyObject; jwk: object }>();
  const port = await freePort();
  const issuer: Issuer = {
    url: `http://127.0.0.1:${port}/jwks`,
    requests: 0,
    fails: false,
    delayMs: 0,
    addKey(kid, alg) {
      const { publicKey, privateKey } = keyPair(alg);
      const jwk = { ...publicKey.export({ format: "jwk" }), ...(kid && { kid }), alg, use: "sig" };
      keys.set(kid, { alg, privateKey, jwk });
    },
    removeKey(kid) {
      keys.delete(kid);
    },
    token(kid, claims = {}, named = kid) {
      const key = keys.get(kid);
      if (!key) throw new Error(kid);
      const part = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString("base64url");
      const exp = Math.floor(Date.now() / 1000) + 600;
      const payload = { exp, ...common, ...claims };
      const message = `${part({ alg: key.alg, ...(named && { kid: named }) })}.${part(payload)}`;
      const how = algorithms[key.alg];
      const signature = signBytes("hash" in how ? how.hash : null, Buffer.from(message), {
        key: key.privateKey,
        dsaEncoding: "ieee-p1363",
        ...("pss" in how && { padding: constants.RSA_PKCS1_PSS_PADDING, saltLength: constants.RSA_PSS_SALTLEN_DIGEST }),
      });
      return `${message}.${signature.toString("base64url")}`;
    },
  };
  const server = createServer((_, response) => {
    issuer.requests++;
    const { fails } = issuer;
    setTimeout(() => {
      if (response.destroyed) return;
      response.writeHead(fails ? 500 : 200);
      response.end(JSON.stringify({ keys: [...keys.values()].map((key) => key.jwk) }));
      // A pending response must not keep the test from ending.
    }, issuer.delayMs).unref();
  });
  await new Promise<void>((done) => server.listen(port, "127.0.0.1", done));
  whenOver(lifetime, () => {
    server.closeAllConnections();
    server.close();
  });
  return issuer;
}

function keyPair(alg: Algorithm): { publicKey: KeyObject; privateKey: KeyObject } {
  const how = algorithms[alg];
  if (how.type === "ed25519") return generateKeyPairSync("ed25519");
  if (how.type === "ec") return generateKeyPairSync("ec", { namedCurve: how.curve });
  return generateKeyPairSync("rsa", { modulusLength: 2048 });
}
