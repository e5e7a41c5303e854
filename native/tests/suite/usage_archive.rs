//! Old usage events leave the database, and all counts stay the same.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::common::process::command;
use crate::common::{GO_TESTS, Weir, Who};
use serde_json::Value;
use tokio_postgres::Client;
use uuid::Uuid;
use weir_ledger::control::{self, UsageCursor, User, archive_usage, usage_after};
use weir_ledger::database::Database;
use weir_ledger::holder::Holders;

/// More than one transaction moves.
const MANY: i64 = 10_001;

/// A file that is deleted at the end of the test.
struct ArchiveFile(PathBuf);

impl ArchiveFile {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("weir-usage-{}.ndjson", Uuid::new_v4())))
    }
}

impl Drop for ArchiveFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Usage of a period that ended long ago.
async fn used_long_ago(weir: &Weir, user: Uuid, amount: i64, events: i64) {
    weir.client()
        .await
        .execute(
            "INSERT INTO usage_events (user_id, event_type, quota_amount, created_at, period_start) \
             SELECT $1, 'analysis', $2, p.start + interval '1 hour' + n * interval '1 second', p.start \
             FROM (SELECT date_trunc('month', now() - interval '100 days') AS start) p, generate_series(1, $3::bigint) AS n",
            &[&user, &amount, &events],
        )
        .await
        .unwrap();
    weir.recount().await;
}

