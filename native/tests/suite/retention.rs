//! Results are kept for as long as the plan allows, even after River has deleted the job.

use std::fmt::Write as _;
use std::time::Duration;

use crate::common::{GO_TESTS, Weir, Who, files};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio_postgres::Client;
use uuid::Uuid;
use weir::work::{Role, Working};

/// A file with an analysis output of more than 4 KiB.
fn many_tests() -> String {
    (0..200).fold("package a\n".to_owned(), |mut file, n| {
        let _ = writeln!(file, "func TestNumber{n}OfMany(t *testing.T) {{}}");
        file
    })
}

/// Makes all finished jobs this much older, so that River deletes them.
async fn age(weir: &Weir, client: &Client, days: i32) {
    client
        .execute(
            "UPDATE river_job SET finalized_at = finalized_at - make_interval(days => $1) WHERE finalized_at IS NOT NULL",
            &[&days],
        )
        .await
        .unwrap();
    client
        .execute(
            "UPDATE weir_jobs SET submitted_at = submitted_at - make_interval(days => $1)",
            &[&days],
        )
        .await
        .unwrap();
    weir.reconcile().await;
    client
        .batch_execute("DELETE FROM river_job WHERE finalized_at IS NOT NULL")
        .await
        .unwrap();
    weir.reconcile().await;
}

/// Makes kept jobs due for review.
async fn review(weir: &Weir, client: &Client) {
    client
        .batch_execute("UPDATE finished_jobs SET review_at = now() - interval '1 second'")
        .await
        .unwrap();
    weir.reconcile().await;
    // Includes rows that the previous round freed.
    weir.reconcile().await;
}

