// graphile-worker: a queue for each user, which runs one job at a time. It supports no other limit, so a user with
// three slots gets three queues in turn.
import { Logger, makeWorkerUtils, run, runMigrations } from "graphile-worker";
import { connectionString, job, pool, produce, untilStdinEnds, workers } from "./program.mjs";

const pgPool = pool();
const logger = new Logger(() => () => {});

if (process.argv[2] === "setup") {
  await runMigrations({ connectionString, logger });
} else if (process.argv[2] === "produce") {
  const utils = await makeWorkerUtils({ pgPool, logger });
  const turns = new Map();
  await produce(async (user, slots) => {
    const turn = (turns.get(user) ?? 0) % slots;
    turns.set(user, turn + 1);
    await utils.addJob("work", { user }, { queueName: slots === 1 ? user : `${user}:${turn}` });
  });
  await utils.release();
} else {
  const runner = await run({
    pgPool,
    logger,
    concurrency: workers,
    noHandleSignals: true,
    taskList: { work: ({ user }, { job: { id } }) => job(user, id) },
  });
  await untilStdinEnds();
  await runner.stop();
}
await pgPool.end();
