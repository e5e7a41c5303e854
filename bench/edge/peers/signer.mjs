// The smallest JavaScript version of what the edge does for a user without a limit: it verifies the token, signs the same
// assertion and forwards. It passes all other headers on, and knows one secret and a key for each algorithm.
const encoder = new TextEncoder();
const decoder = new TextDecoder();
const hmac = { name: "HMAC", hash: "SHA-256" };
const denied = () => new Response(null, { status: 401 });

const algorithms = {
  HS256: hmac,
  RS256: { name: "RSASSA-PKCS1-v1_5", hash: "SHA-256" },
  ES256: { name: "ECDSA", namedCurve: "P-256", hash: "SHA-256" },
  ES384: { name: "ECDSA", namedCurve: "P-384", hash: "SHA-384" },
  EdDSA: { name: "Ed25519" },
};

let keys;

async function importKeys(env) {
  const key = (secret, usage) => crypto.subtle.importKey("raw", encoder.encode(secret), hmac, false, [usage]);
  const published = JSON.parse(env.KEYS).keys.map(async ({ alg, kid: _, use: __, ...jwk }) => [
    alg,
    await crypto.subtle.importKey("jwk", { ...jwk, key_ops: ["verify"] }, algorithms[alg], false, ["verify"]),
  ]);
  const edgeKey = await key(env.EDGE_SECRET, "sign");
  return [{ HS256: await key(env.JWT_SECRET, "verify"), ...Object.fromEntries(await Promise.all(published)) }, edgeKey];
}

const encoded = (bytes) => new Uint8Array(bytes).toBase64({ alphabet: "base64url", omitPadding: true });
const decoded = (text) => Uint8Array.fromBase64(text, { alphabet: "base64url" });
const header = encoded(encoder.encode('{"alg":"HS256","typ":"JWT"}'));

export default {
  async fetch(request, env) {
    keys ??= importKeys(env);
    const [jwtKeys, edgeKey] = await keys;
    const [head, body, signature] = (request.headers.get("authorization") ?? "").replace("Bearer ", "").split(".");
    if (!signature) return denied();
    const { alg } = JSON.parse(decoder.decode(decoded(head)));
    const signed = encoder.encode(`${head}.${body}`);
    const jwtKey = jwtKeys[alg];
    if (!jwtKey || !(await crypto.subtle.verify(algorithms[alg], jwtKey, decoded(signature), signed))) return denied();
    const token = JSON.parse(decoder.decode(decoded(body)));
    const now = Math.floor(Date.now() / 1000);
    if (!(token.exp > now)) return denied();

    const { pathname, search } = new URL(request.url);
    const target = pathname + search;
    const id = crypto.randomUUID();
    const address = request.headers.get("cf-connecting-ip");
    const claims = {
      iss: "weir-edge",
      aud: "weir-origin",
      sub: token.sub,
      client_address: address,
      token_exp: token.exp,
      jti: id,
      htm: request.method,
      htd: encoded(await crypto.subtle.digest("SHA-256", encoder.encode(target))),
      iat: now,
      exp: now + 30,
    };
    const unsigned = `${header}.${encoded(encoder.encode(JSON.stringify(claims)))}`;
    const assertion = `${unsigned}.${encoded(await crypto.subtle.sign("HMAC", edgeKey, encoder.encode(unsigned)))}`;

    const headers = new Headers(request.headers);
    headers.delete("authorization");
    headers.delete("cookie");
    headers.set("weir-assertion", assertion);
    headers.set("x-request-id", id);
    headers.set("x-forwarded-for", address);
    const answer = await fetch(env.ORIGIN_URL + target, {
      method: request.method,
      headers,
      body: request.body,
      redirect: "manual",
    });
    const response = new Response(answer.body, answer);
    response.headers.set("x-request-id", id);
    return response;
  },
};
