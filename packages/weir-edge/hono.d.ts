import type { MiddlewareHandler } from "hono";
import type { Caller, Options } from "./index.js";

export type { Caller, Options } from "./index.js";
export { limit } from "./limit-hono.js";

/** The variables of Hono's context: `new Hono<{ Variables: WeirVariables }>()`. */
export interface WeirVariables {
  caller: Caller;
}

/** Middleware for Hono: `app.use(weir({ anonLimit: 10 }))`. Handlers read the caller by `c.get("caller")`. */
export function weir(options?: Options): MiddlewareHandler<{ Variables: WeirVariables }>;
