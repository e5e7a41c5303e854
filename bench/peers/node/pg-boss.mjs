// pg-boss: a group for each user. The group's tier sets how many of its jobs run at once.
import { PgBoss } from "pg-boss";
import { callers, connectionString, job, produce, untilStdinEnds, workers } from "./program.mjs";

const boss = new PgBoss({
  connectionString,
  max: callers,
  useListenNotify: true,
  ...(process.env.PEER_RESCUE === "shortest" ? { superviseIntervalSeconds: 1, monitorIntervalSeconds: 1 } : {}),
});
boss.on("error", () => {});
await boss.start();

if (process.argv[2] === "setup") {
  // The queue sets the shortest time after which jobs of a killed worker run again.
  await boss.createQueue("work", {
    notify: true,
    ...(process.env.PEER_RESCUE === "shortest" && { expireInSeconds: 2 }),
  });
} else if (process.argv[2] === "produce") {
  await produce((user, slots) => boss.send("work", { user }, { group: { id: user, tier: String(slots) } }));
} else {
  const options = {
    // It fetches without a pause only while batches of two or more are full.
    batchSize: 2,
    localConcurrency: workers / 2,
    perJobResults: true,
    pollingIntervalSeconds: 0.5,
    notifyPollingIntervalSeconds: 0.5,
    burstWhenBatchFull: true,
    groupConcurrency: { default: 1, tiers: { 1: 1, 3: 3 } },
  };
  await boss.work("work", options, (jobs) =>
    Promise.all(
      jobs.map(async ({ id, data: { user } }) => {
        await job(user, id);
        return { id, status: "completed" };
      }),
    ),
  );
  await untilStdinEnds();
}
await boss.stop({ graceful: false });
