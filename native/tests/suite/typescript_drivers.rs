//! The TypeScript client with other libraries than `postgres`: submissions in their transactions, and workers that run
//! several jobs at a time. The programs are checked with the types of the libraries.

use crate::common::Weir;
use crate::common::fleet::{CLIENTS, output, row_count};
use crate::common::programs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program in a folder with the libraries, which is deleted with it.
struct Program {
    folder: PathBuf,
    node: PathBuf,
}

impl Program {
    /// `None` if the libraries cannot be installed here.
    async fn new(code: &str) -> Option<Self> {
        let node = programs::node()?;
        let locked = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/drivers");
        let installed = tokio::task::spawn_blocking(move || programs::npm("drivers", Path::new(locked)));
        let modules = installed.await.unwrap()?;
        let folder = std::env::temp_dir().join(format!("weir-drivers-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink(modules, folder.join("node_modules")).unwrap();
        std::fs::write(folder.join("package.json"), r#"{ "type": "module" }"#).unwrap();
        let client = Path::new(CLIENTS).join("typescript/weir.ts");
        let code = code.replace("weir-client", client.to_str().unwrap());
        std::fs::write(folder.join("program.ts"), code).unwrap();
        let program = Self { folder, node };
        program.check_types();
        Some(program)
    }

    fn check_types(&self) {
        let tsc = Path::new(CLIENTS).join("../node_modules/typescript/bin/tsc");
        let options = "--strict --noEmit --skipLibCheck --module nodenext --target es2022 --types node \
                       --allowImportingTsExtensions program.ts";
        let mut check = Command::new(&self.node);
        check
            .arg(tsc)
            .args(options.split_whitespace())
            .current_dir(&self.folder);
        let checked = check.output().unwrap();
        assert!(
            checked.status.success(),
            "{}",
            String::from_utf8_lossy(&checked.stdout)
        );
    }

    async fn output(&self, weir: &Weir, args: &[&str]) -> String {
        output(weir, &[self.node.clone(), self.folder.join("program.ts")], args).await
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Submits once in a transaction that is committed and once in one that is rolled back, by each library.
const SUBMITTING: &str = r#"
import { drizzle } from "drizzle-orm/node-postgres";
import { drizzle as drizzlePostgres } from "drizzle-orm/postgres-js";
import { sql as sqlOfDrizzle } from "drizzle-orm";
import { CamelCasePlugin, Kysely, ParseJSONResultsPlugin, PostgresDialect, sql as sqlOfKysely } from "kysely";
import pg from "pg";
import postgres from "postgres";
import { type Runner, Weir } from "weir-client";

const connectionString = process.env.DATABASE_URL ?? "";
const pool = new pg.Pool({ connectionString });
const sql = postgres(connectionString, { onnotice: () => {} });
const kysely = new Kysely<unknown>({
  dialect: new PostgresDialect({ pool }),
  plugins: [new CamelCasePlugin(), new ParseJSONResultsPlugin()],
});
const weir = new Weir(process.argv[3] || undefined);
const insert = "INSERT INTO orders (number) VALUES (1)";

class Undo extends Error {}

/** `begin` inserts an order and calls `submit` in a transaction. */
async function both(name: string, begin: (submit: (runner: Runner) => Promise<void>) => Promise<unknown>) {
  for (const undo of [false, true]) {
    try {
      await begin(async (runner) => {
        const args = { text: "it's 100% :sure, $1 \\ \u2713" };
        const options = { amount: 3, tags: ["abc"], expiresIn: 600, runAt: new Date(Date.now() + 3_600_000) };
        const { outcome, jobId, quota } = await weir.submit(runner, process.argv[2] ?? "", "analysis", args, options);
        if (!["admitted", "parked"].includes(outcome) || !/^[0-9]+$/.test(jobId ?? "") || !(Number(quota?.reserved) >= 3))
          throw new Error(`${name}: ${JSON.stringify({ outcome, jobId, quota })}`);
        console.log(name);
        if (undo) throw new Undo();
      });
    } catch (error) {
      if (!(error instanceof Undo)) throw error;
    }
  }
}

async function withPg(client: pg.ClientBase, submit: (runner: Runner) => Promise<void>) {
  await client.query("BEGIN");
  try {
    await client.query(insert);
    await submit(client);
    await client.query("COMMIT");
  } catch (error) {
    await client.query("ROLLBACK");
    throw error;
  }
}

const client = new pg.Client({ connectionString });
await client.connect();
await both("a client of pg", (submit) => withPg(client, submit));
await both("a client of a pool", async (submit) => {
  const pooled = await pool.connect();
  try {
    await withPg(pooled, submit);
  } finally {
    pooled.release();
  }
});
await both("a function", (submit) =>
  withPg(client, () => submit((text, values) => client.query({ text, values, rowMode: "array" }))),
);
await client.end();
await both("postgres", (submit) =>
  sql.begin(async (transaction) => {
    await transaction.unsafe(insert);
    await submit(transaction);
  }),
);
await both("drizzle with pg", (submit) =>
  drizzle(pool).transaction(async (transaction) => {
    await transaction.execute(sqlOfDrizzle.raw(insert));
    await submit(transaction);
  }),
);
await both("drizzle with postgres", (submit) =>
  drizzlePostgres(postgres(connectionString, { max: 1, idle_timeout: 1 })).transaction(async (transaction) => {
    await transaction.execute(sqlOfDrizzle.raw(insert));
    await submit(transaction);
  }),
);
await both("kysely", (submit) =>
  kysely.transaction().execute(async (transaction) => {
    await sqlOfKysely.raw(insert).execute(transaction);
    await submit(transaction);
  }),
);
await Promise.all([pool.end(), sql.end()]);
process.exit();
"#;

#[tokio::test(flavor = "multi_thread")]
async fn typescript_submits_in_transactions_of_other_libraries() {
    let Some(program) = Program::new(SUBMITTING).await else {
        return;
    };
    for schema in [None, Some("Odd-Schema")] {
        let weir = Weir::with(schema.map(|name| ("WEIR_SCHEMA", name)).as_slice()).await;
        let client = weir.client().await;
        let table = "CREATE TABLE public.orders (number int NOT NULL)";
        client.batch_execute(table).await.unwrap();
        let user = weir.user("enterprise").await.to_string();
        let printed = program.output(&weir, &[&user, schema.unwrap_or_default()]).await;
        assert_eq!(printed.lines().count(), 2 * 7, "{printed}");
        let same = "river_job WHERE args ->> 'text' = E'it''s 100% :sure, $1 \\\\ \u{2713}'";
        let expiring = "river_job WHERE metadata -> 'weir:expires_in' = '600'";
        for table in ["public.orders", "river_job", same, expiring] {
            assert_eq!(row_count(&client, table).await, 7, "{table}");
        }
        weir.end().await;
    }
}

/// Works with the library that the first argument names. Four handlers wait for each other. Prints the maximum of running
/// jobs, and the rows of the results.
const WORKING: &str = r#"
import { drizzle } from "drizzle-orm/node-postgres";
import { sql as sqlOfDrizzle } from "drizzle-orm";
import { Kysely, PostgresDialect, type Transaction, sql as sqlOfKysely } from "kysely";
import pg from "pg";
import postgres from "postgres";
import { type Job, Weir } from "weir-client";

const connectionString = process.env.DATABASE_URL ?? "";
const queues = ["analysis_priority"];
const enough = new AbortController();
const options = { concurrency: 4, signal: enough.signal, poll: 200 };
const counts: number[] = [];

const waiting: (() => void)[] = [];
async function together() {
  const four = new Promise<void>((resolve) => waiting.push(resolve));
  if (waiting.length === 4) for (const resolve of waiting.splice(0)) resolve();
  await four;
}

async function handled(job: Job, run: (text: string) => Promise<{ running: number | string }[]>) {
  await together();
  const [row] = await run(`INSERT INTO results SELECT ${job.id}, count(*) FROM river_job WHERE state = 'running' RETURNING running`);
  counts.push(Number(row?.running));
  await together();
  if (counts.length === 8) enough.abort();
  return { output: "done" };
}

const pool = new pg.Pool({ connectionString });
type Row = { running: string };
const libraries: Record<string, () => Promise<void>> = {
  async postgres() {
    const sql = postgres(connectionString, { onnotice: () => {} });
    await new Weir().work(sql, queues, (transaction, job) => handled(job, (text) => transaction.unsafe(text)), options);
    await sql.end();
  },
  async pg() {
    const handle = (client: pg.PoolClient, job: Job) => handled(job, async (text) => (await client.query<Row>(text)).rows);
    await new Weir().work(pool, queues, handle, options);
  },
  async drizzle() {
    const database = drizzle(pool);
    type DrizzleTransaction = Parameters<Parameters<typeof database.transaction>[0]>[0];
    const handle = (transaction: DrizzleTransaction, job: Job) =>
      handled(job, async (text) => (await transaction.execute<Row>(sqlOfDrizzle.raw(text))).rows);
    await new Weir().work(pool, queues, handle, { ...options, begin: (work) => database.transaction(work) });
  },
  async kysely() {
    const database = new Kysely<unknown>({ dialect: new PostgresDialect({ pool }) });
    const handle = (transaction: Transaction<unknown>, job: Job) =>
      handled(job, async (text) => (await sqlOfKysely.raw<Row>(text).execute(transaction)).rows);
    await new Weir().work(pool, queues, handle, { ...options, begin: (work) => database.transaction().execute(work) });
  },
};
await libraries[process.argv[2] ?? ""]?.();
await pool.end();
console.log(counts.length, Math.max(...counts));
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_typescript_worker_runs_jobs_concurrently_with_each_library() {
    let Some(program) = Program::new(WORKING).await else {
        return;
    };
    for library in ["postgres", "pg", "drizzle", "kysely"] {
        let weir = Weir::new().await;
        let client = weir.client().await;
        let table = "CREATE TABLE results (job bigint NOT NULL, running bigint NOT NULL)";
        client.batch_execute(table).await.unwrap();
        for _ in 0..2 {
            let user = weir.user("enterprise").await.to_string();
            let submit = "SELECT weir_submit($1, 'analysis', '{}') FROM generate_series(1, 4)";
            client.query(submit, &[&user]).await.unwrap();
        }
        assert_eq!(program.output(&weir, &[library]).await, "8 4", "{library}");
        let completed = "river_job WHERE state = 'completed' AND attempt = 1";
        for table in [completed, "results"] {
            assert_eq!(row_count(&client, table).await, 8, "{library}: {table}");
        }
        weir.end().await;
    }
}
