// The edge as a library, for this Worker and for others. Decisions are made in Rust; this file has only code that requires
// JavaScript.
import { DurableObject, env as workerEnv } from "cloudflare:workers";
import { AddressCounter as Counter, fetch as forward, __worker_init_state as program } from "../build/index.js";
import { withHandler } from "./own.mjs";

// The first ten frames belong to the panic itself.
Error.stackTraceLimit = 100;

// Rust's futures resume by microtask, about ten times per request. The runtime's queueMicrotask takes 2.4 µs. The
// callback of a resolved promise takes 0.1 µs.
const resolved = Promise.resolve();
globalThis.queueMicrotask = (task) => void resolved.then(task);

// BATCH_DELAY_MS of policy/src/write_budget.rs.
const batchDelay = 250;

// The runtime accepts method calls only on objects of classes that extend DurableObject.
export class AddressCounter extends DurableObject {
  #counter;
  #instance;

  constructor(state, env) {
    super(state, env);
    this.#live();
  }

  /** The counter in Rust's memory, which is replaced after a panic. */
  #live() {
    // After a panic, this call restarts Rust; each start has a number.
    const { instanceId } = program();
    if (this.#instance !== instanceId) {
      this.#counter = new Counter(this.ctx, plain(this.env));
      this.#instance = instanceId;
    }
    return this.#counter;
  }

  take(kind, upper, lower, knownUsed, knownResetAt) {
    return this.#written(this.#live().take(kind, upper, lower, knownUsed, knownResetAt));
  }

  /** Counts several requests of a key at once, or none. */
  takeMany(upper, lower, cost) {
    return this.#written(this.#live().take_many(upper, lower, cost));
  }

  /** Schedules the write that a negative result asks for. */
  #written(result) {
    if (result < 0) setTimeout(() => this.#live().flush(), batchDelay);
    return Math.abs(result);
  }

  alarm() {
    return this.#live().alarm();
  }

  costs() {
    return [...this.#live().costs()];
  }
}

// After a panic, Rust's memory is gone, and with it every request that was running in this isolate. See panics.rs.
const running = new Set();
globalThis.weirPanics = {
  failRequests(message) {
    for (const fail of running) fail(new Error(message));
    running.clear();
  },
};

// A trap that is not a panic, such as a stack overflow, calls no panic hook. In a future, only this handler notices it.
addEventListener("unhandledrejection", ({ reason }) => {
  if (reason instanceof WebAssembly.RuntimeError || reason instanceof RangeError)
    globalThis.weirPanics.failRequests(`trap: ${reason.message}`);
});

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

/** The variables that createWeir() was given. Those of the environment override them. */
let chosen = {};

/** `anonLimit` is the variable ANON_LIMIT. */
const variableName = (name) => (/[a-z]/.test(name) ? name.replace(/[A-Z]/g, "_$&").toUpperCase() : name);

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

/** The variables and bindings, with those that createWeir() was given. */
const plain = once((env) => ({ ...chosen, ...env }));

/**
 * The edge for a Worker. `options` has the variables of `[vars]`, as ANON_LIMIT or anonLimit; the environment overrides
 * them. A Worker has one edge: call this once, when the module is loaded.
 */
export function createWeir(options = {}) {
  chosen = Object.fromEntries(Object.entries(options).map(([name, value]) => [variableName(name), value]));
  return { handle, limit };
}

/**
 * Answers a request: refuses it, or forwards it to its origin. With `next`, the Worker's own handler is the default
 * origin. It gets the request without headers that name an identity, and the caller.
 */
async function handle(request, env, ctx, next) {
  return respond(request, next ? withHandler(plain(env), next) : plain(env), ctx);
}

/**
 * Counts `cost` units of a key in a fixed window of `window` seconds, exactly and worldwide. All of them are counted, or
 * none. Resolves to whether they are allowed, how many units are left, and in how many milliseconds more are.
 */
async function limit(key, { limit, window, cost = 1 }) {
  const whole = (name, value, most) => {
    if (!Number.isInteger(value) || value < 1 || value > most)
      throw new RangeError(`${name} is ${value}; expected a whole number from 1 to ${most}`);
  };
  whole("limit", limit, 1_048_575);
  whole("window", window, 86_400);
  whole("cost", cost, 1000);
  const hash = new DataView(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(String(key))));
  const shard = hash.getUint32(8) % Number(plain(workerEnv).COUNTER_SHARDS ?? 1);
  const name = `limit-${limit}-${window}-${shard}`;
  const packed = await workerEnv.ADDRESS_COUNTERS.getByName(name).takeMany(hash.getUint32(0), hash.getUint32(4), cost);
  // As LimitResult::pack in policy/src/window.rs does it.
  const used = Math.floor(packed / 2) % 2 ** 20;
  return {
    allowed: packed % 2 === 1,
    limit,
    remaining: Math.max(limit - used, 0),
    resetAfterMs: Math.floor(packed / 2 ** 21),
  };
}
