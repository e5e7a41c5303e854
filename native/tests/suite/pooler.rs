//! Poolers. In session mode, everything works. In transaction mode, `weir serve` and callers of the SQL functions work,
//! and the other processes refuse to start.

use std::collections::BTreeSet;

use crate::common;
use crate::common::process;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::net::{TcpSocket, TcpStream};
use tokio_postgres::SimpleQueryMessage;
use uuid::Uuid;

use crate::common::process::{KilledOnDrop, Process, free_port};
use crate::common::skip::skip;
use crate::common::{GO_TESTS, Weir, Who};

/// The number of sessions of a pool in transaction mode.
const SESSIONS: usize = 3;

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
    for arguments in [&["migrate"][..], &["up"], &["work"], &["schedule"], &["status"]] {
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
async fn settings_of_other_programs_do_not_affect_plans() {
    let weir = Weir::new().await;
    let Some(pooler) = PgBouncer::start(&weir, TRANSACTION).await else {
        return weir.end().await;
    };
    let direct = weir_ledger::database::Database::at(weir.url()).unwrap();
    let pooled = weir_ledger::database::Database::at(&pooler.url(&weir)).unwrap();
    let other = OtherProgram::connect(&pooler.url(&weir), SESSIONS).await;
    other.in_each_session(&left_behind()).await;
    let pooled = pooled.through_pooler().await.unwrap();
    let names = POOR_PLANS.map(|(name, _)| name);
    let settings =
        "SELECT name || ' = ' || setting FROM pg_catalog.pg_settings WHERE name = ANY ($1) ORDER BY name";
    let texts =
        |rows: Vec<tokio_postgres::Row>| -> Vec<String> { rows.iter().map(|row| row.get(0)).collect() };
    for _ in 0..SESSIONS {
        let expected = direct.pool(1).query(settings, &[&&names[..]]).await.unwrap();
        let actual = pooled.pool(1).query(settings, &[&&names[..]]).await.unwrap();
        assert_eq!(texts(actual), texts(expected));
    }
    drop((other, pooled, pooler));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_pooler_is_used_while_the_first_does_not_answer() {
    let weir = Weir::new().await;
    let Some(pooler) = PgBouncer::start(&weir, TRANSACTION).await else {
        return weir.end().await;
    };
    // Its queue of connections is full, so the system ignores further ones.
    let silent = TcpSocket::new_v4().unwrap();
    silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let silent = silent.listen(0).unwrap();
    let address = silent.local_addr().unwrap();
    let _queued = TcpStream::connect(address).await.unwrap();
    let url = format!(
        "postgres://pooled@{address},127.0.0.1:{}/{}",
        pooler.port,
        weir.name()
    );
    let pooled = weir_ledger::database::Database::at(&url).unwrap();
    let pooled = pooled.through_pooler().await.unwrap();
    let (pool, rivers) = (pooled.pool(1), pooled.river_pool(1).unwrap());
    let (one, pool, river) = tokio::join!(
        pooled.connect(),
        pool.query("SELECT 1", &[]),
        sqlx::query_scalar::<_, i32>("SELECT 1").fetch_one(&rivers),
    );
    assert!(one.is_ok(), "{:?}", one.err());
    assert!(pool.is_ok(), "the pool: {:?}", pool.err());
    assert!(river.is_ok(), "River's pool: {:?}", river.err());
    rivers.close().await;
    drop((one, pooled, pooler));
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
async fn requests_to_cancel_reach_the_server_through_a_pooler() {
    let weir = Weir::new().await;
    let Some(pooler) = PgBouncer::start(&weir, TRANSACTION).await else {
        return weir.end().await;
    };
    let pooled = weir_ledger::database::Database::at(&pooler.url(&weir)).unwrap();
    let pooled = pooled.through_pooler().await.unwrap();
    let admin = weir.admin().await;
    // If the sender leaves early, PgBouncer drops some requests, but not all.
    for _ in 0..5 {
        let client = pooled.connect().await.unwrap();
        let cancel = client.cancel_token();
        let slow = tokio::spawn(async move { client.query("SELECT pg_sleep(60)", &[]).await });
        weir.until("the statement to run", async || {
            // It is also active while it is prepared, and then a request to cancel has no effect.
            let running = "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' \
                           AND query = 'SELECT pg_sleep(60)' AND datname = $1";
            let found = admin.query_opt(running, &[&weir.name()]).await.unwrap();
            found.map(drop)
        })
        .await;
        cancel.cancel_query(tokio_postgres::NoTls).await.unwrap();
        let error = slow.await.unwrap().expect_err("the statement ran to its end");
        let message = error.as_db_error().unwrap().message();
        assert_eq!(message, "canceling statement due to user request");
    }
    drop((pooled, pooler));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_to_early_requests_do_not_reach_other_clients() {
    let weir = Weir::new().await;
    let Some(pooler) = PgBouncer::start(&weir, TRANSACTION).await else {
        return weir.end().await;
    };
    let url = pooler.url(&weir);
    let pooled = weir_ledger::database::Database::at(&url).unwrap();
    let pooled = pooled.through_pooler().await.unwrap();
    let others = OtherProgram::connect(&url, 4).await;
    let ours = futures_util::future::join_all((0..4).map(|_| pooled.connect())).await;
    // PgBouncer reads 4096 bytes at once, so a part of a request often arrives alone.
    let padded = format!("SELECT $1::int4 + 1 /* {} */", "x".repeat(900));
    let ours = ours.into_iter().map(async |client| {
        let client = client.unwrap();
        for n in 0..100 {
            // The driver sends all of them before the first answer.
            let requests = (n..n + 5).map(|n| {
                let (client, padded) = (&client, &padded);
                async move { client.query_one(padded, &[&n]).await.unwrap().get::<_, i32>(0) }
            });
            let answers = futures_util::future::join_all(requests).await;
            assert_eq!(answers, (n + 1..n + 6).collect::<Vec<_>>());
        }
    });
    let others = others.0.iter().enumerate().map(async |(client, other)| {
        for n in 0..500 {
            let messages = other
                .simple_query(&format!("SELECT '{client} {n}'"))
                .await
                .unwrap();
            let is_answer = |message: &SimpleQueryMessage| match message {
                SimpleQueryMessage::Row(row) => row.get(0) == Some(format!("{client} {n}").as_str()),
                _ => false,
            };
            assert!(messages.iter().any(is_answer), "{client} {n}: {messages:?}");
        }
    });
    let all = async {
        tokio::join!(
            futures_util::future::join_all(ours),
            futures_util::future::join_all(others)
        )
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
    drop((pooled, pooler));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pgoptions_do_not_affect_transactions_through_a_pooler() {
    let weir = Weir::new().await;
    // Otherwise PgBouncer refuses connections with options, or this one.
    let mode = format!("{TRANSACTION}\nignore_startup_parameters = options");
    let Some(pooler) = PgBouncer::start(&weir, &mode).await else {
        return weir.end().await;
    };
    let url = pooler.url(&weir);
    let options = "-c geqo=off -c search_path=strange -c default_transaction_isolation=serializable";
    let urls = [("DATABASE_URL", url.as_str()), ("PGOPTIONS", options)];
    let serve = Process::start(&weir, &["serve"], &urls);
    serve.ready().await;
    let user = weir.user("free").await;
    let body = common::files(&[("a_test.go", GO_TESTS)]).to_string();
    let reply = serve
        .call("POST", "/api/jobs/analysis", Who::User(user), "request-1", &body)
        .await;
    assert_eq!(reply.status, 202, "{}", reply.text);
    let submitted: Value = serde_json::from_str(&reply.text).unwrap();
    // River's client cancels it.
    let path = format!("/api/jobs/{}", submitted["job"]["id"]);
    let reply = serve
        .call("DELETE", &path, Who::User(user), "request-2", "")
        .await;
    assert!(
        reply.text.contains("cancelled"),
        "{}; {:#?}",
        reply.text,
        serve.log()
    );
    assert_eq!(serve.stop().await, Some(0));
    drop(pooler);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_of_the_functions_work_through_a_pooler_in_transaction_mode() {
    let weir = Weir::new().await;
    let Some(pooler) = PgBouncer::start(&weir, TRANSACTION).await else {
        return weir.end().await;
    };
    let url = pooler.url(&weir);
    callers_of_the_functions(&url, 6, "", None).join_all().await;
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

/// Settings and tables that another program leaves behind in its sessions.
const LEFT_BEHIND: &str = "
    CREATE TEMP TABLE holders (id int);
    CREATE TEMP TABLE river_job (id int);
    SET search_path = strange;
    SET default_transaction_isolation = serializable;
    SET default_transaction_deferrable = on;
    SET row_security = on;
    SET statement_timeout = '300ms';
    SET lock_timeout = '1ms';
    SET idle_in_transaction_session_timeout = '300ms';
    SET synchronous_commit = off;
    SET standard_conforming_strings = off;
    SET DateStyle = German;
    SET IntervalStyle = sql_standard;
    SET TimeZone = 'Asia/Kathmandu';
    SET bytea_output = escape;
    SET weir.counters = kept;
    SET weir.schema = strange;
    SET ROLE pg_read_all_data";

/// Settings that make the planner choose poor plans, which another program also leaves behind.
const POOR_PLANS: [(&str, &str); 15] = [
    ("enable_seqscan", "off"),
    ("enable_indexscan", "off"),
    ("enable_indexonlyscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_tidscan", "off"),
    ("enable_nestloop", "off"),
    ("enable_hashjoin", "off"),
    ("enable_hashagg", "off"),
    ("enable_incremental_sort", "off"),
    ("enable_material", "off"),
    ("geqo_threshold", "2"),
    ("join_collapse_limit", "1"),
    ("from_collapse_limit", "1"),
    ("random_page_cost", "1000"),
    ("work_mem", "64"),
];

fn left_behind() -> String {
    let plans = POOR_PLANS.map(|(name, value)| format!("SET {name} = {value}; "));
    format!("{}{LEFT_BEHIND}", plans.concat())
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

#[tokio::test(flavor = "multi_thread")]
async fn the_api_works_through_a_pooler_in_transaction_mode() {
    serves_through_a_pooler(Weir::new().await, "public").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_works_through_a_pooler_in_transaction_mode_in_separate_schemas() {
    let own = [("WEIR_SCHEMA", "weir"), ("RIVER_SCHEMA", "river")];
    serves_through_a_pooler(Weir::with(&own).await, "weir").await;
}

async fn serves_through_a_pooler(weir: Weir, schema: &str) {
    let Some(pooler) = PgBouncer::start(&weir, TRANSACTION).await else {
        return weir.end().await;
    };
    let url = pooler.url(&weir);
    let other = OtherProgram::connect(&url, SESSIONS).await;
    // PgBouncer leaves the name of the last client that had one.
    let settings = "SELECT 'transaction_isolation', current_setting('transaction_isolation'); \
                    SELECT name, setting FROM pg_catalog.pg_settings WHERE source = 'session' \
                        AND name <> ALL ('{application_name,transaction_isolation}'); \
                    SELECT 'weir.counters', current_setting('weir.counters', true)";
    other.in_each_session(&left_behind()).await;
    let before = other.in_each_session(settings).await;

    // It needs no direct connection.
    let direct = format!("postgres://nobody@127.0.0.1:{}/none", free_port());
    let urls = [("DATABASE_URL", url.as_str()), ("DATABASE_DIRECT_URL", &direct)];
    let serve = Process::start(&weir, &["serve"], &urls);
    serve.ready().await;
    let user = weir.user("free").await;
    weir.use_up(user, "analysis", 10).await;
    let body = common::files(&[("a_test.go", GO_TESTS)]).to_string();
    let submissions = (0..50).map(|n| {
        let (serve, body) = (&serve, &body);
        async move {
            let id = format!("request-{n}");
            serve
                .call("POST", "/api/jobs/analysis", Who::User(user), &id, body)
                .await
        }
    });
    // Callers of the SQL functions share the sessions, and work the jobs.
    let begin = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0; \
         SET LOCAL role = none; SET LOCAL search_path = {schema}, public"
    );
    let callers = callers_of_the_functions(&url, 4, &format!("{schema}."), Some(begin));
    let replies = futures_util::future::join_all(submissions).await;
    let count = |status| replies.iter().filter(|reply| reply.status == status).count();
    let texts: Vec<_> = replies.iter().map(|reply| &reply.text).collect();
    assert_eq!((count(202), count(429)), (40, 10), "{texts:#?}");
    callers.join_all().await;

    use_the_api(&serve, user, &body).await;
    let is_fault = |line: &Value| line["level"] != "INFO" && line["target"] != "access_log";
    let faults: Vec<_> = serve.log().into_iter().filter(is_fault).collect();
    assert!(faults.is_empty(), "{faults:#?}");

    let after = other.in_each_session(settings).await;
    // PgBouncer closes a session if its client leaves in a transaction.
    let is_in =
        |all: &BTreeSet<(String, String)>, session: &String| all.iter().any(|(one, _)| one == session);
    let changed: Vec<_> = before
        .symmetric_difference(&after)
        .filter(|(session, _)| is_in(&before, session) && is_in(&after, session))
        .collect();
    assert!(changed.is_empty(), "{changed:#?}");
    assert!(before.intersection(&after).count() > 0, "a session remains");
    assert_eq!(serve.stop().await, Some(0));
    drop((other, pooler));
    // I2 and I6: slots and counters match the rows.
    assert!(
        weir.complaints().await.is_empty(),
        "{:#?}",
        weir.complaints().await
    );
    weir.abandon().await;
}

/// Callers that submit jobs, claim any job and complete it. Each call may be a transaction that begins with `begin`.
fn callers_of_the_functions(
    url: &str,
    count: usize,
    schema: &str,
    begin: Option<String>,
) -> tokio::task::JoinSet<()> {
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..count {
        let (url, schema, begin) = (url.to_owned(), schema.to_owned(), begin.clone());
        callers.spawn(async move {
            let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
                .await
                .unwrap();
            tokio::spawn(connection);
            for n in 0..10 {
                for call in [
                    format!(
                        "SELECT outcome FROM {schema}weir_submit('user-{}', 'analysis', '{{\"n\": {n}}}')",
                        caller % 2
                    ),
                    format!(
                        "SELECT {schema}weir_complete(job_id, attempt, '{{}}', 1) \
                         FROM {schema}weir_claim('analysis_default', 'x')"
                    ),
                ] {
                    let call = match &begin {
                        Some(begin) => format!("{begin}; {call}; COMMIT"),
                        None => call,
                    };
                    client.simple_query(&call).await.unwrap();
                }
            }
        });
    }
    callers
}

/// Reads, a batch, cancellations and metrics.
async fn use_the_api(serve: &Process, user: Uuid, body: &str) {
    let call = async |method, path: &str, body: &str| {
        let id = format!("{method} {path}").replace(['/', ' ', '?'], "-");
        let reply = serve.call(method, path, Who::User(user), &id, body).await;
        assert!(
            (200..300).contains(&reply.status),
            "{method} {path}: {}; {:#?}",
            reply.text,
            serve.log()
        );
        serde_json::from_str::<Value>(&reply.text).unwrap()
    };
    let usage = call("GET", "/api/usage", "").await;
    let quota = &usage["analysis"];
    assert_eq!(
        quota["used"].as_i64().unwrap() + quota["reserved"].as_i64().unwrap(),
        50,
        "{usage}"
    );
    let jobs = call("GET", "/api/jobs?limit=100", "").await;
    let waiting = jobs
        .as_array()
        .unwrap()
        .iter()
        .filter(|job| job["status"] == "queued");
    let waiting: Vec<_> = waiting.map(|job| job["id"].as_i64().unwrap()).collect();
    for id in waiting.iter().take(3) {
        let job = call("DELETE", &format!("/api/jobs/{id}"), "").await;
        assert_eq!(job["status"], "cancelled", "{job}");
    }
    let batch = format!("[{body}, {body}]");
    let batch = call("POST", "/api/jobs/analysis/batch", &batch).await;
    assert_eq!(batch["jobs"].as_array().unwrap().len(), 2, "{batch}");
    call("GET", "/api/lanes", "").await;
    assert_eq!(serve.scrape().await.value("weir_database_up", &[]), Some(1.0));
}