async fn read(weir: &Weir, id: i64, user: Uuid) -> Value {
    let answer = weir.get(&format!("/api/jobs/{id}"), Who::User(user)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

#[tokio::test(flavor = "multi_thread")]
async fn river_deletes_finished_jobs_after_the_configured_time() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    client
        .batch_execute(
            "INSERT INTO river_job (kind, queue, args, max_attempts, state, finalized_at) \
             SELECT 'other', 'other', '{}', 1, 'completed', now() - make_interval(hours => age) \
             FROM unnest(ARRAY[1, 3]) AS age",
        )
        .await
        .unwrap();
    let context = weir.another(&[("RIVER_COMPLETED_RETENTION", "2h")]);
    let leader = Working::start(&context, Role::Lead, &[]).await.unwrap();
    // River's leader deletes every 30 s.
    let deleted = async {
        while weir.count("river_job").await > 1 {
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(180), deleted)
        .await
        .expect("the older job is deleted");
    assert_eq!(
        weir.count("river_job WHERE finalized_at > now() - interval '2 hours'")
            .await,
        1
    );
    leader.stop().await;
    weir.abandon().await;
}

/// Asserts that a job looks as it did before River deleted it.
fn assert_unchanged(before: &Value, after: &Value) {
    for member in [
        "id",
        "service",
        "status",
        "output",
        "charged",
        "attempt",
        "created_at",
        "started_at",
        "plan",
    ] {
        assert_eq!(before[member], after[member], "{member}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn results_are_kept_by_plan_after_river_deletes_the_job() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let user = weir.user("free").await;
    let who = Who::User(user);
    let key = [("Idempotency-Key", "again")];
    let many = many_tests();
    let body = files(&[("a_test.go", many.as_str())]).to_string().into_bytes();
    let submitted = weir
        .call("POST", "/api/jobs/analysis", who, &key, body.clone())
        .await;
    let large = submitted.body["job"]["id"].as_i64().unwrap();
    let small = weir.analyse(who, "b_test.go", GO_TESTS).await;
    let anonymous = weir
        .call(
            "POST",
            "/api/jobs/analysis",
            Who::Address("192.0.2.1"),
            &[],
            files(&[("c_test.go", GO_TESTS)]).to_string().into_bytes(),
        )
        .await;
    assert_eq!(anonymous.status, 202, "{}", anonymous.body);
    let working = weir.work().await;
    weir.all_finished().await;
    working.stop().await;

    let before = (read(&weir, large, user).await, read(&weir, small, user).await);
    assert_eq!(before.0["output"]["count"], 200);
    let metadata = client
        .query("SELECT id, metadata ? 'output' FROM river_job ORDER BY id", &[])
        .await
        .unwrap();
    let in_metadata: Vec<(i64, bool)> = metadata.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(in_metadata[..2], [(large, false), (small, true)]);

    age(&weir, &client, 10).await;
    assert_eq!(weir.jobs().await, 0);
    let after = (read(&weir, large, user).await, read(&weir, small, user).await);
    assert_unchanged(&before.0, &after.0);
    assert_unchanged(&before.1, &after.1);
    let list = weir.get("/api/jobs", who).await.body;
    let ids: Vec<i64> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["id"].as_i64().unwrap())
        .collect();
    assert_eq!(ids, [small, large]);
    assert_eq!(
        weir.count("finished_jobs").await,
        2,
        "an address's jobs are not kept"
    );
    assert_eq!(weir.count("weir_jobs").await, 2);
    client.batch_execute("DELETE FROM river_job").await.unwrap();

    review(&weir, &client).await;
    assert_eq!(
        read(&weir, large, user).await["output"]["count"],
        200,
        "the plan keeps it for 30 days"
    );
    client
        .batch_execute("UPDATE finished_jobs SET finalized_at = finalized_at - interval '21 days'")
        .await
        .unwrap();
    // A user on a larger plan keeps results for longer.
    client
        .execute(
            "INSERT INTO user_subscriptions (user_id, plan_id) SELECT $1, id FROM subscription_plans WHERE tier = 'pro'
             ON CONFLICT (user_id) WHERE status = 'active' DO UPDATE SET plan_id = excluded.plan_id",
            &[&user],
        )
        .await
        .unwrap();
    review(&weir, &client).await;
    assert_eq!(read(&weir, small, user).await["output"]["count"], 2);
    client
        .batch_execute("UPDATE finished_jobs SET finalized_at = finalized_at - interval '150 days'")
        .await
        .unwrap();
    review(&weir, &client).await;
    let gone = weir.get(&format!("/api/jobs/{large}"), who).await;
    assert_eq!(gone.status, 404, "{}", gone.body);
    for table in ["finished_jobs", "job_outputs", "weir_jobs"] {
        assert_eq!(weir.count(table).await, 0, "{table}");
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unlimited_retention_does_not_affect_other_plans() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let for_ever = "UPDATE subscription_plans SET retention_days = 2147483647 WHERE tier = 'pro'";
    assert_eq!(client.execute(for_ever, &[]).await.unwrap(), 1);
    let mut jobs = Vec::new();
    for plan in ["pro", "free"] {
        let user = weir.user(plan).await;
        let id = weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
        weir.ended_by_other_client(id, "completed").await;
        jobs.push((id, user));
    }
    weir.reconcile().await;
    age(&weir, &client, 2).await;
    for (id, user) in &jobs {
        assert_eq!(read(&weir, *id, *user).await["status"], "completed");
    }
    client
        .batch_execute("UPDATE finished_jobs SET finalized_at = finalized_at - interval '400 days'")
        .await
        .unwrap();
    review(&weir, &client).await;
    let left = client
        .query("SELECT job_id FROM finished_jobs", &[])
        .await
        .unwrap();
    assert_eq!(
        left.iter().map(|row| row.get(0)).collect::<Vec<i64>>(),
        [jobs[0].0]
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retried_job_is_kept_with_its_last_result() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let user = weir.user("free").await;
    let id = weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    weir.ended_by_other_client(id, "discarded").await;
    let minutes = "UPDATE river_job SET finalized_at = finalized_at - interval '2 minutes'";
    client.batch_execute(minutes).await.unwrap();
    weir.reconcile().await;
    assert_eq!(weir.count("finished_jobs WHERE state = 'discarded'").await, 1);
    // An operator retries it in River's interface.
    client
        .batch_execute("UPDATE river_job SET state = 'available', finalized_at = NULL, scheduled_at = now()")
        .await
        .unwrap();
    let job = read(&weir, id, user).await;
    assert_eq!(job["status"], "queued", "River's result counts");
    let working = weir.work().await;
    weir.all_finished().await;
    working.stop().await;
    client.batch_execute(minutes).await.unwrap();
    weir.reconcile().await;
    client.batch_execute("DELETE FROM river_job").await.unwrap();
    let job = read(&weir, id, user).await;
    assert_eq!(
        (&job["status"], &job["output"]["count"]),
        (&json!("completed"), &json!(2))
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_large_outputs_use_bounded_memory() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let (user, other) = (weir.user("free").await, weir.user("free").await);
    let large = json!("x".repeat(4 * 1024 * 1024 - 2));
    let mut paths = Vec::new();
    for user in [user, other] {
        let id = weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
        weir.start_elsewhere(id).await;
        client
            .query_one("SELECT weir_complete($1, 1, $2)", &[&id, &large])
            .await
            .unwrap();
        paths.push(format!("/api/jobs/{id}"));
    }
    let mut kept = Vec::new();
    let refused = loop {
        let response = weir.stream(&paths[0], Who::User(user)).await;
        match response.status().as_u16() {
            200 => kept.push(response),
            other => break other,
        }
        assert!(kept.len() < 100, "400 MiB");
    };
    assert_eq!((refused, kept.len()), (503, 7), "four MiB each, of 32 in all");
    assert_eq!(weir.get(&paths[1], Who::User(other)).await.body["output"], large);
    assert_eq!(weir.get("/api/jobs", Who::User(user)).await.status, 200);
    let taken = axum::body::to_bytes(kept.pop().unwrap().into_body(), usize::MAX).await;
    assert!(taken.unwrap().len() > 4 * 1024 * 1024);
    // A result that was read makes room for a stream, until the stream's next event is read.
    let events = weir
        .stream(&format!("{}/events", paths[0]), Who::User(user))
        .await;
    let mut frames = events.into_body().into_data_stream();
    assert!(frames.next().await.unwrap().unwrap().len() > 4 * 1024 * 1024);
    assert_eq!(weir.get(&paths[0], Who::User(user)).await.status, 503);
    assert!(frames.next().await.is_none(), "the job is over");
    assert_eq!(weir.get(&paths[0], Who::User(user)).await.status, 200);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_output_by_sql_is_readable_and_deleted_with_its_owner() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let user = weir.user("free").await;
    let id = weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    weir.start_elsewhere(id).await;
    let output = json!({ "text": "x".repeat(10_000) });
    client
        .query_one("SELECT weir_complete($1, 1, $2)", &[&id, &output])
        .await
        .unwrap();
    assert_eq!(read(&weir, id, user).await["output"], output);
    assert_eq!(weir.count("job_outputs").await, 1);
    assert_eq!(weir.count("river_job WHERE metadata ? 'output'").await, 0);
    age(&weir, &client, 2).await;
    assert_eq!(read(&weir, id, user).await["output"], output);
    let account = weir_ledger::control::User::of(
        weir_ledger::holder::Holders::load(&client).await.unwrap(),
        user.to_string().parse().unwrap(),
    );
    let deleted = weir_ledger::control::delete(&mut weir.client().await, "shell:test", &account)
        .await
        .unwrap();
    assert_eq!(deleted.jobs, 1);
    for table in ["finished_jobs", "job_outputs", "weir_jobs"] {
        assert_eq!(weir.count(table).await, 0, "{table}");
    }
    weir.end().await;
}
