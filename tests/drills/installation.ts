import { randomBytes } from "node:crypto";
import { join } from "node:path";
import postgres from "postgres";
import { host } from "../../scripts/lib/ports.ts";
import { type Postgres, startPostgres } from "../../scripts/lib/postgres.ts";
import { startEdge } from "../harness/edge.ts";
import { freshSecrets, tokenFor } from "../harness/identity.ts";
import { type Lifetime, required, whenOver } from "../harness/lifetime.ts";
import { freePort } from "../harness/ports.ts";
import { someAddress } from "../harness/stack.ts";
import { type Origin, startOrigin, type weirEnvironment } from "../harness/weir.ts";
import { Caller } from "../whole/jobs.ts";
import { type FailingProxy, startProxy } from "./proxy.ts";

/** A whole installation: edge, API, worker and scheduler as processes of their own, and a database behind a proxy. */
export interface Installation {
  proxy: FailingProxy;
  parts: Origin[];
  /** A client of the edge with an address of its own. */
  caller(user: string): Promise<Caller>;
  /** As a superuser, and not through the proxy. */
  admin(): postgres.Sql;
  /** The URL of the role that Weir connects as, without the proxy. */
  appUrl: string;
  env: ReturnType<typeof weirEnvironment>;
  /** Ends the server with this signal, and waits until it is gone. */
  stopServer(signal: NodeJS.Signals): Promise<void>;
  startServer(): Promise<void>;
}

export const maxConnections = 100;

/** With the binary under test, or another. */
export async function startInstallation(lifetime: Lifetime, binary?: string): Promise<Installation> {
  const options = {
    data: join(required("WEIR_TEST_FOLDER"), `postgres-${randomBytes(4).toString("hex")}`),
    port: await freePort(),
    password: randomBytes(16).toString("hex"),
    settings: { fsync: "on", synchronous_commit: "on", max_connections: String(maxConnections) },
  };
  let server: Postgres = await startPostgres(options);
  whenOver(lifetime, () => server.service.stop());
  const admin = (): postgres.Sql => postgres(server.url("weir"), { max: 1, onnotice: () => {}, connect_timeout: 5 });
  // A superuser could use the connections that are reserved for superusers.
  const setup = postgres(server.url("postgres"), { max: 1, onnotice: () => {} });
  await setup.unsafe(`CREATE ROLE app LOGIN PASSWORD '${options.password}'`);
  await setup.unsafe("CREATE DATABASE weir OWNER app");
  await setup.end({ timeout: 5 });
  const proxy = await startProxy(options.port);
  whenOver(lifetime, () => proxy.close());

  const url = (port: number): string => `postgres://app:${options.password}@${host}:${port}/weir`;
  const secrets = freshSecrets();
  const database = { url: url(proxy.port), sql: undefined as never };
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
    proxy,
    parts,
    caller: async (user) => new Caller(edge.from(someAddress()), await tokenFor(secrets.jwt, user)),
    admin,
    appUrl: url(options.port),
    env: origin.env,
    async stopServer(signal) {
      process.kill(server.service.pid ?? 0, signal);
      await server.service.ended;
    },
    async startServer() {
      server = await startPostgres(options);
    },
  };
}
