//! Claims while another session holds a snapshot. PostgreSQL then keeps the index entries of all jobs claimed since.

use crate::common::gate::Gate;
use crate::common::{GO_TESTS, Weir, Who};
use serde_json::json;
use weir::work::Role;

/// Entries of claimed jobs in the default lane's part of the index, enough for slow claims.
const CLAIMED: &str = "
    INSERT INTO river_job (kind, args, max_attempts, queue, state, priority)
    SELECT 'other', '{}', 3, 'analysis_default', 'available', 1 FROM generate_series(1, 200000);
    UPDATE river_job SET state = 'running' WHERE kind = 'other';
    UPDATE river_job SET state = 'completed', finalized_at = now() WHERE kind = 'other'";

/// Sessions that looked for earlier jobs last. Only processes whose claims start late do that.
const LOOKS: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '-- Whether River would claim%'";

#[tokio::test(flavor = "multi_thread")]
async fn slow_claims_start_late_in_the_queue_and_find_every_job() {
    let weir = Weir::new().await;
    let gate = Gate::new();
    gate.open();
    let (client, analyst) = (weir.client().await, weir.snapshot().await);
    client.batch_execute(CLAIMED).await.unwrap();
    let looks = async || client.query_one(LOOKS, &[]).await.unwrap().get::<_, i64>(0);
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
        (looks().await > 0).then_some(())
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

#[tokio::test(flavor = "multi_thread")]
async fn claims_keep_rivers_order_and_start_where_they_are_told() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    client
        .batch_execute(
            "INSERT INTO river_job (kind, args, max_attempts, queue, state, priority, scheduled_at, attempted_by)
             SELECT k.kind, '{}', 3, q.queue, 'available', p.priority, now() - s.start,
                    CASE WHEN p.priority = 2 THEN array_fill('other'::text, ARRAY[120]) END
             FROM (VALUES ('known'), ('other')) AS k (kind), (VALUES ('one'), ('two'), ('paused')) AS q (queue),
                  (VALUES (1), (2)) AS p (priority), (VALUES (interval '1 hour'), ('1 second'), ('-1 hour')) AS s (start);
             INSERT INTO river_queue (name, metadata, paused_at, updated_at) VALUES ('paused', '{}', now(), now())",
        )
        .await
        .unwrap();
    let claim = async |most: i32, since: &str| {
        let sql = format!(
            "SELECT queue, priority::int, scheduled_at > now() - interval '1 minute', claims
             FROM claim_jobs('weir_test', '{{known}}', false, '{{one,two,paused}}', ARRAY[{most}, 10, 10], ARRAY[{since}, now(), NULL])"
        );
        let rows = client.query(&sql, &[]).await.unwrap();
        let row = |row: &tokio_postgres::Row| (row.get(0), row.get(1), row.get(2), row.get(3));
        let mut rows: Vec<(String, i32, bool, i32)> = rows.iter().map(row).collect();
        rows.sort_by(|one, other| one.0.cmp(&other.0));
        rows
    };
    let job = |queue: &str, priority, is_late, claims| (queue.to_owned(), priority, is_late, claims);
    assert_eq!(
        claim(1, "now() - interval '1 minute'").await,
        [
            job("one", 1, true, 1),
            // `attempted_by` keeps the last hundred.
            job("two", 2, false, 100),
            job("two", 2, true, 100)
        ]
    );
    assert_eq!(
        claim(2, "NULL").await,
        [job("one", 1, false, 1), job("one", 2, false, 100)]
    );
    assert_eq!(claim(2, "NULL").await, [job("one", 2, true, 100)]);
    assert_eq!(claim(2, "NULL").await, []);
    client.batch_execute("DELETE FROM river_job").await.unwrap();
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_rows_of_other_programs_do_not_stop_claims() {
    let weir = Weir::new().await;
    let gate = Gate::new();
    gate.open();
    let client = weir.client().await;
    let odd = weir.insert_by_river(json!({}), "analysis_default").await;
    let last = weir.insert_by_river(json!({}), "analysis_default").await;
    client
        .batch_execute(&format!(
            "UPDATE river_job SET scheduled_at = '-infinity' WHERE id = {odd};
             UPDATE river_job SET attempt = 32767, max_attempts = 32767 WHERE id = {last}"
        ))
        .await
        .unwrap();
    let working = gate.work(weir.another(&[]), Role::Both).await;
    let who = Who::User(weir.user("free").await);
    let job = weir.analyse(who, "a_test.go", GO_TESTS).await;
    assert_eq!(weir.finished(job, who).await["status"], "completed");
    let states = "SELECT array_agg(state::text ORDER BY id) FROM river_job WHERE id = ANY ($1)";
    weir.until("the odd one to end", async || {
        let row = client
            .query_one(states, &[&[odd, last].as_slice()])
            .await
            .unwrap();
        (row.get::<_, Vec<String>>(0) == ["completed", "available"]).then_some(())
    })
    .await;
    let attempts = "SELECT attempt::int, coalesce(cardinality(errors), 0) FROM river_job WHERE id = $1";
    let row = client.query_one(attempts, &[&odd]).await.unwrap();
    assert_eq!(
        (row.get::<_, i32>(0), row.get::<_, i32>(1)),
        (1, 0),
        "its claim is not lost"
    );
    client
        .execute("DELETE FROM river_job WHERE id = $1", &[&last])
        .await
        .unwrap();
    working.stop().await;
    weir.is_clean().await;
    weir.end().await;
}
