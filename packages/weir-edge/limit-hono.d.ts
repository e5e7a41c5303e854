import type { Context, MiddlewareHandler } from "hono";
import type { LimitOptions } from "./limit.js";

/** Middleware that only limits: `app.use(limit({ key: (c) => c.get("user"), limit: 60, window: 60 }))`. */
export function limit(options: LimitOptions<[Context]>): MiddlewareHandler;
