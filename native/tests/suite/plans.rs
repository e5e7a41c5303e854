//! The statements of the reservation and the settlement look up rows by key, regardless of the planner's estimates of
//! the table sizes.

use std::path::Path;
use std::time::Duration;

use crate::common::Weir;
use jiff::Timestamp;
use tokio_postgres::{Client, GenericClient, SimpleQueryMessage};
use weir::webhooks;

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
             ALTER TABLE quota_reservations SET (autovacuum_enabled = false); \
             INSERT INTO river_job (args, kind, max_attempts, state) \
                 SELECT '{}', 'analysis:analyze', 3, 'pending' FROM generate_series(1, 20000); \
             INSERT INTO quota_reservations (holder, event_type, reserved_amount, job_id, admitted_at, parked_at) \
                 SELECT overlay(gen_random_uuid()::text PLACING 'f' FROM 20)::uuid, 'analysis', 0, id, NULL, now() FROM river_job",
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
    let mut files = vec![ledger.join("lookup.sql")];
    for folder in ["reservation/sql", "settlement/sql"] {
        let entries = std::fs::read_dir(ledger.join(folder)).unwrap();
        files.extend(entries.map(|entry| entry.unwrap().path()));
    }
    let mut statements: Vec<(String, String)> = files
        .iter()
        .map(|path| {
            let name = path.strip_prefix(&ledger).unwrap().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    // The only statement of a function.
    let promote = include_str!("../../../ledger/schema/functions/settlement/promote_parked.sql");
    let body = promote.split_once("RETURN QUERY").unwrap().1;
    let statement = body.rsplit_once(";\nEND").unwrap().0;
    statements.push((
        "functions/settlement/promote_parked.sql".to_owned(),
        statement.to_owned(),
    ));
    let (mut checked, mut wrong) = (0, Vec::<String>::new());
    // With one row in the statistics, a scan of the table seems as cheap as a look-up.
    let one_row = "DELETE FROM quota_reservations WHERE job_id > (SELECT min(job_id) FROM quota_reservations); \
                   ANALYZE quota_reservations";
    // Statements that only some jobs need, and that such a scan slows down.
    let for_some_jobs = ["/draw.sql", "/park_due.sql", "/release.sql"];
    // Statistics as they are before the first ANALYZE, from a time when all jobs waited, and from one when one job did.
    for counted in ["", "ANALYZE", one_row] {
        weir.client().await.batch_execute(counted).await.unwrap();
        for (name, statement) in &statements {
            // These are not on the hot path: they rebuild drifted counters, or read another client's backlog.
            if name.contains("/rebuild_") || name.ends_with("/park_backlog.sql") {
                continue;
            }
            if counted == one_row && for_some_jobs.iter().any(|file| name.ends_with(file)) {
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
            checked += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(checked >= 70, "only {checked} statements were found");
    weir.client()
        .await
        .batch_execute("DELETE FROM quota_reservations; DELETE FROM river_job")
        .await
        .unwrap();
    weir.end().await;
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
             INSERT INTO quota_reservations (holder, event_type, reserved_amount, job_id) \
                 SELECT overlay(gen_random_uuid()::text PLACING 'f' FROM 20)::uuid, 'analysis', 0, id FROM river_job ORDER BY id DESC LIMIT 10; \
             INSERT INTO submissions (job_id, holder, user_id, event_type, reserved_amount) \
                 SELECT id, '{user}', '{user}', 'analysis', 0 FROM river_job ORDER BY id DESC LIMIT 10"
        ))
        .await
        .unwrap();

    let before = finished_read(&transaction).await;
    transaction
        .batch_execute("DELETE FROM quota_reservations")
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
