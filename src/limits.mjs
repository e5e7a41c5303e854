// What the edge and the module that only limits have in common: the counting object, and the limits of a Worker's own code.
// Rust decides; this file has only code that requires JavaScript. `rust` is the exports of either module.
import { DurableObject, env as workerEnv } from "cloudflare:workers";

/**
 * The class of the counting objects. The runtime accepts method calls only on objects of classes that extend DurableObject.
 * `bindingsOf` returns the environment for the name of an object.
 */
export const counterClass = ({ AddressCounter: Counter, __worker_init_state: program }, bindingsOf) =>
  class AddressCounter extends DurableObject {
    #bindings;
    #counter;
    #instance;

    constructor(state, env) {
      super(state, env);
      this.#bindings = bindingsOf(state.id.name, env);
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

    refund(kind, upper, lower, cost) {
      return this.#live().refund(kind, upper, lower, cost);
    }

    alarm() {
      return this.#live().alarm();
    }

    costs() {
      return [...this.#live().costs()];
    }
  };

/** The functions that count any text. */
export function limits({ countUnits, Change }) {
  const counting =
    (change) =>
    async (key, { limit, window, cost = 1 }) => {
      const objects = workerEnv.ADDRESS_COUNTERS;
      const [allowed, remaining, resetAfterMs] = await countUnits(objects, String(key), change, limit, window, cost);
      return { allowed: allowed === 1, limit, remaining, resetAfterMs };
    };
  const count = counting(Change.Take);

  /**
   * A function that counts its calls and passes them to `handler`, or answers 429. It adds the RateLimit fields that the
   * response lacks, and changes nothing else. `key` and `cost` get the same arguments as the handler. Without a key, a call
   * is not counted.
   */
  function limited({ key, limit, window, cost = 1, name = "limit", shadow = false, report }, handler) {
    if (!/^[\w.-]+$/.test(name)) throw new TypeError(`name is ${name}; expected letters, digits, "_", "." and "-"`);
    return async (...args) => {
      const counts = await key(...args);
      if (counts === undefined || counts === null) return handler(...args);
      const units = typeof cost === "function" ? await cost(...args) : cost;
      const counted = await count(`${name}:${counts}`, { limit, window, cost: units });
      await report?.(counted, ...args);
      if (!counted.allowed && !shadow) return tooManyRequests(counted, window, name);
      const response = await handler(...args);
      const absent = Object.entries(rateLimitFields(counted, window, name)).filter(
        ([field]) => !response.headers.has(field),
      );
      if (absent.length === 0) return response;
      // The headers of a response of `fetch` cannot be changed.
      const passed = new Response(response.body, response);
      for (const [field, value] of absent) passed.headers.set(field, value);
      return passed;
    };
  }

  return {
    limit: count,
    peek: counting(Change.Peek),
    refund: counting(Change.Refund),
    reset: counting(Change.Reset),
    limited,
  };
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
