import assert from "node:assert/strict";
import { join } from "node:path";
import { after, describe, it } from "node:test";
import { logs } from "../../scripts/lib/paths.ts";
import { required, whenOver } from "../harness/lifetime.ts";
import { canFreeze } from "../harness/processes.ts";
import { buildFleet } from "./fleet.ts";
import { judge } from "./judge.ts";
import { type Fault, planOf } from "./plan.ts";
import { report, violations } from "./report.ts";
import { chaos, type Result } from "./run.ts";
import { sample } from "./watch.ts";

/** The lifetime of what both tests share. */
const file = { after };
whenOver(file, () => {});

const seed = 18;
const parts = ["serve-1", "work-1", "schedule-1", "fleet-1"];
const clocks = { clocks: true };

/** The components with a jumping clock. `undefined` means PostgreSQL. */
const kindsOfParts = ["serve", "work", "schedule", undefined];

describe("a plan of faults", () => {
  it("depends only on the seed", () => {
    assert.deepEqual(planOf(seed, 600_000, parts, clocks), planOf(seed, 600_000, parts, clocks));
    assert.notDeepEqual(planOf(seed, 600_000, parts, clocks), planOf(seed + 1, 600_000, parts, clocks));
  });

  it("has every kind of fault in ten minutes, and none after its end", () => {
    const plan = planOf(seed, 600_000, parts, clocks);
    assert.equal(new Set(plan.map(({ kind }) => kind)).size, 24);
    for (const { at, lasts } of plan) assert.ok(at + lasts <= 600_000);
  });

  it("moves only clocks that can be set", () => {
    const those = (has: boolean): Fault[] =>
      planOf(seed, 600_000, parts, { clocks: has }).filter(({ kind }) => kind.includes("clock"));
    assert.deepEqual(those(false), []);
    assert.deepEqual(new Set(those(true).map(({ part }) => part?.split("-")[0])), new Set(kindsOfParts));
  });
});

describe("a minute of chaos", { skip: !canFreeze && "needs Linux", timeout: 840_000 }, () => {
  let result: Result | undefined;

  it("keeps every acknowledged job, charges once and stays within the limits", async () => {
    const fleet = await buildFleet(required("WEIR_TEST_FOLDER"));
    const lines: string[] = [];
    result = await chaos(file, {
      seed,
      minutes: 1,
      logs: join(logs, `chaos-${seed}`),
      fleet,
      // The plan must be the same on every machine. A clock that is set back may also delay the end by up to a minute.
      clocks: false,
      report: (line) => lines.push(line),
    });
    const found = violations(result, { slotsWithin: 60 });
    assert.deepEqual(found, [], `seed ${seed}\n${lines.join("\n")}\n${report(result)}`);
    const { verdict, watch } = result;
    assert.ok(verdict.completed > 0 && watch.samples > 0, report(result));
  });

  it("detects lost, doubled, overcharged and skipped jobs and overshoot", async () => {
    assert.ok(result, "the minute before did not end");
    const { installation, clients, users } = result;
    const admin = installation.database.admin();
    try {
      const acknowledged = clients.entries.find(({ jobs, service }) => jobs?.length === 1 && service === "post");
      assert.ok(acknowledged?.jobs);
      const [job] = acknowledged.jobs;
      // The client claims a job that does not exist.
      const invented = { ...acknowledged, numbers: [-1], jobs: [-1] };
      // The submission was refused, but its job exists.
      const refused = { ...acknowledged, jobs: [], refused: true, unknown: false };
      const lied = await judge(installation, admin, [...clients.entries, invented, { ...refused, jobs: undefined }]);
      assert.deepEqual([lied.lost.length, lied.doubled.length], [1, 1]);

      const [before] = await admin`SELECT count(*)::int FROM usage_events WHERE job_id = ${job ?? 0}`;
      assert.deepEqual(before, { count: 1 }, "a completed job");
      await admin`UPDATE usage_events SET quota_amount = 2 WHERE job_id = ${job ?? 0}`;
      await admin`DELETE FROM usage_events WHERE job_id = (SELECT max(job_id) FROM usage_events WHERE job_id <> ${job ?? 0})`;
      const [skipped] = await admin`
        INSERT INTO river_job (kind, max_attempts, queue, args, state, finalized_at)
        VALUES ('chaos:post', 1, 'post_default', ${admin.json({ order: -2 })}, 'completed', now()) RETURNING id::int`;
      const unworked = { ...acknowledged, numbers: [-2], jobs: [skipped?.id as number] };
      const broken = await judge(installation, admin, [...clients.entries, unworked]);
      assert.equal(broken.effectless.length, 1);
      assert.equal(broken.charges.length, 3, broken.charges.join("\n"));
      assert.notDeepEqual(broken.audit, []);

      assert.deepEqual((await sample(admin, users)).over, []);
      const limited = users.find(({ month }) => month !== null);
      await admin`UPDATE holders SET used = 1000000 WHERE holder = ${limited?.id ?? ""}`;
      await admin`UPDATE holders SET slots_in_use = 99 WHERE holder = ${users[0]?.id ?? ""}`;
      assert.equal((await sample(admin, users)).over.length, 2);
    } finally {
      await admin.end({ timeout: 2 });
    }
  });
});
