// The edge as a library, for this Worker and for others. Decisions are made in Rust; this file has only code that requires
// JavaScript.
import { DurableObject, env as workerEnv } from "cloudflare:workers";
import {
  AddressCounter as Counter,
  fetch as forward,
  __worker_init_state as program,
  settingNames,
  unknownOptions,
} from "../build/index.js";
import { withHandler } from "./own.mjs";

// The first ten frames belong to the panic itself.
Error.stackTraceLimit = 100;

// The runtime accepts method calls only on objects of classes that extend DurableObject.
export class AddressCounter extends DurableObject {
  #bindings;
  #counter;
  #instance;

  constructor(state, env) {
    super(state, env);
    this.#bindings = edgeOf(state.id.name)(env);
    this.#live();
  }

  /** The counter in Rust's memory, which is replaced after a panic. */
  #live() {
    // After a panic, this call restarts Rust; each start has a number.
    const { instanceId } = program();
    if (this.#instance !== instanceId) {
      this.#counter = new Counter(this.ctx, this.#bindings);
      this.#instance = instanceId;
    }
    return this.#counter;
  }

  take(kind, upper, lower, cost) {
    return this.#live().take(kind, upper, lower, cost);
  }

  alarm() {
    return this.#live().alarm();
  }

  costs() {
    return [...this.#live().costs()];
  }
}

// After a panic, Rust's memory is gone, and with it every request that was running in this isolate. See panics.rs and
// tasks.mjs.
const running = new Set();
globalThis.weirPanics = {
  failRequests(message) {
    for (const fail of running) fail(new Error(message));
    running.clear();
  },
};

const internalError = JSON.stringify({
  type: "about:blank",
  title: "Internal Server Error",
  status: 500,
  detail: "The edge could not handle the request.",
});

/** Handles a request by the variables and bindings of `env`. */
async function respond(request, env, ctx) {
  const { promise: answered, resolve, reject } = Promise.withResolvers();
  running.add(reject);
  try {
    forward(request, env, ctx).then(resolve, reject);
    return await answered;
  } catch (error) {
    // A bug: Rust turns every other error into a response.
    const id = crypto.randomUUID();
    console.error(JSON.stringify({ event: "panic", detail: String(error?.message ?? error), request_id: id }));
    return new Response(internalError, {
      status: 500,
      headers: {
        "content-type": "application/problem+json",
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        "x-request-id": id,
        vary: "Origin",
      },
    });
  } finally {
    running.delete(reject);
  }
}

/** `anonLimit` is the variable ANON_LIMIT. */
const variableName = (name) => (/[a-z]/.test(name) ? name.replace(/[A-Z]/g, "_$&").toUpperCase() : name);

/**
 * The options of an edge, its variables WEIR_NAME, and the bindings. A variable without the prefix may have the name of a
 * setting and another purpose. So may the binding METRICS.
 */
function settingsIn(env, options) {
  const names = new Set([...settingNames().split("\n"), "METRICS"]);
  const read = Object.entries(env).flatMap(([name, value]) => {
    const own = name.startsWith(prefix) ? name.slice(prefix.length) : undefined;
    if (names.has(own)) return [[own, value]];
    return names.has(name) ? [] : [[name, value]];
  });
  return { ...Object.fromEntries(read), ...options, [isLibrary]: true };
}

const prefix = "WEIR_";

/** LIBRARY of settings.rs. */
const isLibrary = "WEIR_LIBRARY";

/** The result of `make` for an environment. An isolate has one environment, so this is made once. */
function once(make) {
  let made;
  let madeFor;
  return (env) => {
    if (madeFor !== env) made = make(env);
    madeFor = env;
    return made;
  };
}

/**
 * The Worker's edges by number. Each one is a function that adds its options to an environment. Calls of createWeir()
 * with equal options are one edge, so that a call per request does not start new counts.
 */
const edges = new Map();

/** The edge that a counting object of this name counts for. `own_edge` in shard.rs writes the number. */
function edgeOf(name) {
  const [, number] = name?.split("@") ?? [];
  const edge = number === undefined ? edges.values().next().value : edges.get(Number(number));
  if (edge === undefined && number !== undefined)
    throw new Error(`the options of ${name} are unknown: no createWeir() has them; call it when the module is loaded`);
  return edge ?? ((env) => env);
}

/** A number from 0 to 2^32 - 1 for a text (FNV-1a). It is the same in all isolates. */
function numberOf(text) {
  let hash = 0x811c9dc5;
  for (let at = 0; at < text.length; at++) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193);
  return hash >>> 0;
}

/** A Worker that only forwards. The variables of `[vars]` are its settings. */
export const worker = { fetch: (request, env, ctx) => respond(request, env, ctx) };

