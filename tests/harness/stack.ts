import { randomInt } from "node:crypto";
import { type Database, freshDatabase } from "./database.ts";
import { type Edge, startEdge } from "./edge.ts";
import { freshSecrets, type Secrets } from "./identity.ts";
import type { Lifetime } from "./lifetime.ts";
import { type Origin, type Ran, startOrigin, weir } from "./weir.ts";

/** Edge, origin, workers and database, as `npm start` runs them. */
export interface Stack {
  database: Database;
  secrets: Secrets;
  origin: Origin;
  edge: Edge;
  /** Runs a subcommand of the binary against this stack. */
  weir(...args: string[]): Promise<Ran>;
}

export async function startStack(
  lifetime: Lifetime,
  options: { env?: Record<string, string>; vars?: Record<string, string> } = {},
): Promise<Stack> {
  const secrets = freshSecrets();
  const database = await freshDatabase(lifetime);
  const origin = await startOrigin(lifetime, { database, secrets, ...(options.env ? { env: options.env } : {}) });
  const edge = await startEdge(lifetime, {
    originUrl: origin.url,
    secrets,
    ...(options.vars ? { vars: options.vars } : {}),
  });
  return { database, secrets, origin, edge, weir: (...args) => weir(args, origin.env) };
}

/** A random client address, so that tests do not use up each other's limits. */
export function someAddress(): string {
  return `198.${18 + randomInt(2)}.${randomInt(256)}.${1 + randomInt(254)}`;
}
