import { startEdge } from "../harness/edge.ts";
import { freshSecrets, tokenFor } from "../harness/identity.ts";
import type { Lifetime } from "../harness/lifetime.ts";
import { freePort } from "../harness/ports.ts";
import { someAddress } from "../harness/stack.ts";
import { type Origin, startOrigin, type weirEnvironment } from "../harness/weir.ts";
import { Caller } from "../whole/jobs.ts";
import { type DatabaseBehindProxy, startDatabaseBehindProxy } from "./server.ts";

/** A whole installation: edge, API, worker and scheduler as separate processes, and a database behind a proxy. */
export interface Installation extends DatabaseBehindProxy {
  parts: Origin[];
  /** A client of the edge with a separate address. */
  caller(user: string): Promise<Caller>;
  env: ReturnType<typeof weirEnvironment>;
}

/** Starts the binary under test, or another. */
export async function startInstallation(lifetime: Lifetime, binary?: string): Promise<Installation> {
  const behind = await startDatabaseBehindProxy(lifetime);
  const secrets = freshSecrets();
  const database = { url: behind.url, sql: undefined as never };
  const parts: Origin[] = [];
  for (const part of ["serve", "work", "schedule"]) {
    const port = await freePort();
    const env = { WEIR_METRICS_PORT: String(port), RUST_LOG: "warn" };
    parts.push(
      await startOrigin(lifetime, { database, secrets, args: [part], port, env, ...(binary ? { binary } : {}) }),
    );
  }
  const [origin] = parts;
  if (!origin) throw new Error("unreachable: three parts were started");
  const edge = await startEdge(lifetime, { originUrl: origin.url, secrets });
  return {
    ...behind,
    parts,
    caller: async (user) => new Caller(edge.from(someAddress()), await tokenFor(secrets.jwt, user)),
    env: origin.env,
  };
}
