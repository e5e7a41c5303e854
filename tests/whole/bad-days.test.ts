import assert from "node:assert/strict";
import { randomBytes, randomUUID } from "node:crypto";
import { join } from "node:path";
import { after, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import postgres from "postgres";
import { ensureDatabase, type PostgresOptions, startPostgres } from "../../scripts/lib/postgres.ts";
import { startEdge } from "../harness/edge.ts";
import { freshSecrets, tokenFor } from "../harness/identity.ts";
import { required, whenOver } from "../harness/lifetime.ts";
import { showOnFailure } from "../harness/logs.ts";
import { freePort } from "../harness/ports.ts";
import { canFreeze, freeze } from "../harness/processes.ts";
import { someAddress } from "../harness/stack.ts";
import { startOrigin, weir } from "../harness/weir.ts";
import { Caller, statusOnCloudflare } from "./jobs.ts";
import { goFile } from "./samples.ts";

/** The lifetime of the resources that all tests of this file share. */
const file = { after };

// This file kills its server, so it has a separate one, which keeps every commit.
const options: PostgresOptions = {
  data: join(required("WEIR_TEST_FOLDER"), `postgres-${randomBytes(4).toString("hex")}`),
  port: await freePort(),
  password: randomBytes(16).toString("hex"),
  settings: { fsync: "on", synchronous_commit: "on", max_connections: "200" },
};
let server = await startPostgres(options);
whenOver(file, () => server.service.stop());
await ensureDatabase(server, "weir");
const url = server.url("weir");
const secrets = freshSecrets();
const database = { url, sql: postgres(url, { max: 2, onnotice: () => {} }) };
whenOver(file, () => database.sql.end({ timeout: 2 }));
let origin = await startOrigin(file, { database, secrets });
const edge = await startEdge(file, { originUrl: origin.url, secrets });
showOnFailure("PostgreSQL", () => server.service.recent.join("\n"));

const users = await Promise.all(
  Array.from(
    { length: 12 },
    async () => new Caller(edge.from(someAddress()), await tokenFor(secrets.jwt, randomUUID())),
  ),
);

interface Accepted {
  user: Caller;
  key: string;
  job: number;
}

/** Submits with an idempotency key until the submission is accepted, as a persistent client does. */
async function insist(user: Caller): Promise<{ accepted: Accepted; refusals: number[] }> {
  const key = randomUUID();
  const refusals: number[] = [];
  for (const deadline = Date.now() + 60_000; ; ) {
    const response = await user
      .submit("analysis", { files: [goFile] }, { "Idempotency-Key": key })
      .catch(() => undefined);
    if (response?.status === 202) {
      const body = (await response.json()) as { job: { id: number } };
      return { accepted: { user, key, job: body.job.id }, refusals };
    }
    if (response) {
      refusals.push(await statusOnCloudflare(response));
    }
    assert.ok(Date.now() < deadline, `no answer within a minute: ${refusals.join(" ")}`);
    await sleep(100 + Math.random() * 200);
  }
}

/** Each user submits three jobs during a failure. */
async function storm(trouble: () => Promise<void>): Promise<{ accepted: Accepted[]; refusals: number[] }> {
  const submitted = users.flatMap((user) =>
    Array.from({ length: 3 }, async () => {
      await sleep(Math.random() * 1500);
      return insist(user);
    }),
  );
  const [results] = await Promise.all([Promise.all(submitted), trouble()]);
  return { accepted: results.map((result) => result.accepted), refusals: results.flatMap((result) => result.refusals) };
}

/** Retries until it succeeds: an origin that has fenced itself is down while it restarts. */
async function untilItSucceeds<T>(ask: () => Promise<T>): Promise<T> {
  for (const deadline = Date.now() + 60_000; ; await sleep(300)) {
    try {
      return await ask();
    } catch (error) {
      if (Date.now() > deadline) throw error;
    }
  }
}

async function nothingIsLost({ accepted, refusals }: { accepted: Accepted[]; refusals: number[] }): Promise<void> {
  // The edge returns 502 or 504 while the origin is down, and the origin 503 while the database is down.
  assert.deepEqual(
    [...new Set(refusals)].filter((status) => ![502, 503, 504].includes(status)),
    [],
  );
  for (const { user, job } of accepted) {
    const { status } = await untilItSucceeds(() => user.finished(job, 60_000));
    assert.equal(status, "completed", `job ${job}`);
  }
  const [{ keys, jobs }] = (await database.sql`
    SELECT count(*)::int AS jobs, count(DISTINCT idempotency_key)::int AS keys FROM weir_jobs
    WHERE idempotency_key IN ${database.sql(accepted.map(({ key }) => key))}`) as unknown as [
    { keys: number; jobs: number },
  ];
  assert.deepEqual([jobs, keys], [accepted.length, accepted.length], "one job a key");
  for (const user of users) {
    const { analysis } = await untilItSucceeds(() => user.usage());
    assert.equal(analysis.reserved, 0);
  }
  const audit = await weir(["audit"], origin.env);
  assert.equal(audit.code, 0, audit.stdout + audit.stderr);
}

/** Submits until the origin answers that the database is unavailable. */
async function untilUnavailable(): Promise<void> {
  const [user] = users;
  for (const deadline = Date.now() + 60_000; ; await sleep(100)) {
    const response = await user?.submit("analysis", { files: [goFile] }).catch(() => undefined);
    if (response?.status === 503) return;
    assert.ok(Date.now() < deadline, `no 503 within a minute, but ${response?.status}`);
  }
}

describe("in an outage, acknowledged jobs are not lost or charged twice", () => {
  it("when the origin is killed repeatedly", async () => {
    const result = await storm(async () => {
      for (let times = 0; times < 3; times++) {
        await sleep(500);
        process.kill(origin.process.current.pid ?? 0, "SIGKILL");
        await origin.process.ended;
        origin = await startOrigin(file, { database, secrets, port: origin.port });
      }
    });
    await nothingIsLost(result);
  });

  it("when PostgreSQL is killed and comes back", async () => {
    const result = await storm(async () => {
      await sleep(600);
      // Like a power failure: no shutdown, and recovery at the next start.
      process.kill(server.service.pid ?? 0, "SIGKILL");
      await server.service.ended;
      await untilUnavailable();
      server = await startPostgres(options);
    });
    await nothingIsLost(result);
  });

  it("when PostgreSQL hangs until the workers fence themselves", {
    skip: !canFreeze && "needs Linux",
  }, async () => {
    const before = origin.process.restarts;
    const result = await storm(async () => {
      await sleep(600);
      const thaw = freeze(server.service.pid ?? 0);
      try {
        for (const deadline = Date.now() + 60_000; origin.process.restarts === before; await sleep(50)) {
          assert.ok(Date.now() < deadline, "the origin has not fenced itself within a minute");
        }
      } finally {
        thaw();
      }
    });
    await nothingIsLost(result);
    assert.ok(origin.process.restarts > before);
  });
});
