// The edge as a library, for this Worker and for others. Decisions are made in Rust; this file has only code that requires
// JavaScript.
import * as rust from "../build/index.js";
import { counterClass, limits } from "./limits.mjs";
import { withHandler } from "./own.mjs";

export { rateLimitFields, tooManyRequests } from "./limits.mjs";

const { fetch: forward, settingNames, unknownOptions } = rust;

// The first ten frames belong to the panic itself.
Error.stackTraceLimit = 100;

export const AddressCounter = counterClass(rust, (name, env) => edgeOf(name)(env));

export const { limit, peek, refund, reset, limited } = limits(rust);

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
