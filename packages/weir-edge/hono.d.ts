import type { Context, MiddlewareHandler } from "hono";
import type { Caller, Options } from "./index.js";

export type { Caller, Options } from "./index.js";

/** The variables of Hono's context: `new Hono<{ Variables: WeirVariables }>()`. */
export interface WeirVariables {
  caller: Caller;
}

/** Middleware for Hono: `app.use(weir({ anonLimit: 10 }))`. Handlers read the caller by `c.get("caller")`. */
export function weir(options?: Options): MiddlewareHandler<{ Variables: WeirVariables }>;

/** The options of `limit()`. */
export interface LimitOptions {
  /** The text to count by, such as a user's id. Without one, the request has no limit. */
  key: (c: Context) => string | null | undefined | Promise<string | null | undefined>;
  /** Units per window. */
  limit: number;
  /** Seconds, up to a day. */
  window: number;
  /** Units of a request (default 1, at most 1000). */
  cost?: number | ((c: Context) => number | Promise<number>);
  /** The policy's name in the RateLimit fields (default `limit`). Equal names share counts. */
  name?: string;
  /** Counts and refuses nothing. */
  shadow?: boolean;
}

/** Middleware that only limits: `app.use(limit({ key: (c) => c.get("user"), limit: 60, window: 60 }))`. */
export function limit(options: LimitOptions): MiddlewareHandler;
