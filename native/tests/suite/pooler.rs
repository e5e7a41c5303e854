//! A pooler in session mode: everything of Weir's works through it.

use crate::common;
use crate::common::process;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::process::{KilledOnDrop, Process, free_port};
use crate::common::skip::skip;
use crate::common::{GO_TESTS, Weir, Who};

/// A running PgBouncer before the test's database.
struct PgBouncer {
    _child: KilledOnDrop,
    folder: PathBuf,
    port: u16,
}

impl PgBouncer {
    /// `None` where it is not installed.
    fn start(weir: &Weir) -> Option<Self> {
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
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={} user={}{}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = session\nmax_client_conn = 200\ndefault_pool_size = 100\n",
            server.get_ports()[0],
            server.get_user().unwrap(),
            password,
        );
        std::fs::write(&settings, text).unwrap();
        let mut command = Command::new("pgbouncer");
        // It does not run as root.
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
async fn everything_works_through_a_pooler_in_schemas_of_its_own() {
    let own = [("WEIR_SCHEMA", "weir"), ("RIVER_SCHEMA", "river")];
    works_through_a_pooler(Weir::with(&own).await).await;
}

async fn works_through_a_pooler(weir: Weir) {
    let Some(pooler) = PgBouncer::start(&weir) else {
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
    // One slot: each is started by the notification that the one before frees it.
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
