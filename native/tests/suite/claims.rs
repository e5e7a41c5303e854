//! Claims while another session holds a snapshot. PostgreSQL then keeps the index entries of all jobs claimed since.

use std::time::Duration;

use crate::common::gate::Gate;
use crate::common::{GO_TESTS, Weir, Who};
use jiff::{SignedDuration, Timestamp};
use riverqueue::sqlx;
use uuid::Uuid;
use weir::work::Role;
use weir_ledger::database::{Database, NarrowConnections};

/// Entries of claimed jobs in the default lane's part of the index, enough for slow claims.
const CLAIMED: &str = "
    INSERT INTO river_job (kind, args, max_attempts, queue, state, priority)
    SELECT 'other', '{}', 3, 'analysis_default', 'available', 1 FROM generate_series(1, 200000);
    UPDATE river_job SET state = 'running' WHERE kind = 'other';
    UPDATE river_job SET state = 'completed', finalized_at = now() WHERE kind = 'other'";

/// Temporary views in the place of River's table.
const VIEWS: &str = "SELECT count(*) FROM pg_class WHERE relname = 'river_job' AND relpersistence = 't'";

#[tokio::test(flavor = "multi_thread")]
async fn slow_claims_start_late_in_the_queue_and_find_every_job() {
    let weir = Weir::new().await;
    let gate = Gate::new();
    gate.open();
    let (client, analyst) = (weir.client().await, weir.snapshot().await);
    client.batch_execute(CLAIMED).await.unwrap();
    let views = async || client.query_one(VIEWS, &[]).await.unwrap().get::<_, i64>(0);
    let working = gate
        .work(
            weir.another(&[("ANALYZER_QUEUE_DEFAULT_WORKERS", "2")]),
            Role::Both,
        )
        .await;

    let submit = async || {
        let user = weir.user("free").await;
        weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
        weir.all_finished().await;
    };
    weir.until("claims to be slow", async || {
        submit().await;
        (views().await > 0).then_some(())
    })
    .await;

    // Jobs of a transaction that commits late.
    for age in ["1 hour", "10 seconds", "3 seconds", "0"] {
        let sql = format!(
            "BEGIN; SELECT weir_submit('anne', 'analysis', '{{}}');
             UPDATE river_job SET scheduled_at = now() - interval '{age}' WHERE state = 'available'; COMMIT"
        );
        client.batch_execute(&sql).await.unwrap();
        weir.all_finished().await;
    }

    for statement in ["ROLLBACK", "VACUUM river_job"] {
        analyst.batch_execute(statement).await.unwrap();
    }
    submit().await;
    working.stop().await;
    weir.is_clean().await;
    weir.end().await;
}

/// The jobs that a connection for slow claims shows, by priority, when claims start a minute ago.
async fn shown(narrow: &NarrowConnections) -> Option<Vec<(i16, bool)>> {
    let (mut connection, now) = narrow.connect(Timestamp::now() - Duration::from_secs(60)).await?;
    assert!(now.duration_since(Timestamp::now()).abs() < SignedDuration::from_secs(30));
    let sql = "SELECT priority, scheduled_at < now() - interval '1 minute' FROM river_job ORDER BY 1, 2";
    let rows: Vec<(i16, bool)> = sqlx::query_as(sql).fetch_all(&mut *connection).await.unwrap();
    Some(rows)
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_for_slow_claims_skip_early_jobs_of_the_first_priority() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    client
        .batch_execute(
            "INSERT INTO river_job (kind, args, max_attempts, queue, state, priority, scheduled_at)
             SELECT 'other', '{}', 3, 'q', 'available', priority, now() - start
             FROM (VALUES (1), (2)) AS p (priority), (VALUES (interval '1 hour'), ('1 second')) AS s (start)",
        )
        .await
        .unwrap();
    let narrow = NarrowConnections::new(&weir.context.database, || unreachable!()).unwrap();
    let all_but_the_first = vec![(1, false), (2, false), (2, true)];
    for _ in 0..3 {
        assert_eq!(shown(&narrow).await, Some(all_but_the_first.clone()));
    }
    narrow.pause();
    assert_eq!(
        shown(&narrow).await,
        None,
        "after an error, claims read the whole table"
    );
    drop(narrow);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_temporary_views_there_are_no_connections_for_slow_claims() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let role = format!("stranger_{}", Uuid::new_v4().simple());
    let run = async |sql: &str| client.batch_execute(&sql.replace("{}", &role)).await.unwrap();
    run("CREATE ROLE {} LOGIN PASSWORD 'secret'; GRANT ALL ON ALL TABLES IN SCHEMA public TO {}; \
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO {}; \
         DO $$ BEGIN EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database()); END $$")
    .await;
    let mut url = reqwest::Url::parse(weir.url()).unwrap();
    url.set_username(&role).unwrap();
    url.set_password(Some("secret")).unwrap();
    let database = Database::at(url.as_str()).unwrap();
    let shown = async || shown(&NarrowConnections::new(&database, || unreachable!()).unwrap()).await;
    assert_eq!(shown().await, None);
    run("DO $$ BEGIN EXECUTE format('GRANT TEMPORARY ON DATABASE %I TO {}', current_database()); END $$")
        .await;
    assert_eq!(shown().await, Some(Vec::new()));
    run("DROP OWNED BY {}; DROP ROLE {}").await;
    weir.end().await;
}
