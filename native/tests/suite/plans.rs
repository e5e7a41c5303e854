//! The statements of the reservation and the settlement look up rows by key, regardless of the planner's estimates of
//! the table sizes.

use std::path::Path;
use std::time::Duration;

use crate::common::Weir;
use jiff::Timestamp;
use tokio_postgres::{Client, GenericClient, SimpleQueryMessage};
use weir::webhooks;
use weir_ledger::reconciliation::FIRST_HOLDER;

/// A statement's plan, independent of its arguments.
async fn plan_of(client: &Client, sql: &str) -> Vec<String> {
    let plan = client
        .simple_query(&format!("EXPLAIN (GENERIC_PLAN, COSTS OFF) {sql}"))
        .await
        .unwrap();
    plan.iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
            _ => None,
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_of_the_hot_paths_do_not_scan_tables() {
    let weir = Weir::new().await;
    // Big tables without statistics, which the planner considers small.
    weir.client()
        .await
        .batch_execute(
            "ALTER TABLE river_job SET (autovacuum_enabled = false); \
             ALTER TABLE weir_jobs SET (autovacuum_enabled = false); \
             INSERT INTO river_job (args, kind, max_attempts, state) \
                 SELECT '{}', 'analysis:analyze', 3, 'pending' FROM generate_series(1, 20000); \
             INSERT INTO weir_jobs (holder, event_type, reserved_amount, job_id, parked_at) \
                 SELECT overlay(gen_random_uuid()::text PLACING 'f' FROM 20)::uuid, 'analysis', 0, id, now() FROM river_job",
        )
        .await
        .unwrap();
    let client = weir
        .context
        .database
        .connect_by_key(Duration::from_secs(1))
        .await
        .unwrap();
    let ledger = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ledger/src");
    let mut files = vec![ledger.join("attempts/sql/end.sql")];
    let entries = std::fs::read_dir(ledger.join("settlement/sql")).unwrap();
    files.extend(entries.map(|entry| entry.unwrap().path()));
    let statements: Vec<(String, String)> = files
        .iter()
        .map(|path| {
            let name = path.strip_prefix(&ledger).unwrap().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    let mut wrong = Vec::<String>::new();
    // With one row in the statistics, a scan of the table seems as cheap as a look-up.
    let one_row =
        "DELETE FROM weir_jobs WHERE job_id > (SELECT min(job_id) FROM weir_jobs); ANALYZE weir_jobs";
    // Statistics as they are before the first ANALYZE, from a time when all jobs waited, and from one when one job did.
    for counted in ["", "ANALYZE", one_row] {
        weir.client().await.batch_execute(counted).await.unwrap();
        for (name, statement) in &statements {
            // The first rebuild drifted counters. The last only some jobs need, and such a scan slows it down.
            if name.contains("/rebuild_") || counted == one_row && name.ends_with("/park_due.sql") {
                continue;
            }
            let plan = plan_of(&client, statement).await;
            let scans: Vec<_> = plan
                .iter()
                // A join filter compares every row of one side with every row of the other. There are four plans.
                .filter(|line| {
                    ["Seq Scan", "Hash Join", "river_job_state_and_finalized_at_index"]
                        .iter()
                        .any(|bad| line.contains(bad))
                        || line.contains("Join Filter") && line.contains(" = ") && !line.contains("plan_id")
                })
                .collect();
            if !scans.is_empty() {
                wrong.push(format!("{name} {counted}: {scans:#?}\n{}", plan.join("\n")));
            }
        }
        let reads = reads_of_a_job(&mut weir.client().await).await;
        if reads.iter().any(|(_, rows)| *rows > 100) {
            wrong.push(format!(
                "submit_many and settle_many {counted}: rows read by table: {reads:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    weir.client()
        .await
        .batch_execute("DELETE FROM weir_jobs; DELETE FROM river_job")
        .await
        .unwrap();
    weir.end().await;
}

/// The rows and index entries that the functions of the hot paths read in each table, for one job that is submitted,
/// claimed and completed, and one that is parked and promoted.
async fn reads_of_a_job(client: &mut Client) -> Vec<(String, i64)> {
    let user = uuid::Uuid::new_v4().to_string();
    let transaction = client.transaction().await.unwrap();
    let submit = "SELECT outcome, job_id FROM weir_submit($1, 'analysis', '{}', 1)";
    let first = transaction.query_one(submit, &[&user]).await.unwrap();
    let second = transaction.query_one(submit, &[&user]).await.unwrap();
    assert_eq!((first.get(0), second.get(0)), ("admitted", "parked"));
    let id: i64 = first.get(1);
    let claimed = "UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now() WHERE id = $1";
    transaction.execute(claimed, &[&id]).await.unwrap();
    let complete = "SELECT outcome FROM weir_complete($1, 1)";
    let completed = transaction.query_one(complete, &[&id]).await.unwrap();
    assert_eq!(completed.get::<_, &str>(0), "done");
    let read = "SELECT c.relname::text, pg_stat_get_xact_tuples_returned(c.oid) \
                       + (SELECT coalesce(sum(pg_stat_get_xact_tuples_returned(i.indexrelid)), 0) \
                          FROM pg_index i WHERE i.indrelid = c.oid)::bigint \
                FROM pg_class c \
                WHERE c.relname IN ('river_job', 'weir_jobs', 'usage_events', 'holders', \
                                    'window_balances')";
    let rows = transaction.query(read, &[]).await.unwrap();
    let reads = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    transaction.rollback().await.unwrap();
    reads
}

/// The number of entries in River's index of finished jobs that this transaction has read.
async fn finished_read(client: &impl GenericClient) -> i64 {
    let read = "SELECT pg_stat_get_xact_tuples_returned('river_job_state_and_finalized_at_index'::regclass)";
    client.query_one(read, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_found_by_id_with_outdated_statistics() {
    const JOBS: i64 = 20_000;
    let weir = Weir::new().await;
    let events = ["job.completed".to_owned()];
    webhooks::add(
        &mut weir.client().await,
        &weir.context.settings,
        "shell:test",
        "https://93.184.215.14/",
        &events,
        &[],
    )
    .await
    .unwrap();
    let user = weir.user("free").await;
    let mut client = weir.writer_session().await;
    client
        .batch_execute(&format!(
            "ALTER TABLE river_job SET (autovacuum_enabled = false); \
             INSERT INTO river_job (args, kind, max_attempts, state) \
                 SELECT '{{}}', 'analysis:analyze', 3, 'pending' FROM generate_series(1, {JOBS}); \
             ANALYZE river_job"
        ))
        .await
        .unwrap();
    let transaction = client.transaction().await.unwrap();
    transaction
        .batch_execute(&format!(
            "UPDATE river_job SET state = 'completed', attempt = 1, finalized_at = now() - interval '2 minutes'; \
             INSERT INTO weir_jobs (job_id, holder, user_id, event_type, reserved_amount, submitted_at, admitted_at) \
                 SELECT id, '{user}', '{user}', 'analysis', 0, now(), now() FROM river_job ORDER BY id DESC LIMIT 10"
        ))
        .await
        .unwrap();

    let before = finished_read(&transaction).await;
    transaction
        .batch_execute("SELECT emit_job_ends(array_agg(job_id)) FROM weir_jobs")
        .await
        .unwrap();
    let deliveries = "SELECT count(*) FROM river_job WHERE kind = 'weir:webhook'";
    let deliveries: i64 = transaction.query_one(deliveries, &[]).await.unwrap().get(0);
    assert_eq!(deliveries, 10);
    let read = finished_read(&transaction).await - before;
    assert!(
        read < JOBS,
        "events of 10 jobs read {read} of the {JOBS} that have ended"
    );

    // A slice is read once, and its jobs by their ids.
    let before = finished_read(&transaction).await;
    let slice = include_str!("../../../ledger/src/reconciliation/sql/keep_finished.sql");
    let row = transaction
        .query_one(slice, &[&"completed", &Timestamp::UNIX_EPOCH, &0_i64, &JOBS])
        .await
        .unwrap();
    assert_eq!(row.get::<_, i64>("kept"), 10);
    let read = finished_read(&transaction).await - before;
    assert!(
        read < 2 * JOBS,
        "keeping 10 jobs read {read} of the {JOBS} that have ended"
    );
    transaction.rollback().await.unwrap();
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_are_cleaned_without_reading_the_users() {
    let weir = Weir::new().await;
    let mut client = weir.writer_session().await;
    // Without the users' other rows.
    client
        .batch_execute(
            "SET session_replication_role = replica; \
             INSERT INTO holders (holder, event_type, user_id) \
                 SELECT id, 'analysis', id \
                 FROM (SELECT overlay(gen_random_uuid()::text PLACING '8' FROM 20)::uuid AS id \
                       FROM generate_series(1, 2000)) users; \
             INSERT INTO holders (holder, event_type) \
                 SELECT overlay(gen_random_uuid()::text PLACING 'f' FROM 20)::uuid, 'analysis' \
                 FROM generate_series(1, 10); \
             RESET session_replication_role",
        )
        .await
        .unwrap();
    let transaction = client.transaction().await.unwrap();
    let (holder, meter) = FIRST_HOLDER;
    let slice = include_str!("../../../ledger/src/reconciliation/sql/clean_holders.sql");
    let row = transaction
        .query_one(slice, &[&holder, &meter, &500_i64])
        .await
        .unwrap();
    assert_eq!(row.get::<_, i64>("done"), 10);
    let read = "SELECT pg_stat_get_xact_tuples_returned('holders'::regclass) \
                       + sum(pg_stat_get_xact_tuples_returned(indexrelid))::bigint \
                FROM pg_index WHERE indrelid = 'holders'::regclass";
    let read: i64 = transaction.query_one(read, &[]).await.unwrap().get(0);
    assert!(read < 100, "read {read} entries for 10 addresses");
    transaction.rollback().await.unwrap();
    weir.abandon().await;
}
