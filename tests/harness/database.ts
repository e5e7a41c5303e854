import { randomBytes } from "node:crypto";
import postgres from "postgres";
import { type Lifetime, required, whenOver } from "./lifetime.ts";

export interface Database {
  url: string;
  sql: postgres.Sql;
}

/** An empty database on the test run's PostgreSQL, dropped after the test. */
export async function freshDatabase(lifetime: Lifetime): Promise<Database> {
  const server = required("WEIR_TEST_DATABASE_URL");
  const name = `test_${randomBytes(6).toString("hex")}`;
  const admin = postgres(server, { max: 1, onnotice: () => {} });
  await admin`CREATE DATABASE ${admin(name)}`;
  const url = new URL(server);
  url.pathname = `/${name}`;
  const sql = postgres(url.href, { max: 4, onnotice: () => {} });
  whenOver(lifetime, async () => {
    await sql.end({ timeout: 2 });
    await admin`DROP DATABASE IF EXISTS ${admin(name)} WITH (FORCE)`;
    await admin.end({ timeout: 2 });
  });
  return { url: url.href, sql };
}
