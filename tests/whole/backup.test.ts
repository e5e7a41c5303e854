import assert from "node:assert/strict";
import { randomBytes, randomUUID } from "node:crypto";
import { chown, rm, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import postgres from "postgres";
import { ensureDatabase, type PostgresOptions, startPostgres } from "../../scripts/lib/postgres.ts";
import { run } from "../../scripts/lib/process.ts";
import { startEdge } from "../harness/edge.ts";
import { freshSecrets, tokenFor } from "../harness/identity.ts";
import { required, whenOver } from "../harness/lifetime.ts";
import { freePort } from "../harness/ports.ts";
import { someAddress } from "../harness/stack.ts";
import { startOrigin, weir } from "../harness/weir.ts";
import { Caller } from "./jobs.ts";
import { goFile } from "./samples.ts";

const secrets = freshSecrets();

async function server(lifetime: Parameters<typeof whenOver>[0], data: string, password: string) {
  const options: PostgresOptions = { data, port: await freePort(), password, settings: { max_connections: "100" } };
  const started = await startPostgres(options);
  whenOver(lifetime, () => started.service.stop());
  await ensureDatabase(started, "weir");
  const url = started.url("weir");
  const sql = postgres(url, { max: 1, onnotice: () => {} });
  whenOver(lifetime, () => sql.end({ timeout: 2 }));
  return { url, sql };
}

it("every job of a backup taken during work ends and is charged once", async (t) => {
  const folder = required("WEIR_TEST_FOLDER");
  const password = randomBytes(16).toString("hex");
  const data = join(folder, `postgres-${randomBytes(4).toString("hex")}`);
  const copy = `${data}-restored`;
  whenOver(t, () => rm(copy, { recursive: true, force: true }));
  const original = await server(t, data, password);
  const before = await startOrigin(t, { database: original, secrets });
  const edge = await startEdge(t, { originUrl: before.url, secrets });
  const users = await Promise.all(
    Array.from({ length: 6 }, async () => {
      const id = randomUUID();
      return { id, caller: new Caller(edge.from(someAddress()), await tokenFor(secrets.jwt, id)) };
    }),
  );
  const submitAll = () => Promise.all(users.map(({ caller }) => caller.accepted("analysis", { files: [goFile] })));
  const inTheBackup: number[] = [];
  for (let times = 0; times < 3; times++) inTheBackup.push(...(await submitAll()).map(({ job }) => job.id));

  // Takes a base backup as in PostgreSQL's manual, while jobs are submitted and run.
  await original.sql`SELECT pg_backup_start('test', fast => true)`;
  await Promise.all([run("cp", ["-a", data, copy]), submitAll()]);
  const [stopped] = await original.sql`SELECT labelfile FROM pg_backup_stop()`;
  await rm(join(copy, "postmaster.pid"), { force: true });
  await run("cp", ["-a", `${data}/pg_wal/.`, join(copy, "pg_wal")]);
  const label = join(copy, "backup_label");
  await writeFile(label, String(stopped?.labelfile));
  const { uid, gid } = await stat(data);
  await chown(label, uid, gid);
  await before.stop();

  const restored = await server(t, copy, password);
  const after = await startOrigin(t, { database: restored, secrets, port: before.port });
  for (const deadline = Date.now() + 60_000; ; await sleep(50)) {
    const [row] = await restored.sql`
      SELECT count(*) FILTER (WHERE finalized_at IS NULL)::int AS open,
             count(*) FILTER (WHERE id = ANY (${inTheBackup}) AND state = 'completed')::int AS completed,
             (SELECT count(*) FROM quota_reservations)::int AS reserved FROM river_job`;
    if (row?.open === 0 && row?.reserved === 0) {
      assert.equal(row?.completed, inTheBackup.length, "the backup contains everything accepted before it");
      break;
    }
    assert.ok(Date.now() < deadline, `not everything has ended: ${JSON.stringify(row)}`);
  }
  const charges = await restored.sql`
    SELECT j.id, count(u.job_id)::int AS charged FROM river_job j LEFT JOIN usage_events u ON u.job_id = j.id
    GROUP BY 1 HAVING count(u.job_id) <> 1`;
  assert.deepEqual([...charges], []);
  const audit = await weir(["audit"], after.env);
  assert.equal(audit.code, 0, audit.stdout + audit.stderr);
  const [{ caller }] = users as [(typeof users)[number]];
  const { job } = await caller.accepted("analysis", { files: [goFile] });
  assert.equal(job.status, "queued");
});
