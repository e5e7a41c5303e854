// Each function here replaces many calls from Rust into the runtime, each of which would copy strings between the two.
// Nothing is decided here. Values are packed one per line: no header, method or URL can contain a line break.
import { waitUntil } from "cloudflare:workers";

export { waitUntil };

/** The Worker's variables and secrets as a JSON object. A binding to a service is {fetch: true}, to anything else {}. */
export function variables(env) {
  const isData = (value) =>
    typeof value !== "object" ||
    Array.isArray(value) ||
    [Object.prototype, null].includes(Object.getPrototypeOf(value));
  return JSON.stringify(
    Object.fromEntries(
      Object.entries(env).map(([name, value]) => {
        if (value === null || isData(value)) return [name, value];
        return [name, typeof value.fetch === "function" ? { fetch: true } : {}];
      }),
    ),
  );
}

/** Counts that outlive a panic, by owner. See panics.rs. */
const preserved = new Map();

/** Keeps an owner's counts. */
export function save(owner, counts) {
  preserved.set(owner, counts);
}

/** Removes and returns an owner's counts. */
export function restore(owner) {
  const counts = preserved.get(owner);
  preserved.delete(owner);
  return counts;
}

/** A secret of the Secrets Store. */
export async function secret(env, name) {
  return await env[name].get();
}

const elliptic = (namedCurve, hash) => ({ name: "ECDSA", namedCurve, hash });
const rsa = (bits) => ({ name: "RSASSA-PKCS1-v1_5", hash: `SHA-${bits}` });
const pss = (bits) => ({ name: "RSA-PSS", hash: `SHA-${bits}`, saltLength: bits / 8 });

/** The runtime's parameters of an algorithm of tokens (RFC 7518, 3.1). */
const algorithms = {
  EdDSA: { name: "Ed25519" },
  ES256: elliptic("P-256", "SHA-256"),
  ES384: elliptic("P-384", "SHA-384"),
  RS256: rsa(256),
  RS384: rsa(384),
  RS512: rsa(512),
  PS256: pss(256),
  PS384: pss(384),
  PS512: pss(512),
};

/** Imported keys by algorithm and JWK. A promise could not be shared: the runtime ties it to a request. */
const publicKeys = new Map();

const encoder = new TextEncoder();

/** Whether a signature of a text is that of a public key. Resolves to false for a key or signature that is malformed. */
export async function verifySignature(jwk, algorithm, signed, signature) {
  const parameters = algorithms[algorithm];
  // A view of Rust's memory, which may move while a key is imported.
  const bytes = signature.slice();
  try {
    const id = `${algorithm} ${jwk}`;
    let key = publicKeys.get(id);
    if (key === undefined) {
      key = await crypto.subtle.importKey("jwk", JSON.parse(jwk), parameters, false, ["verify"]);
      // Key sets are replaced, and have at most 32 keys.
      if (publicKeys.size >= 256) publicKeys.clear();
      publicKeys.set(id, key);
    }
    return await crypto.subtle.verify(parameters, key, bytes, encoder.encode(signed));
  } catch {
    return false;
  }
}

/** A list of header names that Rust can keep. */
export function names(lines) {
  return lines.split("\n");
}

/** Method, URL, and the values of these headers: "=" and the value, or an empty line for an absent header. */
export function facts(request, names) {
  const headers = received(request);
  let packed = `${request.method}\n${request.url}\n`;
  for (const name of names) {
    const value = headers[name];
    packed += value === undefined ? "\n" : `=${value}\n`;
  }
  return packed;
}

const known = Symbol("headers");

/** The headers of a client's request, read once: each call into the runtime costs as much as ten of these lines. */
function received(request) {
  if (request[known] !== undefined) return request[known];
  const headers = {};
  request.headers.forEach((value, name) => {
    headers[name] = value;
  });
  request[known] = headers;
  return headers;
}

/** The header Cache-Control of a response, or undefined. */
export function cacheControl(response) {
  return response.headers.get("cache-control") ?? undefined;
}

/**
 * Remembers by name which headers pass. `decide` is a Rust function, and calling it costs more than anything else here.
 */
export class HeaderFilter {
  #decide;
  #known = new Map();

  constructor(decide) {
    this.#decide = decide;
  }

