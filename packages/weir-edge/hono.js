// The edge as middleware of Hono.
import { createWeir } from "./index.js";

/** Middleware: `app.use(weir({ anonLimit: 10 }))`. Handlers read the caller by `c.get("caller")`. */
export function weir(options) {
  const edge = createWeir(options);
  return async (c, next) => {
    const response = await edge.handle(c.req.raw, c.env, c.executionCtx, async (request, caller) => {
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
