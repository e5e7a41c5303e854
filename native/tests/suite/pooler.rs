//! Poolers. In session mode, everything works. In transaction mode, callers of the SQL functions work, and Weir's
//! processes refuse to start.

use crate::common;
use crate::common::process;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::process::{KilledOnDrop, Process, free_port};
use crate::common::skip::skip;
use crate::common::{GO_TESTS, Weir, Who};

/// A running PgBouncer in front of the test's database.
struct PgBouncer {
    _child: KilledOnDrop,
    folder: PathBuf,
    port: u16,
}

impl PgBouncer {
    /// `None` if it is not installed.
    fn start(weir: &Weir, mode: &str) -> Option<Self> {
        if Command::new("pgbouncer").arg("--version").output().is_err() {
            return None;
        }
        let server: tokio_postgres::Config = weir.url().parse().unwrap();
        let password = server.get_password().map_or_else(String::new, |password| {
            format!(" password={}", String::from_utf8_lossy(password))
        });
        let port = free_port();
        let folder = std::env::temp_dir().join(format!("weir-pooler-{}", weir.name()));
        std::fs::create_dir_all(&folder).unwrap();
        let settings = folder.join("pgbouncer.ini");
        // Fewer sessions than clients, as is usual in this mode.
        let size = if mode == "transaction" { 3 } else { 100 };
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={} user={}{}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = {mode}\nmax_client_conn = 200\ndefault_pool_size = {size}\n",
            server.get_ports()[0],
            server.get_user().unwrap(),
            password,
        );
        std::fs::write(&settings, text).unwrap();
        let mut command = Command::new("pgbouncer");
        // PgBouncer does not run as root.
        if std::fs::metadata(&settings).unwrap().uid() == 0 {
            command.args(["-u", "nobody"]);
        }
        let child = command
            .arg(&settings)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Some(Self {
            _child: KilledOnDrop(child),
            folder,
            port,
        })
    }

    /// The database's URL through it.
    fn url(&self, weir: &Weir) -> String {
        format!("postgres://pooled@127.0.0.1:{}/{}", self.port, weir.name())
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_works_through_a_pooler_in_session_mode() {
    works_through_a_pooler(Weir::new().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_works_through_a_pooler_in_separate_schemas() {
    let own = [("WEIR_SCHEMA", "weir"), ("RIVER_SCHEMA", "river")];
    works_through_a_pooler(Weir::with(&own).await).await;
}

async fn works_through_a_pooler(weir: Weir) {
    let Some(pooler) = PgBouncer::start(&weir, "session") else {
        skip("pgbouncer is not installed");
        return weir.end().await;
    };
    let url = pooler.url(&weir);
    let pooled = weir_ledger::database::Database::at(&url).unwrap();
    weir.until("the pooler to answer", async || pooled.connect().await.ok())
        .await;
    let through = [("DATABASE_URL", url.as_str())];
    let migrated = process::command(&weir, &["migrate"])
        .envs(through)
        .output()
        .unwrap();
    assert!(migrated.status.success(), "{migrated:?}");
    let up = Process::start(&weir, &["up"], &through);
    up.ready().await;
    let user = weir.user("free").await;
    for _ in 0..3 {
        let body = common::files(&[("a_test.go", GO_TESTS)]).to_string();
        let reply = up
            .call("POST", "/api/jobs/analysis", Who::User(user), "request-1", &body)
            .await;
        assert_eq!(reply.status, 202, "{}", reply.text);
    }
    // With one slot, each job starts by a notification about the slot of the previous one.
    weir.all_finished().await;
    let reply = up
        .call("GET", "/api/usage", Who::User(user), "request-2", "")
        .await;
    assert!(reply.text.contains("\"used\":3"), "{}", reply.text);
    let audit = process::command(&weir, &["audit"])
        .envs(through)
        .output()
        .unwrap();
    assert!(audit.status.success(), "{audit:?}");
    assert_eq!(up.stop().await, Some(0));
    drop(pooler);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_in_transaction_mode_is_refused_and_a_direct_url_helps() {
    let weir = Weir::new().await;
    let Some(pooler) = PgBouncer::start(&weir, "transaction") else {
        skip("pgbouncer is not installed");
        return weir.end().await;
    };
    let url = pooler.url(&weir);
    let pooled = weir_ledger::database::Database::at(&url).unwrap();
    weir.until("the pooler to answer", async || pooled.connect().await.ok())
        .await;
    // Sessions that other programs use already.
    let others: Vec<_> = futures_util::future::join_all((0..3).map(|_| pooled.connect())).await;
    for other in others.into_iter().flatten() {
        other.simple_query("SELECT 1").await.unwrap();
    }
    for arguments in [
        &["migrate"][..],
        &["up"],
        &["serve"],
        &["work"],
        &["schedule"],
        &["status"],
    ] {
        let refused = process::command(&weir, arguments)
            .env("DATABASE_URL", &url)
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {message}");
        assert!(
            message.contains("transaction") && message.contains("set DATABASE_DIRECT_URL"),
            "{arguments:?}: {message}"
        );
    }
    let direct = [
        ("DATABASE_URL", url.as_str()),
        ("DATABASE_DIRECT_URL", weir.url()),
    ];
    let up = Process::start(&weir, &["up"], &direct);
    up.ready().await;
    let reply = up
        .call(
            "GET",
            "/api/usage",
            Who::User(weir.user("free").await),
            "request-1",
            "",
        )
        .await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(up.stop().await, Some(0));
    drop(pooler);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_of_the_functions_work_through_a_pooler_in_transaction_mode() {
    let weir = Weir::new().await;
    let Some(pooler) = PgBouncer::start(&weir, "transaction") else {
        skip("pgbouncer is not installed");
        return weir.end().await;
    };
    let url = pooler.url(&weir);
    weir.until("the pooler to answer", async || {
        tokio_postgres::connect(&url, tokio_postgres::NoTls)
            .await
            .ok()
            .map(drop)
    })
    .await;
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..6 {
        let url = url.clone();
        callers.spawn(async move {
            let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
                .await
                .unwrap();
            tokio::spawn(connection);
            for n in 0..10 {
                let submit = format!(
                    "SELECT outcome FROM weir_submit('user-{}', 'analysis', '{{\"n\": {n}}}')",
                    caller % 2
                );
                client.simple_query(&submit).await.unwrap();
                // Any caller may claim and complete the next job.
                let work =
                    "SELECT weir_complete(job_id, attempt, '{}', 1) FROM weir_claim('analysis_default', 'x')";
                client.simple_query(work).await.unwrap();
            }
        });
    }
    callers.join_all().await;
    // No session keeps the settings of a function.
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    for _ in 0..6 {
        let settings = "SELECT current_setting('enable_seqscan') || coalesce(current_setting('weir.counters', true), '')";
        let rows = client.simple_query(settings).await.unwrap();
        let left = rows.iter().find_map(|row| match row {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        assert_eq!(left.as_deref(), Some("on"));
    }
    drop((client, pooler));
    assert!(weir.count("usage_events").await > 0);
    // I2 and I6: slots and counters match the rows.
    assert!(
        weir.complaints().await.is_empty(),
        "{:#?}",
        weir.complaints().await
    );
    weir.abandon().await;
}
