// The Worker's entry point. Decisions are made in Rust; this file has only code that requires JavaScript.
import { DurableObject } from "cloudflare:workers";
import { AddressCounter as Counter, fetch as handle, __worker_init_state as program } from "../build/index.js";

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
      this.#counter = new Counter(this.ctx, this.env);
      this.#instance = instanceId;
    }
    return this.#counter;
  }

  take(kind, upper, lower, knownUsed, knownResetAt) {
    const result = this.#live().take(kind, upper, lower, knownUsed, knownResetAt);
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
const preserved = new Map();
globalThis.weirPanics = {
  save(owner, counts) {
    preserved.set(owner, counts);
  },
  restore(owner) {
    const counts = preserved.get(owner);
    preserved.delete(owner);
    return counts;
  },
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

export default {
  async fetch(request, env, ctx) {
    const { promise: answered, resolve, reject } = Promise.withResolvers();
    running.add(reject);
    try {
      handle(request, env, ctx).then(resolve, reject);
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
  },
};
