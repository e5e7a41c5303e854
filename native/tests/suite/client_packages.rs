//! The packages of the clients, built, installed into an empty project and run there.

use crate::common::Weir;
use crate::common::fleet::{CLIENTS, Maintenance};
use crate::common::programs;
use std::path::Path;
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

/// Submits and works with connections that return dictionaries. The connection of the first attempt is ended.
const PYTHON: &str = r#"
import asyncio
import os
from typing import Any

from psycopg import AsyncConnection, Connection
from psycopg.rows import dict_row

from weir import AsyncWeir, Job, Weir

url, subject = os.environ["DATABASE_URL"], os.environ["SUBJECT"]
queues = ["analysis_priority", "analysis_default"]
attempts: list[int] = []


def handle(connection: Connection[Any], job: Job) -> dict[str, int]:
    attempts.append(job.attempt)
    if job.attempt == 1:
        with Connection.connect(url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
    connection.execute("INSERT INTO results (number) VALUES (%s)", (job.args["order"],))
    return {"order": job.args["order"]}


with Connection.connect(url, row_factory=dict_row) as connection:
    connection.execute("CREATE TABLE results (number int NOT NULL)")
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
    let installed = tokio::task::spawn_blocking(|| {
        let packages = ["psycopg[binary]==3.3.9", "hatchling==1.33.0", "mypy==2.4.1"];
        programs::python("psycopg-3.3.9-hatchling-1.33.0", &packages)
    });
    let Some(python) = installed.await.unwrap() else {
        return;
    };
    let folder = std::env::temp_dir().join(format!("weir-python-package-{}", Uuid::new_v4().simple()));
    std::fs::create_dir(&folder).unwrap();
    let source = format!("{CLIENTS}/python");
    let pip = |arguments: &[&str]| {
        let quiet = ["-m", "pip", "--quiet", "--disable-pip-version-check"];
        run(&python, &folder, &[], &[&quiet[..], arguments].concat())
    };
    pip(&[
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        ".",
        &source,
    ]);
    let wheel = "weir_client-0.1.0-py3-none-any.whl";
    pip(&["install", "--no-deps", "--no-index", "--target", "site", wheel]);
    std::fs::write(folder.join("program.py"), PYTHON).unwrap();
    run(
        &python,
        &folder,
        &[],
        &["-m", "mypy", "--strict", "program.py", "site/weir"],
    );

    let weir = Weir::new().await;
    let user = weir.user("enterprise").await.to_string();
    let maintenance = Maintenance::of(&weir);
    let (url, inside) = (weir.url().to_owned(), folder.clone());
    let printed = tokio::task::spawn_blocking(move || {
        let variables = [("DATABASE_URL", url.as_str()), ("SUBJECT", user.as_str())];
        run(&python, &inside, &variables, &["program.py"])
    });
    assert_eq!(printed.await.unwrap(), "admitted\n[1, 2]\nadmitted\n[1, 2]");
    weir.all_finished().await;
    maintenance.end().await;
    let client = weir.client().await;
    let first = "SELECT errors[1] ->> 'error' FROM river_job ORDER BY id LIMIT 1";
    let error: String = client.query_one(first, &[]).await.unwrap().get(0);
    assert_eq!(error, "the worker lost its connection");
    weir.end().await;
    std::fs::remove_dir_all(folder).unwrap();
}