  passes(name) {
    let known = this.#known.get(name);
    if (known === undefined) {
      // Clients choose the names.
      if (this.#known.size >= 1000) this.#known.clear();
      known = this.#decide(name);
      this.#known.set(name, known);
    }
    return known;
  }
}

/** The names that a header Connection lists: headers for this connection only. */
const listedBy = (connection) =>
  connection
    .toLowerCase()
    .split(",", 100)
    .map((name) => name.trim());

/**
 * Headers with changes, as a plain object, which the runtime reads in one call. The changes are pairs of lines, a name
 * and a value. A prefix of the name sets how:
 * - without a prefix: set the header
 * - `+`: append to the header
 * - `-`: remove it
 * - `?`: set it if it is absent
 */
function changed(headers, changes) {
  eachChange(changes, (how, name, value) => {
    if (how === "-") delete headers[name];
    else if (how === "+" && Object.hasOwn(headers, name)) headers[name] += `, ${value}`;
    else if (how !== "?" || !Object.hasOwn(headers, name)) headers[name] = value;
  });
  return headers;
}

function eachChange(changes, apply) {
  if (changes === "") return;
  const lines = changes.split("\n");
  for (let line = 0; line < lines.length; line += 2) {
    const how = lines[line][0];
    const hasMark = how === "+" || how === "-" || how === "?";
    apply(hasMark ? how : "", hasMark ? lines[line].slice(1) : lines[line], lines[line + 1]);
  }
}

/** The headers of a request that pass, with changes. */
function headersOf(request, filter, changes) {
  const headers = {};
  let connection = "";
  for (const [name, value] of Object.entries(received(request))) {
    if (filter.passes(name)) headers[name] = value;
    else if (name === "connection") connection = value;
  }
  if (connection !== "") for (const name of listedBy(connection)) delete headers[name];
  return changed(headers, changes);
}

/**
 * Forwards a request to a URL, or to the service of this binding. Resolves to the response; rejects with the error of
 * the origin, or with one of the texts that glue.rs lists. Without `maxBytes`, the body passes untouched.
 */
export function forward(env, service, url, request, caller, filter, changes, maxBytes, uploadMs, originMs) {
  const send = service === undefined ? fetch : (url, init) => env[service].fetch(url, init);
  const { method } = request;
  const init = { method, headers: headersOf(request, filter, changes), redirect: "manual" };
  // Cloudflare's data on the client. Only a service reads it: in requests over the network, `cf` has options.
  if (service !== undefined) init.cf = request.cf;
  // Only `own.mjs` reads it.
  if (caller !== undefined) init.caller = caller;
  if (method === "GET" || method === "HEAD") {
    if (service === undefined && !hasCacheOption)
      return Promise.reject(new Error("the compatibility_date of the Worker is too old; expected 2024-11-11 or later"));
    // Clients may send a body without a meaning (RFC 9110, 9.3.1). Even an empty one would make `fetch` fail. Without
    // no-store, a cache rule of the origin's zone might serve one caller's answer to another caller. Answers to other
    // methods are never cached, and setting it takes the runtime time.
    init.cache = "no-store";
  } else if (request.body !== null && maxBytes === undefined) {
    init.body = request.body;
  } else if (request.body !== null) {
    const header = received(request)["content-length"];
    if (header !== undefined && Number(header) > maxBytes) return Promise.reject("too large");
    return header !== undefined && Number(header) <= maxChunk
      ? uploadWhole(send, url, init, request, uploadMs, originMs)
      : upload(send, url, init, request, header, maxBytes, uploadMs, originMs);
  }
  return answerOf(send(url, init), originMs);
}

/** The answer of an origin, which may have this long. */
const answerOf = (answer, originMs) => (originMs === undefined ? answer : withTimeout(answer, originMs));

/**
 * Forwards a request with a body that fits into one chunk, when all of it has arrived. One timer serves for both times,
 * because a timer costs 2% of a request.
 */
function uploadWhole(send, url, init, request, uploadMs, originMs = Number.POSITIVE_INFINITY) {
  let [until, late] = [Date.now() + uploadMs, "client slow"];
  const { promise: expired, reject } = Promise.withResolvers();
  const check = () => {
    const left = until - Date.now();
    if (left <= 0) reject(late);
    else if (left < Number.POSITIVE_INFINITY) setTimeout(check, left);
  };
  setTimeout(check, Math.min(uploadMs, originMs));
  const answered = request.arrayBuffer().then(
    (body) => {
      [until, late] = [Date.now() + originMs, "timed out"];
      return send(url, { ...init, body });
    },
    () => Promise.reject("client aborted"),
  );
  return Promise.race([answered, expired]);
}

/** Forwards a request with its body, chunk by chunk. The origin's time begins when all of it has been sent. */
function upload(send, url, init, request, header, maxBytes, uploadMs, originMs) {
  const length = header === undefined ? maxChunk : Number(header);
  const { readable, writable } = header === undefined ? new IdentityTransformStream() : new FixedLengthStream(length);
  const stop = new AbortController();
  const answer = send(url, { ...init, body: readable, signal: stop.signal });
  const chunk = new ArrayBuffer(Math.min(length, maxChunk) || 1);
  const { sent, read } = copyBody(
    request.body.getReader({ mode: "byob" }),
    writable.getWriter(),
    chunk,
    maxBytes,
    uploadMs,
  );
  const failed = sent.catch((reason) => {
    // An error in the stream is not enough: without Content-Length, the origin would consider the body complete.
    stop.abort(reason);
    throw reason;
  });
  const answered = Promise.race([answer, failed]).then(() => answerOf(answer, originMs));
  // An origin may answer before it has read the body, and continue to read. After an error, it usually does not, and the
  // client may see the answer only when it has sent the rest.
  const uploaded = () => Promise.race([read, sleep(maxDrainMs)]);
  let isUploaded = false;
  read.then(() => {
    isUploaded = true;
  });
  return answered.then(
    async (response) => {
      if (response.status < 400 || isUploaded) return response;
      // Its body is read first. Otherwise, it is lost if the origin closes the connection, and so is the client's.
      const [body] = await withTimeout(Promise.all([response.arrayBuffer(), uploaded()]), 2 * maxDrainMs);
      return new Response(body, response);
    },
    (error) => uploaded().then(() => Promise.reject(error)),
  );
}

/** The longest time that an error waits for the client to send the rest of the body, in milliseconds. */
const maxDrainMs = 10_000;

/** Whether `fetch` knows the option `cache`. Without it, the runtime's error would look like an unreachable origin. */
const hasCacheOption = globalThis.Cloudflare?.compatibilityFlags?.cache_option_enabled !== false;

/** The longest chunk of a body, in bytes. */
const maxChunk = 65_536;

/**
 * Copies a body through one buffer. The body's `pipeTo` does not distinguish the faults of client and origin.
 * - `sent` resolves when all is sent or the origin accepts no more, and rejects if the client does not send all of it.
 * - `read` resolves when all has arrived or the client has failed. The rest of a body that the origin refuses is dropped,
 *   because a client may miss the answer if the connection closes during its upload.
 */
function copyBody(reader, writer, chunk, maxBytes, idleMs) {
  const { promise: refused, resolve: refuse } = Promise.withResolvers();
  let late = "client slow";
  let latest = Date.now();
  let ended = false;
  writer.closed.catch(() => {});
  const copy = async () => {
    for (let [size, open] = [0, true]; ; ) {
      const { done, value } = await reader.read(new Uint8Array(chunk)).catch(() => Promise.reject("client aborted"));
      chunk = value?.buffer;
      size += value?.byteLength ?? 0;
      if (size > maxBytes) throw "too large";
      latest = Date.now();
      late = "timed out";
      if (open) {
        try {
          // Resolves when the origin has taken the chunk, so its buffer can be used again.
          await (done ? writer.close() : writer.write(value));
          latest = Date.now();
        } catch {
          open = false;
          refuse();
        }
      }
      if (done) return;
      late = "client slow";
    }
  };
  const idle = async () => {
    for (let left = idleMs; left > 0 && !ended; left = latest + idleMs - Date.now()) await sleep(left);
    throw late;
  };
  const copied = Promise.race([copy(), idle()]).finally(() => {
    ended = true;
  });
  return { sent: Promise.race([copied, refused]), read: copied.catch(() => {}) };
}

/** The same response with the headers that pass (all without a filter) and changes, its body unread. Set-Cookie remains several headers. */
export function pass(response, filter, changes) {
  const passed = new Response(response.body, response);
  const { headers } = passed;
  for (const name of response.headers.keys()) {
    if (filter === undefined || filter.passes(name)) continue;
    if (name === "connection") for (const listed of listedBy(headers.get(name))) headers.delete(listed);
    headers.delete(name);
  }
  eachChange(changes, (how, name, value) => {
    if (how === "-") headers.delete(name);
    else if (how === "+") headers.append(name, value);
    else if (how !== "?" || !headers.has(name)) headers.set(name, value);
  });
  return passed;
}

/** A response that the edge creates. */
export function respond(status, changes, body) {
  return new Response(body, { status, headers: changed({}, changes) });
}

/** Posts a text. Resolves to the status of the response. */
export async function post(url, changes, body) {
  const headers = changed({}, changes);
  const response = await fetch(url, { method: "POST", headers, body, redirect: "manual" });
  // An unread body would keep the connection open.
  await response.body?.cancel();
  return response.status;
}

/** Resolves after this many milliseconds. */
export function sleep(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

/** Settles as `promise` does, or rejects with this reason after this many milliseconds. */
export function withTimeout(promise, milliseconds, reason = "timed out") {
  // The timer is not cleared: it ends with its request, and clearing it would cost as much as setting it.
  const timer = new Promise((_, reject) => setTimeout(reject, milliseconds, reason));
  return Promise.race([promise, timer]);
}
