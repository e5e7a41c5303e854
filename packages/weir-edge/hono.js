// The edge as middleware of Hono.
import { limit as count, createWeir, rateLimitFields, tooManyRequests } from "./index.js";

/** Middleware: `app.use(weir({ anonLimit: 10 }))`. Handlers read the caller by `c.get("caller")`. */
export function weir(options) {
  const edge = createWeir(options);
  return async (c, next) => {
    // The edge needs no execution context. Hono's throws if there is none, as with `app.request` in tests.
    const response = await edge.handle(c.req.raw, c.env, undefined, async (request, caller) => {
      c.req.raw = request;
      c.set("caller", caller);
      await next();
      return c.res;
    });
    // Hono would merge the headers of the two responses otherwise.
    c.res = undefined;
    c.res = response;
  };
}

/**
 * Middleware that only limits: it adds the RateLimit fields unless the handler sets them, and changes nothing else. `key`
 * returns the text to count by, or nothing for a request without a limit. With `shadow`, no request is refused.
 */
export function limit({ key, limit, window, cost = 1, name = "limit", shadow = false }) {
  if (!/^[\w.-]+$/.test(name)) throw new TypeError(`name is ${name}; expected letters, digits, "_", "." and "-"`);
  return async (c, next) => {
    const counts = await key(c);
    if (counts === undefined || counts === null) return next();
    const units = typeof cost === "function" ? await cost(c) : cost;
    const counted = await count(`${name}:${counts}`, { limit, window, cost: units });
    if (!counted.allowed && !shadow) return tooManyRequests(counted, window, name);
    await next();
    for (const [field, value] of Object.entries(rateLimitFields(counted, window, name)))
      if (!c.res.headers.has(field)) c.header(field, value);
  };
}
