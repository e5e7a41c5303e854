/** The anonymous allowance in a response's fields RateLimit and RateLimit-Policy. */
export interface Allowance {
  limit: number | undefined;
  left: number;
  /** When it is fully restored, by this machine's clock. */
  renewsAt: number;
}

/**
 * Reads the first policy of the fields. Returns undefined if they are missing or malformed, or if they are a plan's.
 */
export function allowanceOf(headers: Headers): Allowance | undefined {
  const state = parameters(headers.get("RateLimit"));
  const left = state?.get("r");
  if (left === undefined) return undefined;
  return {
    limit: parameters(headers.get("RateLimit-Policy"))?.get("q"),
    left,
    renewsAt: Date.now() + (state?.get("t") ?? 0) * 1000,
  };
}

/** The wait that a response requests, in seconds. */
export function retryAfter(headers: Headers): number | undefined {
  const text = headers.get("Retry-After");
  return text !== null && /^\d+$/.test(text) ? Number(text) : undefined;
}

function parameters(field: string | null): Map<string, number> | undefined {
  const item = /^\s*"anon[^"]*"((?:\s*;\s*[a-z]+=[^;,]*)*)/.exec(field ?? "");
  if (!item) return undefined;
  return new Map([...(item[1] ?? "").matchAll(/([a-z]+)=(\d+)/g)].map((match) => [match[1] ?? "", Number(match[2])]));
}
