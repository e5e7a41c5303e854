import type { limit } from "./limit.js";

export {
  AddressCounter,
  type Counted,
  type Limit,
  type LimitOptions,
  limit,
  limited,
  peek,
  rateLimitFields,
  refund,
  reset,
  tooManyRequests,
} from "./limit.js";

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
  limits?: RouteLimit[];
  skip?: boolean;
  pass?: ("authorization" | "cookie")[];
  origin?: string;
  max_body_bytes?: number;
}

/** A limit of a route. See ROUTES in the documentation. */
export interface RouteLimit {
  by: "address" | "any_address" | "user" | { claim: string } | { header: string };
  limit: number;
  window: string;
  /** The claim that names users' plans, and the limits of plans. `limit` is that of all others. */
  of?: { claim: string; [plan: string]: string | number };
}

/** Another issuer. See ISSUERS in the documentation. */
export interface Issuer {
  issuer: string;
  jwks_url?: string;
  /** The name of a secret of the Worker. */
  secret?: string;
  audience?: string | string[];
  required_claims?: string | string[];
  holder_claim?: string;
}

/** The settings in camel case. The reference of settings describes them. */
interface Settings {
  accessLog?: "errors" | "off" | "all";
  allow?: string | string[];
  anonAlgorithm?: "fixed" | "sliding";
  anonLimit?: number;
  anonMode?: "enforce" | "shadow";
  anonPrefixLimit?: number;
  anonReadLimit?: number;
  anonWindow?: number;
  assertionClaims?: string | string[];
  clientIpSource?: "cloudflare" | "proxy";
  corsMethods?: string | string[];
  corsOrigins?: string | string[];
  corsRequestHeaders?: string | string[];
  corsResponseHeaders?: string | string[];
  counterShards?: number;
  counterTimeoutMs?: number;
  deny?: string | string[];
  development?: boolean | "off" | "on";
  drills?: boolean | "off" | "on";
  edgeSecret?: string;
  holderClaim?: string;
  identityHeaders?: string | string[];
  ipv6Prefix?: number;
  /** Issuers in addition to that of `jwtSecret` or `jwksUrl`, which then needs `jwtIssuer`. */
  issuers?: Issuer[];
  jwksCooldownMs?: number;
  jwksMaxAgeMs?: number;
  jwksUrl?: string;
  jwtAudience?: string | string[];
  jwtIssuer?: string;
  jwtRequiredClaims?: string | string[];
  jwtSecret?: string;
  limitedRoutes?: string | string[];
  maxBodyBytes?: number;
  originTimeoutMs?: number;
  originUrl?: string;
  origins?: Record<string, string | { service: string; url?: string }>;
  reportIntervalMs?: number;
  routes?: Route[];
  tokenCookie?: string;
  /** `forward` (default): requests that match no route go to your handler without a limit. `not_found`: they get 404. */
  unmatched?: "forward" | "not_found" | "assets";
  uploadTimeoutMs?: number;
  userLimit?: number;
  userWindow?: number;
  withoutCounter?: "closed" | "open";
}

/** ANON_LIMIT for anonLimit. */
type VariableName<Option extends string> = Option extends `${infer First}${infer Rest}`
  ? `${First extends Lowercase<First> ? Uppercase<First> : `_${First}`}${VariableName<Rest>}`
  : "";

/**
 * The settings, as `anonLimit` or `ANON_LIMIT`. They override the variables and secrets `WEIR_ANON_LIMIT` and so on. An unknown
 * option is a TypeError.
 */
export type Options = Settings & { [Option in keyof Settings as VariableName<Option>]: Settings[Option] };

/** A Worker's own handler. */
export type Next = (request: Request, caller: Caller) => Response | Promise<Response>;

export interface Weir {
  /** Answers a request: refuses it, or passes it to `next`, or to an origin that its route names. */
  handle(request: Request, env: object, ctx: unknown, next?: Next): Promise<Response>;
  /** `limit` of this module. It is the same for all edges. */
  limit: typeof limit;
}

/**
 * An edge of a Worker. Call this when the module is loaded. Calls with other options are separate edges with their own
 * counts. Calls with equal options are one edge.
 */
export function createWeir(options?: Options): Weir;
