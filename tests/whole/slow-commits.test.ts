import assert from "node:assert/strict";
import { randomBytes, randomUUID } from "node:crypto";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { it, type TestContext } from "node:test";
import postgres from "postgres";
import { ensureDatabase, startPostgres } from "../../scripts/lib/postgres.ts";
import type { Database } from "../harness/database.ts";
import { freshSecrets } from "../harness/identity.ts";
import { required, whenOver } from "../harness/lifetime.ts";
import { freePort } from "../harness/ports.ts";
import { until } from "../harness/until.ts";
import { startOrigin, weir } from "../harness/weir.ts";
import { goFile } from "./samples.ts";

const clients = 16;
const jobsOfEach = 6;

/** A server that flushes each commit 50 ms late, as with a distant synchronous standby. */
async function slowServer(t: TestContext): Promise<Database> {
  const data = join(required("WEIR_TEST_FOLDER"), `slow-${randomUUID()}`);
  whenOver(t, () => rm(data, { recursive: true, force: true }));
  const server = await startPostgres({
    data,
    port: await freePort(),
    password: randomBytes(16).toString("hex"),
    tied: true,
    settings: { fsync: "on", synchronous_commit: "on", commit_delay: "50000", commit_siblings: "0" },
  });
  whenOver(t, () => server.service.stop());
  await ensureDatabase(server, "weir");
  const url = server.url("weir");
  const sql = postgres(url, { max: clients, onnotice: () => {} });
  whenOver(t, () => sql.end({ timeout: 2 }));
  return { url, sql };
}

it("accepts and finishes jobs while commits are slow, and blames no lock", async (t) => {
  const database = await slowServer(t);
  const origin = await startOrigin(t, { database, secrets: freshSecrets() });
  const created = await weir(["key", "create", "--name", "test", "--scope", "submit"], origin.env);
  const key = created.stdout.trim().split("\n").at(-1) ?? "";
  const submitByHttp = async (user: string): Promise<void> => {
    const response = await fetch(`${origin.url}/api/jobs/analysis`, {
      method: "POST",
      headers: { Authorization: `Bearer ${key}`, "Weir-On-Behalf-Of": user, "Content-Type": "application/json" },
      body: JSON.stringify({ files: [goFile] }),
    });
    assert.equal(response.status, 202, await response.text());
  };
  const submitBySql = async (user: string): Promise<void> => {
    const args = database.sql.json({ files: [goFile] } as never);
    const [row] = await database.sql`SELECT outcome FROM weir_submit(${user}, 'analysis', ${args}, 1)`;
    assert.match(row?.outcome, /admitted|parked/);
  };
  await Promise.all(
    Array.from({ length: clients }, async (_, number) => {
      const user = `user-${number}`;
      for (let n = 0; n < jobsOfEach; n++) await (n % 2 === 0 ? submitByHttp : submitBySql)(user);
    }),
  );
  await until("all jobs to be completed", async () => {
    const [row] = await database.sql`SELECT count(*)::int AS done FROM river_job WHERE state = 'completed'`;
    return row?.done === clients * jobsOfEach;
  });
  const metrics = await (await fetch(`${origin.url}/metrics`)).text();
  assert.match(metrics, /^weir_blocked_holders_total 0$/m);
  const audited = await weir(["audit"], origin.env);
  assert.equal(audited.code, 0, audited.stdout);
});