/**
 * An edge for a Worker. `options` has the settings, as ANON_LIMIT or anonLimit. They override the variables WEIR_ANON_LIMIT
 * and so on. Call this when the module is loaded. Each call with other options is a separate edge with its own counts.
 */
export function createWeir(options = {}) {
  const unknown = unknownOptions(Object.keys(options).join("\n"));
  if (unknown !== undefined) throw new TypeError(`createWeir(): ${unknown}`);
  // Without RPC, counting objects have no methods. The runtime's error would look like an outage.
  if (globalThis.Cloudflare?.compatibilityFlags?.rpc === false)
    throw new Error("createWeir(): the compatibility_date of the Worker is too old; expected 2024-04-03 or later");
  const chosen = Object.fromEntries(Object.entries(options).map(([name, value]) => [variableName(name), value]));
  const number = numberOf(JSON.stringify(Object.entries(chosen).sort()));
  // The first edge has no number, so its counts continue when its options change.
  const own = edges.size === 0 ? {} : { WEIR_EDGE: number };
  if (!edges.has(number))
    edges.set(
      number,
      once((env) => ({ ...settingsIn(env, chosen), ...own })),
    );
  const plain = edges.get(number);
  return {
    handle: (request, env, ctx, next) => handle(plain(env), request, ctx, next),
    limit,
  };
}

/**
 * Answers a request: refuses it, or forwards it to its origin. With `next`, the Worker's own handler is the default
 * origin. It gets the request without headers that name an identity, and the caller.
 */
async function handle(bindings, request, ctx, next) {
  return respond(request, next ? withHandler(bindings, next) : bindings, ctx);
}

/** USER_KIND of policy/src/address.rs. */
const userKind = 8;

/** When the keys that have used up their limits may send again, by the names of their objects. */
const blocked = new Map();
const maxBlocked = 10_000;

/**
 * Counts `cost` units of a key in a fixed window of `window` seconds, exactly and worldwide. All of them are counted, or
 * none. Resolves to whether they are allowed, how many units are left, and in how many milliseconds more are.
 */
export async function limit(key, { limit, window, cost = 1 }) {
  const whole = (name, value, most) => {
    if (!Number.isInteger(value) || value < 1 || value > most)
      throw new RangeError(`${name} is ${value}; expected a whole number from 1 to ${most}`);
  };
  whole("limit", limit, 1_048_575);
  whole("window", window, 86_400);
  whole("cost", cost, 1000);
  const hash = new DataView(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(String(key))));
  const [upper, lower] = [hash.getUint32(0), hash.getUint32(4)];
  const hex = [upper, lower].map((half) => half.toString(16).padStart(8, "0")).join("");
  // As own_shard in shard.rs does it.
  const name = `limit-${limit}-${window}-${hex}`;
  const now = Date.now();
  const until = blocked.get(name) ?? 0;
  if (until > now) return { allowed: false, limit, remaining: 0, resetAfterMs: until - now };
  const packed = await workerEnv.ADDRESS_COUNTERS.getByName(name).take(userKind, upper, lower, cost);
  // As LimitResult::pack in policy/src/window.rs does it.
  const used = Math.floor(packed / 2) % 2 ** 20;
  const resetAfterMs = Math.floor(packed / 2 ** 21);
  if (used >= limit) {
    if (blocked.size >= maxBlocked) blocked.clear();
    // The time before the call: too early rather than too late.
    blocked.set(name, now + resetAfterMs);
  }
  return { allowed: packed % 2 === 1, limit, remaining: Math.max(limit - used, 0), resetAfterMs };
}

const seconds = (milliseconds) => Math.ceil(milliseconds / 1000);

/** The fields RateLimit-Policy and RateLimit of a counted request (draft-ietf-httpapi-ratelimit-headers-11). */
export const rateLimitFields = ({ limit, remaining, resetAfterMs }, window, name = "limit") => ({
  "ratelimit-policy": `"${name}";q=${limit};w=${window}`,
  ratelimit: `"${name}";r=${remaining};t=${seconds(resetAfterMs)}`,
});

/** The answer to a request over its limit. */
export function tooManyRequests(counted, window, name = "limit") {
  const problem = {
    type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "Too Many Requests",
    status: 429,
    detail: "Rate limit exceeded. Please try again later.",
    "violated-policies": [name],
  };
  return new Response(JSON.stringify(problem), {
    status: 429,
    headers: {
      "content-type": "application/problem+json",
      "cache-control": "no-store",
      "retry-after": String(Math.max(seconds(counted.resetAfterMs), 1)),
      ...rateLimitFields(counted, window, name),
    },
  });
}
