/** A limit. Each combination of `limit` and `window` has its own counts. */
export interface Limit {
  /** Units per window, at most 1 048 575. */
  limit: number;
  /** The length of the window in seconds, up to a day. It begins with a key's first unit. */
  window: number;
  /** Units to count or to take back (default 1, at most 1000). */
  cost?: number;
}

/** The result of counting. */
export interface Counted {
  allowed: boolean;
  limit: number;
  remaining: number;
  /** Milliseconds until more units are allowed. */
  resetAfterMs: number;
}

/** Counts units of a key, which is any text. The count is exact and worldwide. Either all units are counted or none. */
export function limit(key: string, limit: Limit): Promise<Counted>;

/** The count of a key, without counting: `allowed` is whether one unit would be. */
export function peek(key: string, limit: Limit): Promise<Counted>;

/**
 * Takes back the units of an action that failed. Call it before the window ends: later, they would be units of the next one.
 * Other isolates learn of it within ten seconds.
 */
export function refund(key: string, limit: Limit): Promise<Counted>;

/** Takes back all units of a key. Other isolates learn of it within ten seconds. */
export function reset(key: string, limit: Limit): Promise<Counted>;

/** The options of a limit of requests. `Arguments` are those of the handler. */
export interface LimitOptions<Arguments extends unknown[]> {
  /** The text to count by, such as a user's id. Without one, the request has no limit. */
  key: (...args: Arguments) => string | null | undefined | Promise<string | null | undefined>;
  /** Units per window, at most 1 048 575. */
  limit: number;
  /** Seconds, up to a day. */
  window: number;
  /** Units of a request (default 1, at most 1000). */
  cost?: number | ((...args: Arguments) => number | Promise<number>);
  /** The policy's name in the RateLimit fields (default `limit`). Limits with the same name, numbers and key share counts. */
  name?: string;
  /** Counts and reports, and refuses nothing. */
  shadow?: boolean;
  /** Called with each result, for logs and analytics. */
  report?: (counted: Counted, ...args: Arguments) => unknown;
}

/** A handler with a limit: `export default { fetch: limited({ key, limit: 60, window: 60 }, handler) }`. */
export function limited<Handler extends (...args: never[]) => Response | Promise<Response>>(
  options: LimitOptions<Parameters<Handler>>,
  handler: Handler,
): (...args: Parameters<Handler>) => Promise<Response>;

/** The fields RateLimit-Policy and RateLimit of a result of `limit`. `name` is that of the policy (default `limit`). */
export function rateLimitFields(counted: Counted, window: number, name?: string): Record<string, string>;

/** The 429 for a result of `limit` that is not allowed. */
export function tooManyRequests(counted: Counted, window: number, name?: string): Response;

/** The Durable Object that counts. Export it, and bind it as ADDRESS_COUNTERS. */
export class AddressCounter {
  constructor(state: unknown, env: unknown);
  /** Marks a class of objects in the types that `wrangler types` generates. */
  readonly __DURABLE_OBJECT_BRAND: never;
}
