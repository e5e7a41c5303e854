//! The clients' helpers for tests. A user with a quota of two submits three jobs. The first one succeeds, the second one
//! fails, and the transaction leaves nothing behind.

use crate::common::Weir;
use crate::common::fleet::{CLIENTS, output, row_count};
use crate::common::programs::{self, GO_MODULE, GoProgram};
use std::path::PathBuf;

async fn leaves_nothing_behind(program: &[PathBuf]) {
    let weir = Weir::new().await;
    let client = weir.client().await;
    client
        .batch_execute("CREATE TABLE results (number int NOT NULL)")
        .await
        .unwrap();
    let printed = output(&weir, program, &[]).await;
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[..3], ["admitted", "parked", "over_quota"], "{printed}");
    assert_eq!(lines.len(), 6, "{printed}");
    assert!(
        lines[3..5].iter().any(|line| line.starts_with("done")),
        "{printed}"
    );
    assert!(
        lines[3..5].iter().any(|line| line.ends_with("it fails")),
        "{printed}"
    );
    assert_eq!(lines[5], "1 2", "the failed attempt's row is rolled back");
    for table in [
        "river_job",
        "results",
        "users",
        "limit_overrides",
        "weir_jobs",
        "processes",
    ] {
        assert_eq!(row_count(&client, table).await, 0, "{table}");
    }
    weir.end().await;
}

const PYTHON: &str = r#"
import os, sys
sys.path.insert(0, sys.argv[1] + "/python")
from weir import Weir
from weir.testing import rolled_back, run_queued, set_quota

def handle(connection, job):
    connection.execute("INSERT INTO results (number) VALUES (1)")
    if job.id % 2 == 0:
        raise RuntimeError("it fails")
    return "done"

with rolled_back(os.environ["DATABASE_URL"]) as connection:
    set_quota(connection, "anne", "analysis", 2)
    for number in range(3):
        print(Weir().submit(connection, "anne", "analysis", {"number": number}).outcome)
    for ran in run_queued(connection, ["analysis_priority", "analysis_default"], handle):
        print(ran.result, ran.error)
    print(*connection.execute("SELECT (SELECT count(*) FROM results), (SELECT count(*) FROM river_job)").fetchone())
"#;

const ASYNC_PYTHON: &str = r#"
import asyncio, os, sys
sys.path.insert(0, sys.argv[1] + "/python")
from weir import AsyncWeir
from weir.testing import async_rolled_back, async_run_queued, async_set_quota

async def handle(connection, job):
    await connection.execute("INSERT INTO results (number) VALUES (1)")
    if job.id % 2 == 0:
        raise RuntimeError("it fails")
    return "done", 1

async def main():
    async with async_rolled_back(os.environ["DATABASE_URL"]) as connection:
        await async_set_quota(connection, "anne", "analysis", 2)
        for number in range(3):
            print((await AsyncWeir().submit(connection, "anne", "analysis", {"number": number})).outcome)
        for ran in await async_run_queued(connection, ["analysis_priority", "analysis_default"], handle):
            print(ran.result and ran.result[0], ran.error)
        found = await connection.execute("SELECT (SELECT count(*) FROM results), (SELECT count(*) FROM river_job)")
        print(*(await found.fetchone()))

asyncio.run(main())
"#;

#[tokio::test(flavor = "multi_thread")]
async fn helpers_for_tests_in_python() {
    let made = tokio::task::spawn_blocking(|| programs::python("psycopg-3.3.9", &["psycopg[binary]==3.3.9"]));
    let Some(python) = made.await.unwrap() else { return };
    for code in [PYTHON, ASYNC_PYTHON] {
        leaves_nothing_behind(&[python.clone(), "-c".into(), code.into(), CLIENTS.into()]).await;
    }
}

/// The functions of the example, and the documented test of them.
const DOCUMENTED: &str = r#"
import os, re, sys
clients = sys.argv[1]
sys.path.insert(0, clients + "/python")
handled = []
exec(open(clients + "/python/example.py").read().split("\nhandled = []")[0])
page = open(clients + "/../docs/how-to/any-language.md").read()
[test] = re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)
exec(test.replace("postgres://…", os.environ["DATABASE_URL"]))
test_orders()
print(len(handled))
"#;

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_test_in_python_passes() {
    let made = tokio::task::spawn_blocking(|| programs::python("psycopg-3.3.9", &["psycopg[binary]==3.3.9"]));
    let Some(python) = made.await.unwrap() else { return };
    let weir = Weir::new().await;
    let client = weir.client().await;
    let tables = "CREATE TABLE orders (number int NOT NULL); CREATE TABLE results (number int NOT NULL)";
    client.batch_execute(tables).await.unwrap();
    let program = [python, "-c".into(), DOCUMENTED.into(), CLIENTS.into()];
    assert_eq!(output(&weir, &program, &[]).await, "1");
    for table in ["orders", "results", "river_job"] {
        assert_eq!(row_count(&client, table).await, 0, "{table}");
    }
    weir.end().await;
}

