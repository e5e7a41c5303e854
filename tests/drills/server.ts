import { randomBytes } from "node:crypto";
import { join } from "node:path";
import postgres from "postgres";
import { host } from "../../scripts/lib/ports.ts";
import { type Postgres, startPostgres } from "../../scripts/lib/postgres.ts";
import { type Lifetime, required, whenOver } from "../harness/lifetime.ts";
import { freePort } from "../harness/ports.ts";
import { type FailingProxy, startProxy } from "./proxy.ts";

/** A separate PostgreSQL that keeps every commit, with a database for a role without privileges. */
export interface DatabaseBehindProxy {
  proxy: FailingProxy;
  /** The URL for the role, through the proxy. */
  url: string;
  /** The same without the proxy. */
  appUrl: string;
  /** A superuser's session, not through the proxy. */
  admin(): postgres.Sql;
  /** The server's process id. */
  pid(): number;
  /** Ends the server with this signal, and waits until it has ended. */
  stopServer(signal: NodeJS.Signals): Promise<void>;
  startServer(): Promise<void>;
}

/**
 * Sessions that a fault may end at any moment. They look up no types when they connect, because a failed look-up would
 * be an unhandled rejection that ends the process. So lists are passed as JSON. The sessions last as long as the
 * server: by default, the client would end each after about half an hour, even during a statement.
 */
export function session(
  url: string,
  options: { max?: number; prepare?: boolean; connect_timeout?: number } = {},
): postgres.Sql {
  return postgres(url, {
    max: 1,
    onnotice: () => {},
    connect_timeout: 5,
    fetch_types: false,
    max_lifetime: null,
    ...options,
  });
}

/** More than all of Weir's processes need. */
export const maxConnections = 200;

export async function startDatabaseBehindProxy(
  lifetime: Lifetime,
  onLine: (line: string) => void = () => {},
  env: Record<string, string> = {},
): Promise<DatabaseBehindProxy> {
  const options = {
    data: join(required("WEIR_TEST_FOLDER"), `postgres-${randomBytes(4).toString("hex")}`),
    port: await freePort(),
    password: randomBytes(16).toString("hex"),
    settings: { fsync: "on", synchronous_commit: "on", max_connections: String(maxConnections) },
    onLine,
    env,
    tied: true,
  };
  let server: Postgres = await startPostgres(options);
  whenOver(lifetime, () => server.service.stop());
  // Callers request a session and use it immediately, so this waits as long as a busy machine needs.
  const admin = (): postgres.Sql => session(server.url("weir"), { connect_timeout: 60 });
  // A superuser could use the connections that are reserved for superusers.
  const setup = postgres(server.url("postgres"), { max: 1, onnotice: () => {} });
  // Otherwise logins would take most of the time of a reconnection in an unoptimised binary.
  await setup.unsafe("SET scram_iterations = 1");
  await setup.unsafe(`CREATE ROLE app LOGIN PASSWORD '${options.password}'`);
  await setup.unsafe("CREATE DATABASE weir OWNER app");
  await setup.end({ timeout: 5 });
  const proxy = await startProxy(options.port);
  whenOver(lifetime, () => proxy.close());
  const url = (port: number): string => `postgres://app:${options.password}@${host}:${port}/weir`;
  return {
    proxy,
    url: url(proxy.port),
    appUrl: url(options.port),
    admin,
    pid: () => server.service.pid ?? 0,
    async stopServer(signal) {
      process.kill(server.service.pid ?? 0, signal);
      await server.service.ended;
    },
    async startServer() {
      server = await startPostgres(options);
    },
  };
}