/// Balances and grants, as text.
async fn counters(client: &Client) -> Vec<String> {
    let rows = client
        .query(
            "SELECT b::text FROM quota_balances b UNION ALL SELECT g::text FROM grants g ORDER BY 1",
            &[],
        )
        .await
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

async fn total(client: &Client, user: Uuid) -> (i64, i64) {
    let row = client
        .query_one(
            "SELECT count(*), sum(quota_amount)::bigint FROM usage_events WHERE user_id = $1",
            &[&user],
        )
        .await
        .unwrap();
    (row.get(0), row.get(1))
}

/// A time some days ago, in the form of the command line.
fn days_ago(days: i64) -> jiff::Timestamp {
    jiff::Timestamp::now() - jiff::SignedDuration::from_hours(24 * days)
}

fn archive(weir: &Weir, days: i64, to: &Path) -> Output {
    let before = days_ago(days).to_string();
    command(
        weir,
        &[
            "usage",
            "archive",
            "--before",
            &before,
            "--to",
            to.to_str().unwrap(),
        ],
    )
    .output()
    .unwrap()
}

/// The ids in a file. Ignores lines that are not events.
fn ids(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .map(|event| event["id"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn archived_usage_still_counts_and_is_in_the_file_once() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let file = ArchiveFile::new();
    let (many, few) = (weir.user("enterprise").await, weir.user("free").await);
    used_long_ago(&weir, many, 2, MANY).await;
    used_long_ago(&weir, few, 3, 2).await;
    weir.use_up(few, "analysis", 5).await;
    let old: BTreeSet<String> = client
        .query(
            "SELECT id::text FROM usage_events WHERE created_at < now() - interval '40 days'",
            &[],
        )
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    // A job from that time that can still be read.
    let job = weir.analyse(Who::User(few), "a_test.go", GO_TESTS).await;
    let working = weir.work().await;
    weir.all_finished().await;
    working.stop().await;
    client
        .execute(
            "UPDATE usage_events SET created_at = now() - interval '99 days', \
             period_start = date_trunc('month', now() - interval '100 days') WHERE job_id = $1",
            &[&job],
        )
        .await
        .unwrap();
    let before = counters(&client).await;
    // Events wait for older transactions, also of other databases.
    let events: i64 = client
        .query_one("SELECT count(*) FROM usage_events", &[])
        .await
        .unwrap()
        .get(0);
    let cursor = weir
        .until("the events of the usage feed", async || {
            let read = usage_after(&client, UsageCursor::default(), i64::MAX).await;
            let (read, cursor) = read.unwrap();
            (read.len() as i64 == events).then_some(cursor)
        })
        .await;

    let output = archive(&weir, 40, &file.0);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        String::from_utf8_lossy(&output.stdout).starts_with("10003 usage events"),
        "{output:?}"
    );
    assert_eq!(counters(&client).await, before);
    assert_eq!(total(&client, many).await, (1, 2 * MANY));
    // The sum, the current event, and the job's.
    assert_eq!(total(&client, few).await.0, 3);
    let kept = ids(&file.0);
    assert_eq!(kept.len(), old.len());
    assert_eq!(kept.into_iter().collect::<BTreeSet<_>>(), old);
    let (new, _) = usage_after(&client, cursor, 1000).await.unwrap();
    assert!(
        new.iter().all(|event| event.job_id.is_some()),
        "a reader of the events gets no sum of them: {new:?}"
    );
    let (all, _) = usage_after(&client, UsageCursor::default(), 1000).await.unwrap();
    assert!(
        all.iter().all(|event| event.reason.is_none()),
        "nor does any other reader, which would bill them twice: {all:?}"
    );
    let shown = weir.get(&format!("/api/jobs/{job}"), Who::User(few)).await;
    assert_eq!(shown.status, 200, "{}", shown.body);

    // A second run finds nothing. New events of the same period are added to the same sum. A partial line does not
    // become part of another one.
    let output = archive(&weir, 40, &file.0);
    assert!(
        String::from_utf8_lossy(&output.stdout).starts_with("0 usage events"),
        "{output:?}"
    );
    let mut text = std::fs::read_to_string(&file.0).unwrap();
    text.push_str("{\"id\":\"half");
    std::fs::write(&file.0, text).unwrap();
    used_long_ago(&weir, many, 7, 1).await;
    let output = archive(&weir, 40, &file.0);
    assert!(
        String::from_utf8_lossy(&output.stdout).starts_with("1 usage event moved"),
        "{output:?}"
    );
    assert_eq!(total(&client, many).await, (1, 2 * MANY + 7));
    assert_eq!(ids(&file.0).len(), old.len() + 1);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_paid_by_grants_stays_in_the_sums() {
    let weir = Weir::new().await;
    let mut client = weir.client().await;
    let user = weir.user("free").await;
    client
        .execute(
            "WITH given AS (
                 INSERT INTO grants (user_id, event_type, amount, used, reason)
                 VALUES ($1, 'analysis', 10, 4, 'order 7')
                 RETURNING id
             )
             INSERT INTO grant_draws (grant_id, job_id, position, amount, charged) SELECT id, n, 0, 2, 2 FROM given, generate_series(1, 2) AS n",
            &[&user],
        )
        .await
        .unwrap();
    client
        .execute(
            "INSERT INTO usage_events (user_id, event_type, quota_amount, from_grants, overage, created_at, period_start) \
             SELECT $1, 'analysis', 6, 2, 1, p.start, p.start \
             FROM (SELECT date_trunc('month', now() - interval '100 days') AS start) p, generate_series(1, 2)",
            &[&user],
        )
        .await
        .unwrap();
    weir.recount().await;
    let before = counters(&client).await;
    let mut kept = Vec::new();
    let archived = archive_usage(&mut client, "test", days_ago(40), |events| {
        kept.extend_from_slice(events);
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!((archived, kept.len()), (2, 2));
    assert_eq!(counters(&client).await, before);
    let row = client
        .query_one(
            "SELECT quota_amount, from_grants, overage, reason FROM usage_events WHERE user_id = $1",
            &[&user],
        )
        .await
        .unwrap();
    let sum: (i64, i64, i64, String) = (row.get(0), row.get(1), row.get(2), row.get(3));
    assert_eq!(sum, (12, 4, 2, "archived".to_owned()));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn users_with_few_events_share_a_transaction() {
    let weir = Weir::new().await;
    let mut client = weir.client().await;
    let mut users = Vec::new();
    for _ in 0..20 {
        let user = weir.user("free").await;
        used_long_ago(&weir, user, 2, 3).await;
        users.push(user);
    }
    let before = counters(&client).await;
    let mut batches = Vec::new();
    let archived = archive_usage(&mut client, "test", days_ago(40), |events| {
        batches.push(events.len());
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!((archived, batches), (60, vec![60]));
    assert_eq!(counters(&client).await, before);
    for user in users {
        assert_eq!(total(&client, user).await, (1, 6));
    }
    assert_eq!(weir.complaints().await, Vec::<String>::new());

    // Their sums are left alone.
    let again = archive_usage(&mut client, "test", days_ago(40), |_| Ok(()))
        .await
        .unwrap();
    assert_eq!(again, 0);
    let logged = "SELECT count(*) FROM admin_log WHERE action = 'usage.archive'";
    assert_eq!(client.query_one(logged, &[]).await.unwrap().get::<_, i64>(0), 1);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn archiving_does_not_read_the_sums_of_other_users() {
    let weir = Weir::new().await;
    let mut client = weir.client().await;
    let (user, other) = (weir.user("enterprise").await, weir.user("enterprise").await);
    // Statistics from a time when every event had a job.
    client
        .execute(
            "INSERT INTO usage_events (user_id, event_type, quota_amount, created_at, period_start, job_id) \
             SELECT $1, 'analysis', 1, p.start, p.start, -n \
             FROM (SELECT date_trunc('month', now() - interval '100 days') AS start) p, generate_series(1, 500) n",
            &[&user],
        )
        .await
        .unwrap();
    client
        .batch_execute("ALTER TABLE usage_events SET (autovacuum_enabled = false); ANALYZE usage_events")
        .await
        .unwrap();
    client
        .execute(
            "INSERT INTO usage_events (user_id, event_type, quota_amount, period_start) \
             SELECT $1, 'analysis', 1, period_start_of($1, now()) FROM generate_series(1, 10000)",
            &[&other],
        )
        .await
        .unwrap();
    weir.recount().await;
    let archived = archive_usage(&mut client, "test", days_ago(40), |_| Ok(()))
        .await
        .unwrap();
    assert_eq!(archived, 500);
    client
        .execute("SELECT pg_stat_force_next_flush()", &[])
        .await
        .unwrap();
    let read = "SELECT pg_stat_get_tuples_returned('usage_events_job_id_key'::regclass)";
    let read: i64 = client.query_one(read, &[]).await.unwrap().get(0);
    assert!(read < 10_000, "{read} entries of the index of jobs were read");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_stays_when_the_file_cannot_be_written() {
    let weir = Weir::new().await;
    let mut client = weir.client().await;
    let user = weir.user("free").await;
    used_long_ago(&weir, user, 1, 3).await;
    let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
    let error = archive_usage(&mut client, "test", days_ago(40), |_| Err(full()))
        .await
        .unwrap_err();
    assert!(
        error.to_string().starts_with("the events cannot be written"),
        "{error}"
    );
    assert_eq!(total(&client, user).await, (3, 3));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_that_billing_may_not_have_read_is_not_archived() {
    let weir = Weir::new().await;
    let file = ArchiveFile::new();
    let output = archive(&weir, 30, &file.0);
    assert!(!output.status.success());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("31 days ago"), "{message}");
    weir.end().await;
}

/// Runs this while the archive writes its file.
fn meanwhile<T>(question: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(question))
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_archive_files_do_not_delay_logged_changes() {
    let weir = Weir::new().await;
    let (mut client, other) = (weir.client().await, weir.client().await);
    let user = weir.user("free").await;
    used_long_ago(&weir, user, 1, 3).await;
    other.batch_execute("SET lock_timeout = '1s'").await.unwrap();
    let archived = archive_usage(&mut client, "test", days_ago(40), |_| {
        let logged = other.execute(
            "INSERT INTO admin_log (actor, action) VALUES ('test', 'test')",
            &[],
        );
        meanwhile(logged).map(drop).map_err(std::io::Error::other)
    })
    .await;
    assert_eq!(archived.unwrap(), 3);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_deleted_during_archiving_does_not_leave_usage() {
    let weir = Weir::new().await;
    let mut client = weir.client().await;
    let user = weir.user("free").await;
    used_long_ago(&weir, user, 1, 3).await;
    let mut deleting = None;
    let (url, watch) = (weir.url().to_owned(), weir.client().await);
    archive_usage(&mut client, "test", days_ago(40), |_| {
        let database = Database::at(&url).unwrap();
        deleting = Some(tokio::spawn(async move {
            let mut client = database.connect().await.unwrap();
            let holders = Holders::load(&client).await.unwrap();
            let account = User::of(holders, user.to_string().parse().unwrap());
            control::delete(&mut client, "test", &account).await.unwrap();
        }));
        meanwhile(weir.until("the deletion to wait", async || {
            let waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
            watch.query_opt(waits, &[]).await.unwrap()
        }));
        Ok(())
    })
    .await
    .unwrap();
    deleting.unwrap().await.unwrap();
    let left = "SELECT 1 FROM usage_events WHERE user_id = $1";
    assert!(client.query(left, &[&user]).await.unwrap().is_empty());
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_of_a_current_day_window_stays() {
    let weir = Weir::new().await;
    let mut client = weir.client().await;
    let user = weir.user("free").await;
    // For example a day with a reservation for later.
    client
        .execute(
            "WITH charged AS ( \
                 INSERT INTO usage_events (user_id, event_type, quota_amount, created_at, reserved_at, period_start, windows) \
                 SELECT $1, 'analysis', 1, p.start, p.start, p.start, 1 \
                 FROM (SELECT date_trunc('month', now() - interval '100 days') AS start) p \
                 RETURNING * \
             ) \
             INSERT INTO window_balances (user_id, event_type, span, period_start, used) \
             SELECT user_id, event_type, s, period_start, 1 FROM charged, unnest('{month,day}'::text[]) AS s",
            &[&user],
        )
        .await
        .unwrap();
    let mut archive = async || {
        archive_usage(&mut client, "test", days_ago(40), |_| Ok(()))
            .await
            .unwrap()
    };
    assert_eq!(archive().await, 0);
    assert_eq!(weir.complaints().await, Vec::<String>::new());
    weir.client()
        .await
        .execute("DELETE FROM window_balances WHERE span = 'day'", &[])
        .await
        .unwrap();
    assert_eq!(archive().await, 1);
    weir.end().await;
}