/// The documented test, with the package in this repository.
const DOCUMENTED_TYPESCRIPT: &str = r#"
import { readFileSync, writeFileSync, rmSync } from "node:fs";
import { spawnSync } from "node:child_process";
const clients = process.argv[1];
const page = readFileSync(`${clients}/../docs/how-to/any-language.md`, "utf8");
const [, test] = /^```ts\n(import assert[^]*?)^```/m.exec(page);
const file = `${clients}/typescript/documented-${process.pid}.test.ts`;
writeFileSync(
  file,
  test
    .replace('"weir-client/testing"', '"./testing.ts"')
    .replace('"weir-client"', '"./weir.ts"')
    .replace("postgres://…", process.env.DATABASE_URL),
);
const { status, stdout } = spawnSync(process.execPath, ["--test", file], { encoding: "utf8" });
rmSync(file);
console.log(status === 0 ? "passed" : stdout);
"#;

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_test_in_typescript_passes() {
    let Some(node) = programs::node() else { return };
    let weir = Weir::new().await;
    let program = ["--input-type=module", "--eval", DOCUMENTED_TYPESCRIPT, CLIENTS].map(PathBuf::from);
    assert_eq!(
        output(&weir, &[&[node], &program[..]].concat(), &[]).await,
        "passed"
    );
    weir.end().await;
}

/// The library is the part in braces.
const TYPESCRIPT: &str = r#"
import { createRequire } from "node:module";
import postgres from "postgres";
const { Weir } = await import(process.argv[1] + "/typescript/weir.ts");
const { rolledBack, runQueued, setQuota } = await import(process.argv[1] + "/typescript/testing.ts");
const [database, run] = {};

await rolledBack(database, async (transaction) => {
  await setQuota(transaction, "anne", "analysis", 2);
  for (const number of [0, 1, 2])
    console.log((await new Weir().submit(transaction, "anne", "analysis", { number })).outcome);
  const handle = async (transaction, job) => {
    await run(transaction, "INSERT INTO results (number) VALUES (1)");
    if (job.id % 2 === 0) throw new Error("it fails");
    return { output: "done" };
  };
  for (const { output, error } of await runQueued(transaction, ["analysis_priority", "analysis_default"], handle))
    console.log(output, error?.message);
  const counts = "SELECT (SELECT count(*) FROM results) AS results, (SELECT count(*) FROM river_job) AS jobs";
  const [{ results, jobs }] = await run(transaction, counts);
  console.log(results, jobs);
});
await database.end();
"#;

#[tokio::test(flavor = "multi_thread")]
async fn helpers_for_tests_in_typescript() {
    let Some(node) = programs::node() else { return };
    let locked = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/drivers");
    let installed = tokio::task::spawn_blocking(move || programs::npm("drivers", locked.as_ref()));
    let Some(modules) = installed.await.unwrap() else {
        return;
    };
    let pg = format!(
        "[new (createRequire({:?})(\"pg\").Pool)({{ connectionString: process.env.DATABASE_URL }}), \
         async (client, text) => (await client.query(text)).rows]",
        modules.join("pg").to_str().unwrap()
    );
    let postgres =
        "[postgres(process.env.DATABASE_URL, { onnotice: () => {} }), (sql, text) => sql.unsafe(text)]";
    for library in [postgres, &pg] {
        let code = TYPESCRIPT.replace("[database, run] = {}", &format!("[database, run] = {library}"));
        let program = ["--input-type=module", "--eval", &code, CLIENTS].map(PathBuf::from);
        leaves_nothing_behind(&[std::slice::from_ref(&node), &program[..]].concat()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn helpers_for_tests_in_go() {
    let Some(program) = GoProgram::built(GO_MODULE, "./helpers").await else {
        return;
    };
    leaves_nothing_behind(std::slice::from_ref(&program.path)).await;
}
