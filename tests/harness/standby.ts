import { randomBytes, randomUUID } from "node:crypto";
import { appendFile, chown, rm, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import postgres from "postgres";
import { ensureDatabase, type PostgresOptions, startPostgres } from "../../scripts/lib/postgres.ts";
import { run, type Service } from "../../scripts/lib/process.ts";
import type { Database } from "./database.ts";
import { type Lifetime, required, whenOver } from "./lifetime.ts";
import { freePort } from "./ports.ts";

/** A server, and an empty database on it. */
export interface Server extends Database {
  service: Service;
}

async function start(lifetime: Lifetime, options: PostgresOptions): Promise<Server> {
  const started = await startPostgres(options);
  whenOver(lifetime, () => started.service.stop());
  const url = started.url("weir");
  const sql = postgres(url, { max: 4, onnotice: () => {} });
  whenOver(lifetime, () => sql.end({ timeout: 2 }));
  return { service: started.service, url, sql };
}

/** A primary, and a standby that follows it asynchronously. */
export async function primaryWithStandby(lifetime: Lifetime, settings: Record<string, string> = {}) {
  const folder = required("WEIR_TEST_FOLDER");
  const password = randomBytes(16).toString("hex");
  const data = join(folder, `primary-${randomUUID()}`);
  const copy = `${data}-standby`;
  whenOver(lifetime, async () => {
    for (const made of [data, copy]) await rm(made, { recursive: true, force: true });
  });
  const options = { data, port: await freePort(), password, settings: { max_connections: "100", ...settings } };
  const first = await startPostgres(options);
  await ensureDatabase(first, "weir");
  await first.service.stop();
  await run("cp", ["-a", data, copy]);
  const leader = `host=127.0.0.1 port=${options.port} user=weir password=${password} application_name=standby`;
  await appendFile(join(copy, "postgresql.auto.conf"), `primary_conninfo = '${leader}'\n`);
  const signal = join(copy, "standby.signal");
  await writeFile(signal, "");
  const { uid, gid } = await stat(data);
  await chown(signal, uid, gid);
  const primary = await start(lifetime, options);
  const standby = await start(lifetime, { ...options, data: copy, port: await freePort() });
  return {
    primary,
    standby,
    /** Stops both, and starts the standby at the primary's address, as its successor. */
    async failOver(): Promise<Server> {
      await primary.service.stop();
      await standby.service.stop();
      const promoted = await start(lifetime, { ...options, data: copy });
      await promoted.sql`SELECT pg_promote()`;
      return promoted;
    },
  };
}
