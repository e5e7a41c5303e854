// A common solution: hono with hono-rate-limiter and its Durable Object store, configured as in its README.
import { DurableObjectRateLimiter, DurableObjectStore } from "@hono-rate-limiter/cloudflare";
import { Hono } from "hono";
import { rateLimiter } from "hono-rate-limiter";

export { DurableObjectRateLimiter };

export const counted = { calls: 0, rows: 0 };

/**
 * The same, but counts calls and writes. Only used for the table of costs, because the extra look at the alarm takes
 * time.
 */
export class CountedRateLimiter extends DurableObjectRateLimiter {
  async update(hits, windowMs) {
    counted.calls++;
    if ((await this.ctx.storage.getAlarm()) == null) counted.rows++;
    counted.rows++;
    return super.update(hits, windowMs);
  }

  async alarm() {
    counted.calls++;
    counted.rows++;
    return super.alarm();
  }
}

const app = new Hono();
app.get("/costs", (c) => c.json(counted));
app.use("/api/jobs/*", (c, next) =>
  rateLimiter({
    windowMs: 60_000,
    limit: 10,
    standardHeaders: "draft-7",
    keyGenerator: (c) => c.req.header("cf-connecting-ip"),
    store: new DurableObjectStore({ namespace: c.env.COUNTERS }),
  })(c, next),
);
app.all("/api/*", (c) => {
  const url = new URL(c.req.url);
  return fetch(c.env.ORIGIN_URL + url.pathname + url.search, c.req.raw);
});

export default app;
