//! Poolers. In session mode, everything works. In transaction mode, callers of the SQL functions work, and Weir's
//! processes refuse to start.

use std::collections::BTreeSet;

use crate::common;
use crate::common::process;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tokio_postgres::SimpleQueryMessage;

use crate::common::process::{KilledOnDrop, Process, free_port};
use crate::common::skip::skip;
use crate::common::{GO_TESTS, Weir, Who};

/// PgBouncer's settings for the modes. In transaction mode, a pool usually has fewer sessions than clients.
const SESSION: &str = "pool_mode = session\ndefault_pool_size = 100";
const TRANSACTION: &str = "pool_mode = transaction\ndefault_pool_size = 3";
const TRANSACTION_IN_TURNS: &str = "pool_mode = transaction\ndefault_pool_size = 2\nserver_round_robin = 1";

/// A running PgBouncer in front of the test's database.
struct PgBouncer {
    _child: KilledOnDrop,
    folder: PathBuf,
    port: u16,
}

impl PgBouncer {
    /// Starts it, and waits until it answers. `None` if it is not installed.
    async fn start(weir: &Weir, mode: &str) -> Option<Self> {
        if Command::new("pgbouncer").arg("--version").output().is_err() {
            skip("pgbouncer is not installed");
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
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={} user={}{}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             max_client_conn = 200\n{mode}\n",
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
        let pooler = Self {
            _child: KilledOnDrop(child),
            folder,
            port,
        };
        let url = pooler.url(weir);
        weir.until("the pooler to answer", async || {
            tokio_postgres::connect(&url, tokio_postgres::NoTls)
                .await
                .ok()
                .map(drop)
        })
        .await;
        Some(pooler)
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
    let Some(pooler) = PgBouncer::start(&weir, SESSION).await else {
        return weir.end().await;
    };
    let url = pooler.url(&weir);
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
async fn processes_with_sessions_refuse_a_pooler_in_transaction_mode() {
    let weir = Weir::new().await;
    let Some(pooler) = PgBouncer::start(&weir, TRANSACTION).await else {
        return weir.end().await;
    };
    let url = pooler.url(&weir);
    let pooled = weir_ledger::database::Database::at(&url).unwrap();
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
async fn a_pooler_that_uses_its_sessions_in_turns_is_noticed() {
    let weir = Weir::new().await;
    let Some(pooler) = PgBouncer::start(&weir, TRANSACTION_IN_TURNS).await else {
        return weir.end().await;
    };
    let pooled = weir_ledger::database::Database::at(&pooler.url(&weir)).unwrap();
    let both = OtherProgram::connect(&pooler.url(&weir), 2).await;
    both.in_each_session("SELECT 1").await;
    drop(both);
    assert!(pooled.shares_sessions().await.unwrap());
    drop(pooler);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_saturated_pooler_ends_the_start_with_a_message() {
    let weir = Weir::new().await;
    for (mode, wait) in [("transaction", 60), ("session", 60), ("transaction", 1)] {
        let mode = format!("pool_mode = {mode}\ndefault_pool_size = 1\nquery_wait_timeout = {wait}");
        let Some(pooler) = PgBouncer::start(&weir, &mode).await else {
            return weir.end().await;
        };
        let url = pooler.url(&weir);
        let other = OtherProgram::connect(&url, 1).await;
        other.0[0].simple_query("BEGIN").await.unwrap();
        let commands = ["serve", "work"].map(|command| {
            let mut command = process::command(&weir, &[command]);
            command.env("DATABASE_URL", &url);
            tokio::task::spawn_blocking(move || command.output().unwrap())
        });
        for ended in futures_util::future::join_all(commands).await {
            let ended = ended.unwrap();
            let message = String::from_utf8_lossy(&ended.stderr).into_owned();
            assert_eq!(ended.status.code(), Some(2), "{mode}: {message}");
            assert!(message.contains("default_pool_size"), "{mode}: {message}");
        }
        drop((other, pooler));
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_of_the_functions_work_through_a_pooler_in_transaction_mode() {
    let weir = Weir::new().await;
    let Some(pooler) = PgBouncer::start(&weir, TRANSACTION).await else {
        return weir.end().await;
    };
    let url = pooler.url(&weir);
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..6 {
        let url = url.clone();
        callers.spawn(async move {
            let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
                .await
                .unwrap();
            tokio::spawn(connection);
            for n in 0..10 {
                let user = caller % 2;
                for call in [
                    format!("SELECT outcome FROM weir_submit('user-{user}', 'analysis', '{{\"n\": {n}}}')"),
                    "SELECT weir_complete(job_id, attempt, '{}', 1) FROM weir_claim('analysis_default', 'x')"
                        .to_owned(),
                ] {
                    client.simple_query(&call).await.unwrap();
                }
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

/// Another program's connections, one for each session of the pool.
struct OtherProgram(Vec<tokio_postgres::Client>);

impl OtherProgram {
    async fn connect(url: &str, sessions: usize) -> Self {
        let mut clients = Vec::new();
        for _ in 0..sessions {
            let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            clients.push(client);
        }
        Self(clients)
    }

    /// Runs this in each session of the pool. Returns the rows, with their sessions.
    async fn in_each_session(&self, sql: &str) -> BTreeSet<(String, String)> {
        let (mut sessions, mut seen) = (BTreeSet::new(), BTreeSet::new());
        for client in &self.0 {
            client
                .simple_query("BEGIN; SET LOCAL idle_in_transaction_session_timeout = 0")
                .await
                .unwrap();
        }
        for client in &self.0 {
            let messages = client
                .simple_query(&format!("SELECT pg_backend_pid(); {sql}"))
                .await
                .unwrap();
            let mut rows = messages.into_iter().filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => {
                    let columns = (0..row.len()).map(|n| row.get(n).unwrap_or_default());
                    Some(columns.collect::<Vec<_>>().join(" = "))
                }
                _ => None,
            });
            let session = rows.next().unwrap();
            seen.extend(rows.map(|row| (session.clone(), row)));
            sessions.insert(session);
        }
        for client in &self.0 {
            client.simple_query("COMMIT").await.unwrap();
        }
        assert_eq!(sessions.len(), self.0.len(), "as many sessions as the pool has");
        seen
    }
}
