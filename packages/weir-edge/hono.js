// The edge as middleware of Hono.
import { limitWith } from "./hono-limit.js";
import { createWeir, limited } from "./index.js";

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

/** Middleware that only limits: `app.use(limit({ key: (c) => c.get("user"), limit: 60, window: 60 }))`. */
export const limit = limitWith(limited);
