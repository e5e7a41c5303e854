// The workers in TypeScript of `npm run -s bench -- languages`: `weir`, or `bare` for the same loop with plain SQL.

import postgres, { type Sql } from "postgres";
import { type Job, type Runner, Weir } from "../../clients/typescript/weir.ts";

class Bare extends Weir {
  override async claim(runner: Runner, queue: string, worker: string, most = 1): Promise<Job[]> {
    const rows = await (runner as Sql)`
      UPDATE river_job SET state = 'running', attempt = attempt + 1, attempted_at = now(),
          attempted_by = array_append(attempted_by, ${worker})
      WHERE id IN (SELECT id FROM river_job WHERE state = 'available' AND queue = ${queue}
                   ORDER BY priority, scheduled_at, id LIMIT ${most} FOR UPDATE SKIP LOCKED)
      RETURNING id, attempt, kind, args`;
    return rows.map(({ id, attempt, kind, args }) => ({ id, attempt, kind, args }));
  }

  override async complete(runner: Runner, { id, attempt }: Job): Promise<number> {
    const done = await (runner as Sql)`
      UPDATE river_job SET state = 'completed', finalized_at = now()
      WHERE id = ${id} AND attempt = ${attempt} AND state = 'running'`;
    return done.count;
  }
}

const sql = postgres(process.env.DATABASE_URL ?? "", { max: 22, onnotice: () => {} });
const worker = process.argv[2] === "weir" ? new Weir() : new Bare();
const handle = async (transaction: Sql | postgres.TransactionSql, job: Job) => {
  await transaction`INSERT INTO results (number) VALUES (${job.id})`;
  return {};
};
await worker.work(sql, ["analysis_default"], handle, { concurrency: 20 });
