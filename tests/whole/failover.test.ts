import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { it, type TestContext } from "node:test";
import type { Sql } from "postgres";
import { freshSecrets } from "../harness/identity.ts";
import { required, whenOver } from "../harness/lifetime.ts";
import { primaryWithStandby } from "../harness/standby.ts";
import { until } from "../harness/until.ts";
import { type Origin, startOrigin, weir } from "../harness/weir.ts";

const secrets = freshSecrets();

/** The number of failovers to test. */
const rounds = Number(process.env.WEIR_FAILOVERS ?? 1);

/** An endpoint that honours `Idempotency-Key`: a repeated key gets the first answer again. */
async function endpoint(t: TestContext) {
  const saved = new Map<string, string>();
  const server = createServer(async (request, response) => {
    let body = "";
    for await (const part of request) body += String(part);
    const key = String(request.headers["idempotency-key"]);
    const output = saved.get(key) ?? JSON.stringify({ used: 1, of: (JSON.parse(body) as { owner: string }).owner });
    saved.set(key, output);
    response.end(output);
  });
  await new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening));
  whenOver(t, () => {
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** Submits jobs of many users, which the arguments name, and waits until all have ended. */
async function submitAndFinish(sql: Sql, generation: string): Promise<Map<number, string>> {
  const owners = Array.from({ length: 60 }, (_, number) => `${generation}-${number % 20}`);
  const submitted = new Map<number, string>();
  for (const owner of owners) {
    const [row] =
      await sql`SELECT outcome, job_id::int AS id FROM weir_submit(${owner}, 'remote', ${sql.json({ owner })})`;
    assert.match(row?.outcome, /admitted|parked/);
    submitted.set(row?.id, owner);
  }
  await until(`the jobs of ${generation} to end`, async () => {
    const [row] = await sql`SELECT count(*)::int AS open FROM river_job WHERE finalized_at IS NULL`;
    return row?.open === 0;
  });
  return submitted;
}

interface Page {
  events: { data: { job_id: number } }[];
  next: string;
}

/** Reads the usage feed to its end. Returns the jobs, and the cursor after them. */
async function readFeed(origin: Origin, key: string, cursor?: string): Promise<{ jobs: Set<number>; cursor: string }> {
  const jobs = new Set<number>();
  for (let after = cursor; ; ) {
    const response = await fetch(`${origin.url}/admin/usage/events${after ? `?after=${after}` : ""}`, {
      headers: { Authorization: `Bearer ${key}` },
    });
    assert.equal(response.status, 200);
    const page = (await response.json()) as Page;
    for (const { data } of page.events) jobs.add(data.job_id);
    if (page.events.length === 0) return { jobs, cursor: page.next };
    after = page.next;
  }
}

/** Logs changes with this action. */
async function logChanges(sql: Sql, action: string, count: number): Promise<void> {
  await sql`INSERT INTO admin_log (actor, action) SELECT 'shell:test', ${action} FROM generate_series(1, ${count}::int)`;
}

/** Reads the audit log to its end. Returns the actions, and the cursor after them. */
async function readLog(origin: Origin, key: string, cursor?: string): Promise<{ actions: string[]; cursor: string }> {
  const actions: string[] = [];
  for (let after = cursor; ; ) {
    const response = await fetch(`${origin.url}/admin/audit-log?limit=20${after ? `&after=${after}` : ""}`, {
      headers: { Authorization: `Bearer ${key}` },
    });
    assert.equal(response.status, 200);
    const page = (await response.json()) as { changes: { action: string }[]; next: string };
    actions.push(...page.changes.map((change) => change.action));
    after = page.next;
    if (page.changes.length === 0) return { actions, cursor: after };
  }
}

async function failover(t: TestContext) {
  const folder = required("WEIR_TEST_FOLDER");
  const { primary, standby, failOver } = await primaryWithStandby(t);

  const config = join(folder, `failover-${randomUUID()}.toml`);
  await writeFile(
    config,
    `[[service]]
name = "remote"
event_type = "specview"
kind = "test:remote"
workers = "REMOTE"
priority_workers = 5
default_workers = 5
scheduled_workers = 1
timeout = "10s"
max_attempts = 3
handler = { type = "http", url = "${await endpoint(t)}", private = true, amount = 1 }
`,
  );
  whenOver(t, () => rm(config, { force: true }));
  const env = { WEIR_CONFIG: config };
  const origin = await startOrigin(t, { database: primary, secrets, env });
  const onPrimary = primary.sql;
  const created = await weir(["key", "create", "--name", "billing", "--scope", "admin"], origin.env);
  const key = created.stdout.trim().split("\n").at(-1) ?? "";
  const kept = await submitAndFinish(onPrimary, "kept");
  await logChanges(onPrimary, "kept", 3);
  const onStandby = standby.sql;
  const [written] = await onPrimary`SELECT pg_current_wal_lsn()::text AS lsn`;
  await until("the standby to have it all", async () => {
    const [row] = await onStandby`SELECT pg_last_wal_replay_lsn() >= ${written?.lsn}::pg_lsn AS has_all`;
    return row?.has_all;
  });

  await onStandby`ALTER SYSTEM SET primary_conninfo = ''`.simple();
  await onStandby`SELECT pg_reload_conf()`;
  await until("the standby to be cut off", async () => {
    const [row] = await onStandby`SELECT count(*)::int AS streams FROM pg_stat_wal_receiver`;
    return row?.streams === 0;
  });
  const lost = await submitAndFinish(onPrimary, "lost");
  // More than the ids that PostgreSQL skips after a failover.
  await logChanges(onPrimary, "lost", 50);
  const readChanges = await readLog(origin, key);
  assert.deepEqual(
    ["kept", "lost"].map((action) => readChanges.actions.filter((read) => read === action).length),
    [3, 50],
  );
  const read = await readFeed(origin, key);
  assert.deepEqual(read.jobs, new Set([...kept.keys(), ...lost.keys()]));
  // The standby takes over the primary's address, and the processes keep running.
  const promoted = await failOver();
  const made = await submitAndFinish(promoted.sql, "made");
  // They notice with their next heartbeat, after two seconds. The jobs may have ended by then.
  await until("the workers of before the failover to end, and new ones to serve", () => {
    const [, later] = origin.log().split(/the database has failed over|no heartbeat for/);
    return later?.includes('"serving"');
  });
  const again = [...made.keys()].filter((id) => lost.has(id));
  assert.ok(again.length > 0, "no id was given out twice: nothing was tested");
  const foreign: string[] = [];
  for (const [id, owner] of [...kept, ...made]) {
    const [row] = await promoted.sql`SELECT output_of(${id}) AS output`;
    if (row?.output?.of !== owner) foreign.push(`job ${id} of ${owner}: ${JSON.stringify(row?.output)}`);
  }
  t.diagnostic(`${kept.size + made.size} jobs, ${again.length} ids given out twice, ${foreign.length} foreign outputs`);
  assert.deepEqual(foreign, []);
  // The consumer of the feed continues from its cursor. The cursor's event is lost.
  const unread = new Set(made.keys());
  let { cursor } = read;
  await until("the usage of all new jobs to be billed", async () => {
    const page = await readFeed(origin, key, cursor);
    for (const id of page.jobs) unread.delete(id);
    cursor = page.cursor;
    return unread.size === 0;
  });
  // The same for the audit log.
  await logChanges(promoted.sql, "made", 5);
  const unreadChanges = await readLog(origin, key, readChanges.cursor);
  assert.deepEqual(unreadChanges.actions, Array(5).fill("made"));
  assert.deepEqual((await readLog(origin, key, unreadChanges.cursor)).actions, []);
  const status = await weir(["status"], origin.env);
  assert.match(status.stdout, /^failover {2,}to timeline 2, /m);
  const ready = (await (await fetch(`${origin.url}/readyz`)).json()) as { timeline?: number };
  assert.equal(ready.timeline, 2);
  assert.match(origin.log(), /the database failed over to a new timeline/);
  const audit = await weir(["audit"], origin.env);
  assert.equal(audit.code, 0, audit.stdout + audit.stderr);
}

for (let round = 1; round <= rounds; round++) {
  const which = rounds > 1 ? ` (${round} of ${rounds})` : "";
  it(`a failover that loses commits mixes up no outputs${which}`, failover);
}
