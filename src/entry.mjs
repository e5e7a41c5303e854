// What the runtime sees of the Worker. Everything is decided in Rust; here stands what only JavaScript can say.
import { DurableObject, WorkerEntrypoint } from "cloudflare:workers";
import Edge, { AddressCounter as Counter } from "../build/index.js";

// Objects can be called by method only if their class extends this one.
export class AddressCounter extends DurableObject {
  #counter;

  constructor(state, env) {
    super(state, env);
    this.#counter = new Counter(state, env);
  }

  take(kind, upper, lower, seenUsed, seenResetAt) {
    return this.#counter.take(kind, upper, lower, seenUsed, seenResetAt);
  }

  alarm() {
    return this.#counter.alarm();
  }

  costs() {
    return [...this.#counter.costs()];
  }
}

const internalError = JSON.stringify({
  type: "about:blank",
  title: "Internal Server Error",
  status: 500,
  detail: "The edge could not handle the request.",
});

export default class extends WorkerEntrypoint {
  async fetch(request) {
    try {
      return await new Edge(this.ctx, this.env).fetch(request);
    } catch (error) {
      // A bug: Rust answers everything else by itself.
      console.error(JSON.stringify({ event: "panic", detail: String(error?.message ?? error) }));
      return new Response(internalError, {
        status: 500,
        headers: { "content-type": "application/problem+json", "cache-control": "no-store" },
      });
    }
  }
}
