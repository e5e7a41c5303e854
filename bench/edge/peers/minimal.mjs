// The smallest JavaScript version of the edge's task: one object per address, which writes each admitted request.
// Without the write, it would lose counts when it is evicted. It verifies no token and signs no assertion.
import { DurableObject } from "cloudflare:workers";
import { denial } from "./denial.mjs";

const limit = 10;
const window = 60_000;
export const counted = { calls: 0, rows: 0 };

export class PerAddress extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    this.window = ctx.storage.kv.get("window");
  }

  take() {
    counted.calls++;
    const now = Date.now();
    if (!this.window || now >= this.window.end) {
      this.window = { end: now + window, used: 0 };
      this.ctx.storage.setAlarm(this.window.end);
      counted.rows++;
    }
    const { end, used } = this.window;
    if (used >= limit) return { admitted: false, remaining: 0, reset: end - now };
    this.window.used++;
    this.ctx.storage.kv.put("window", this.window);
    counted.rows++;
    return { admitted: true, remaining: limit - used - 1, reset: end - now };
  }

  alarm() {
    counted.calls++;
    return this.ctx.storage.deleteAll();
  }
}

export default {
  async fetch(request, env) {
    const url = new URL(request.url);
    if (url.pathname === "/costs") return Response.json(counted);
    const address = request.headers.get("cf-connecting-ip");
    const { admitted, remaining, reset } = await env.COUNTERS.getByName(address).take();
    const seconds = Math.ceil(reset / 1000);
    if (!admitted) {
      return new Response(denial, {
        status: 429,
        headers: {
          "content-type": "application/problem+json",
          "cache-control": "no-store",
          "retry-after": String(seconds),
          "ratelimit-policy": `"anon";q=${limit};w=${window / 1000}`,
          ratelimit: `"anon";r=0;t=${seconds}`,
        },
      });
    }
    const answer = await fetch(env.ORIGIN_URL + url.pathname + url.search, request);
    const headers = new Headers(answer.headers);
    headers.set("ratelimit-policy", `"anon";q=${limit};w=${window / 1000}`);
    headers.set("ratelimit", `"anon";r=${remaining};t=${seconds}`);
    return new Response(answer.body, { status: answer.status, headers });
  },
};
