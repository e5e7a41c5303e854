import assert from "node:assert/strict";
import { it } from "node:test";
import postgres from "postgres";
import { freshSecrets } from "../harness/identity.ts";
import { whenOver } from "../harness/lifetime.ts";
import { primaryWithStandby } from "../harness/standby.ts";
import { until } from "../harness/until.ts";
import { startOrigin, weir } from "../harness/weir.ts";

interface Held {
  kind: string;
  name: string;
  application: string;
  state: string;
  transactions: number;
}

/** Starts enough transactions that `weir status` reports the snapshots of before. */
async function startTransactions(sql: postgres.Sql): Promise<void> {
  await sql`DO $$ BEGIN FOR n IN 1..100100 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$`.simple();
}

it("status names the standby or transaction that delays vacuum", async (t) => {
  const { primary, standby } = await primaryWithStandby(t, {
    max_prepared_transactions: "2",
    hot_standby_feedback: "on",
    wal_receiver_status_interval: "1s",
    synchronous_commit: "off",
  });
  const origin = await startOrigin(t, { database: primary, secrets: freshSecrets() });
  const held = async (kind: string): Promise<Held | undefined> => {
    const { stdout } = await weir(["status", "--json"], origin.env);
    const { vacuum } = JSON.parse(stdout) as { vacuum: { snapshots: Held[] } };
    return vacuum.snapshots.find((snapshot) => snapshot.kind === kind);
  };
  const inScrape = async (kind: string): Promise<number> => {
    const text = await (await fetch(`${origin.url}/metrics`)).text();
    return Number(new RegExp(`^weir_oldest_snapshot_transactions\\{holder="${kind}"\\} (\\S+)$`, "m").exec(text)?.[1]);
  };
  const isShown = (kind: string): Promise<true> =>
    until(`the snapshot of ${kind} in a scrape`, async () => (await inScrape(kind)) >= 100_000);

  // A query on the standby, such as a report.
  const report = postgres(standby.url, { max: 1, onnotice: () => {} });
  whenOver(t, () => report.end({ timeout: 2 }));
  await until("the standby to have the tables", async () => {
    const [row] = await report`SELECT to_regclass('river_job') IS NOT NULL AS has_all`;
    return row?.has_all;
  });
  await report`BEGIN ISOLATION LEVEL REPEATABLE READ`.simple();
  await report`SELECT count(*) FROM river_job`;
  await until("the standby's feedback", async () => {
    const [row] = await primary.sql`SELECT count(backend_xmin)::int AS standbys FROM pg_stat_replication`;
    return row?.standbys === 1;
  });
  await startTransactions(primary.sql);
  await isShown("standby");
  const onStandby = await held("standby");
  assert.deepEqual(
    { name: onStandby?.name, application: onStandby?.application, state: onStandby?.state },
    { name: "weir", application: "standby", state: "streaming" },
  );
  let status = await weir(["status"], origin.env);
  assert.match(status.stdout, /^ +standby \d+, weir, standby, streaming$/m);
  await report`ROLLBACK`.simple();
  await until("the standby to hold nothing back", async () => ((await held("standby"))?.transactions ?? 0) < 100_000);

  // A transaction that its coordinator forgot.
  await primary.sql.begin(async (sql) => {
    await sql`SELECT pg_current_xact_id()`;
    await sql`PREPARE TRANSACTION 'forgotten'`.simple();
  });
  await startTransactions(primary.sql);
  await isShown("prepared");
  const prepared = await held("prepared");
  assert.deepEqual(
    { name: prepared?.name, application: prepared?.application, state: prepared?.state },
    { name: "weir", application: "forgotten", state: "prepared" },
  );
  status = await weir(["status"], origin.env);
  assert.match(status.stdout, /^ +prepared transaction weir, forgotten, prepared$/m);
  await primary.sql`ROLLBACK PREPARED 'forgotten'`.simple();
  await until("nothing to hold vacuum back", async () => (await held("prepared")) === undefined);
});
