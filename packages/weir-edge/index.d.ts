/** The caller of a request that passed all checks. */
export interface Caller {
  /** The subject of the verified token; null for an anonymous request. */
  user: string | null;
  /** The account that requests count against: the user, or the claim that HOLDER_CLAIM names. */
  account: string | null;
  /** The client's IPv4 address, its IPv6 prefix such as `2001:db8:1:2::/64`, or `unknown`. */
  address: string;
  /** When the token expires, in seconds since the Unix epoch; null for an anonymous request. */
  tokenExpiresAt: number | null;
  /** The claims of the token that ASSERTION_CLAIMS lists. */
  claims: Record<string, unknown>;
}

/** A route. See ROUTES in the documentation. */
export interface Route {
  methods?: string[];
  path: string;
  callers?: "anyone" | "signed_in";
  limits?: { by: "address" | "user" | { claim: string }; limit: number; window: string }[];
  skip?: boolean;
  pass?: ("authorization" | "cookie")[];
  origin?: string;
}

/**
 * The variables of `[vars]`, as `anonLimit` or `ANON_LIMIT`. Variables and secrets of the environment override them. All
 * are described in the reference of settings.
 */
export interface Options {
  anonLimit?: number;
  anonWindow?: number;
  routes?: Route[];
  /** `forward` (default): requests that match no route go to your handler without a limit. `not_found`: they get 404. */
  unmatched?: "forward" | "not_found";
  origins?: Record<string, string | { service: string; url?: string }>;
  jwksUrl?: string;
  jwtIssuer?: string;
  jwtAudience?: string | string[];
  /** Issuers in addition to that of the settings above, which then needs `jwtIssuer`. See ISSUERS in the documentation. */
  issuers?: {
    issuer: string;
    jwks_url?: string;
    /** The name of a secret of the Worker. */
    secret?: string;
    audience?: string | string[];
    required_claims?: string | string[];
    holder_claim?: string;
  }[];
  corsOrigins?: string | string[];
  [variable: string]: unknown;
}

/** The result of counting. */
export interface Counted {
  allowed: boolean;
  limit: number;
  remaining: number;
  /** Milliseconds until more units are allowed. */
  resetAfterMs: number;
}

/** A Worker's own handler. */
export type Next = (request: Request, caller: Caller) => Response | Promise<Response>;

export interface Weir {
  /** Answers a request: refuses it, or passes it to `next`, or to an origin that its route names. */
  handle(request: Request, env: object, ctx: unknown, next?: Next): Promise<Response>;
  /**
   * Counts `cost` units (default 1, at most 1000) of a key in a fixed window of `window` seconds. The count is exact and
   * worldwide. Either all units are counted or none.
   */
  limit(key: string, options: { limit: number; window: number; cost?: number }): Promise<Counted>;
}

/**
 * An edge of a Worker. Call this when the module is loaded. Calls with other options are separate edges with their own
 * counts. Calls with equal options are one edge.
 */
export function createWeir(options?: Options): Weir;

/** The Durable Object that counts. Export it, and bind it as ADDRESS_COUNTERS. */
export class AddressCounter {
  constructor(state: unknown, env: unknown);
  /** Marks a class of objects in the types that `wrangler types` generates. */
  readonly __DURABLE_OBJECT_BRAND: never;
}
