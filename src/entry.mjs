// What the runtime sees of the Worker. Everything is decided in Rust; here stands what only JavaScript can say.
import { DurableObject, WorkerEntrypoint } from "cloudflare:workers";
import Edge, { AddressCounter as Counter } from "../build/index.js";

// Rust's futures go on by microtask, some ten times a request, and the runtime's own queueMicrotask takes twenty times
// as long as a promise that is kept already (2.4 µs and 0.1 µs).
const already = Promise.resolve();
globalThis.queueMicrotask = (task) => void already.then(task);

// As policy/src/purse.rs has it.
const soon = 250;

// Objects can be called by method only if their class extends this one.
export class AddressCounter extends DurableObject {
  #counter;

  constructor(state, env) {
    super(state, env);
    this.#counter = new Counter(state, env);
  }

  take(kind, upper, lower, seenUsed, seenResetAt) {
    const verdict = this.#counter.take(kind, upper, lower, seenUsed, seenResetAt);
    if (verdict < 0) setTimeout(() => this.#counter.settle(), soon);
    return Math.abs(verdict);
  }

  alarm() {
    return this.#counter.alarm();
  }

  costs() {
    return [...this.#counter.costs()];
  }
}

// After a panic in Rust, its memory is gone, and with it every request that was under way in this isolate. See panics.rs.
const underWay = new Set();
const kept = new Map();
globalThis.weirPanics = {
  keep(owner, counts) {
    kept.set(owner, counts);
  },
  takeBack(owner) {
    const counts = kept.get(owner);
    kept.delete(owner);
    return counts;
  },
  happened(message) {
    for (const abandon of underWay) abandon(new Error(message));
    underWay.clear();
  },
};

const internalError = JSON.stringify({
  type: "about:blank",
  title: "Internal Server Error",
  status: 500,
  detail: "The edge could not handle the request.",
});

// One for the isolate. It asks for the bindings, which are the same for all requests, and not for a request's context.
let edge;

export default class extends WorkerEntrypoint {
  async fetch(request) {
    const panicked = Promise.withResolvers();
    underWay.add(panicked.reject);
    try {
      edge ??= new Edge(this.ctx, this.env);
      return await Promise.race([edge.fetch(request), panicked.promise]);
    } catch (error) {
      // A bug: Rust answers everything else by itself.
      console.error(JSON.stringify({ event: "panic", detail: String(error?.message ?? error) }));
      return new Response(internalError, {
        status: 500,
        headers: { "content-type": "application/problem+json", "cache-control": "no-store" },
      });
    } finally {
      underWay.delete(panicked.reject);
    }
  }
}
