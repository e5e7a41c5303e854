//! Workers of the clients check that the database and the client fit.

use crate::common::Weir;
use crate::common::fleet::{CLIENTS, go};
use crate::common::programs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use weir_ledger::migrate::Schema;

const PYTHON: &str = r#"
import os, sys
sys.path.insert(0, sys.argv[1] + "/python")
from weir import Weir

Weir().work(os.environ["DATABASE_URL"], ["analysis_default"], print, until=lambda: True)
"#;

const ASYNC_PYTHON: &str = r#"
import asyncio, os, sys
sys.path.insert(0, sys.argv[1] + "/python")
from weir import AsyncWeir

asyncio.run(AsyncWeir().work(os.environ["DATABASE_URL"], ["analysis_default"], print, until=lambda: True))
"#;

const TYPESCRIPT: &str = r#"
import postgres from "postgres";
const { Weir } = await import(process.argv[1] + "/typescript/weir.ts");
const sql = postgres(process.env.DATABASE_URL, { onnotice: () => {} });
await new Weir().work(sql, ["analysis_default"], async () => ({}), { signal: AbortSignal.abort() });
await sql.end();
"#;

const TOO_OLD: &str = "UPDATE weir_schema SET upgrade = 18";
const TOO_NEW: &str = "CREATE OR REPLACE FUNCTION weir_version(OUT upgrade int, OUT oldest_client int, OUT channel text) \
                       LANGUAGE sql AS $$ SELECT 30, 20, 'new' $$";
const WITHOUT_VERSION: &str = "DROP FUNCTION weir_version";

/// Whether the worker ended without an error, and its errors.
async fn ended(weir: &Weir, program: &[PathBuf]) -> (bool, String) {
    let mut command = Command::new(&program[0]);
    command
        .args(&program[1..])
        .env("DATABASE_URL", weir.url())
        .stdin(Stdio::null());
    let ended = tokio::task::spawn_blocking(move || command.output());
    let ended = ended.await.unwrap().unwrap();
    (
        ended.status.success(),
        String::from_utf8_lossy(&ended.stderr).into_owned(),
    )
}

async fn refuses_what_does_not_fit(program: &[PathBuf]) {
    let weir = Weir::new().await;
    let (succeeded, errors) = ended(&weir, program).await;
    assert!(succeeded, "{errors}");
    let client = weir.client().await;
    for (change, sentence) in [
        (
            TOO_OLD,
            "upgrade the database with `weir migrate`: it has upgrade 18 of Weir's schema, and this client needs 19",
        ),
        (
            TOO_NEW,
            "upgrade this client: it is made for upgrade 19 of Weir's schema, and the database serves clients from 20 on",
        ),
        (
            WITHOUT_VERSION,
            "upgrade the database with `weir migrate`, or name Weir's schema: there is no function weir_version",
        ),
    ] {
        client.batch_execute(change).await.unwrap();
        let (succeeded, errors) = ended(&weir, program).await;
        assert!(!succeeded && errors.contains(sentence), "{change}: {errors}");
    }
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_in_python_refuses_a_database_that_does_not_fit() {
    let made = tokio::task::spawn_blocking(|| programs::python("psycopg-3.3.9", &["psycopg[binary]==3.3.9"]));
    let Some(python) = made.await.unwrap() else { return };
    for code in [PYTHON, ASYNC_PYTHON] {
        refuses_what_does_not_fit(&[python.clone(), "-c".into(), code.into(), CLIENTS.into()]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_in_typescript_refuses_a_database_that_does_not_fit() {
    let Some(node) = programs::node() else { return };
    let program = ["--input-type=module", "--eval", TYPESCRIPT, CLIENTS].map(PathBuf::from);
    refuses_what_does_not_fit(&[&[node], &program[..]].concat()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_in_go_refuses_a_database_that_does_not_fit() {
    let Some(program) = go().await else { return };
    refuses_what_does_not_fit(&[program.path.clone(), "work".into()]).await;
}

/// A client that needs an upgrade that does not exist would never start.
#[test]
fn every_client_needs_an_upgrade_that_exists() {
    let upgrades = Schema::present().upgrades;
    for (file, name) in [
        ("python/weir/__init__.py", "_UPGRADE = "),
        ("typescript/weir.ts", "const UPGRADE = "),
        ("go/weir.go", "const upgrade = "),
    ] {
        let text = std::fs::read_to_string(format!("{CLIENTS}/{file}")).unwrap();
        let number = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let number: usize = number.trim_end_matches(';').parse().unwrap();
        let prefix = format!("{number:04}__");
        assert!(
            upgrades.iter().any(|upgrade| upgrade.path.contains(&prefix)),
            "{file}: {number}"
        );
    }
}
