//! After a failover to a standby that lacks the last commits, job ids are reused. Data of a lost job is not mistaken
//! for that of the new one.

use crate::common::later::{Asked, Stage};
use crate::common::{GO_TESTS, Weir, Who, files};
use jiff::Timestamp;
use serde_json::{Value, json};
use weir_ledger::settlement::{Ended, Settled, Success};

/// Deletes everything that a standby without any of the jobs would lack.
async fn lose_all_jobs(weir: &Weir) {
    weir.client()
        .await
        .batch_execute(
            "TRUNCATE river_job, weir_jobs, outstanding_attempts, usage_events, window_balances, holders, \
             waiting_accounts RESTART IDENTITY",
        )
        .await
        .unwrap();
}

/// The endpoint's request about the next job with this id.
async fn asked_again(stage: &Stage, job: i64) -> Asked {
    stage
        .weir
        .until("the endpoint to be asked again", async || {
            stage.asked(job).into_iter().nth(1)
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reused_job_id_has_another_idempotency_key() {
    let stage = Stage::new("60s", &[]).await;
    let (before, after) = (stage.user().await, stage.user().await);
    let working = stage.work().await;
    let lost = stage.submit(before, "work").await;
    stage.weir.finished(lost, before).await;
    let (outstanding, asked) = stage.answered_later(before).await;
    let unowned = stage.insert_unowned("later").await;
    let lost_unowned = stage.started(unowned, 1).await;
    working.stop().await;
    lose_all_jobs(&stage.weir).await;

    let working = stage.work().await;
    assert_eq!(stage.submit(after, "work").await, lost);
    let new = asked_again(&stage, lost).await;
    assert_ne!(
        stage.asked(lost)[0].headers["idempotency-key"],
        new.headers["idempotency-key"]
    );
    stage.weir.finished(lost, after).await;

    // An answer to the lost job does not count for the new one.
    assert_eq!(stage.submit(after, "later").await, outstanding);
    stage.outstanding(outstanding).await;
    for (what, body) in [
        (
            "progress",
            json!({ "fraction": 0.5, "message": "another attempt's" }),
        ),
        ("complete", json!({ "output": "another attempt's" })),
    ] {
        let answer = stage.send(outstanding, &asked.token, what, &body).await;
        assert!(
            (400..500).contains(&answer.status.as_u16()),
            "{what}: {}",
            answer.body
        );
    }
    let job = stage.job(outstanding, after).await;
    assert_eq!(
        (&job["status"], &job["progress"]),
        (&json!("running"), &Value::Null),
        "{job}"
    );
    let own = asked_again(&stage, outstanding).await;
    stage
        .report(&own, "complete", &json!({ "output": "its own" }))
        .await;
    assert_eq!(stage.weir.finished(outstanding, after).await["output"], "its own");

    // The same for jobs without a holder.
    assert_eq!(stage.insert_unowned("later").await, unowned);
    let new = asked_again(&stage, unowned).await;
    assert_ne!(
        lost_unowned.headers["idempotency-key"],
        new.headers["idempotency-key"]
    );
    working.stop().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_jobs_token_does_not_open_another_job() {
    let weir = Weir::new().await;
    let body = files(&[("a_test.go", GO_TESTS)]);
    let submit = async |address| {
        weir.post("/api/jobs/analysis", Who::Address(address), &body)
            .await
            .body
    };
    let lost = submit("198.51.100.1").await;
    lose_all_jobs(&weir).await;
    let new = submit("198.51.100.2").await;
    assert_eq!(lost["job"]["id"], new["job"]["id"]);
    assert_ne!(lost["token"], new["token"]);
    let path = format!("/api/jobs/{}", new["job"]["id"]);
    for (token, status) in [(&lost["token"], 404), (&new["token"], 200)] {
        let headers = [("weir-job-token", token.as_str().unwrap())];
        let answer = weir
            .call("GET", &path, Who::Address("198.51.100.3"), &headers, Vec::new())
            .await;
        assert_eq!(answer.status, status, "{}", answer.body);
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_success_at_a_lost_job_does_not_complete_the_next_one() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let created_at = async |id: i64| -> Timestamp {
        let sql = "SELECT created_at FROM river_job WHERE id = $1";
        client.query_one(sql, &[&id]).await.unwrap().get(0)
    };
    let [before, after] = [weir.user("free").await, weir.user("free").await];
    let lost = weir.analyse(Who::User(before), "a_test.go", GO_TESTS).await;
    let lost_at = created_at(lost).await;
    lose_all_jobs(&weir).await;
    let new = weir.analyse(Who::User(after), "a_test.go", GO_TESTS).await;
    assert_eq!(new, lost);
    weir.start_elsewhere(new).await;
    let settle = async |job_created_at, output: &str| {
        let success = Success {
            attempt: 1,
            job_created_at: Some(job_created_at),
            output: json!(output),
            used: None,
        };
        let ended = Ended {
            job_id: new,
            holder: None,
            success: Some(success),
        };
        weir.context.settler.settle(ended).await.unwrap()
    };
    assert_eq!(settle(lost_at, "another attempt's").await, Settled::FencedOut);
    let new_at = created_at(new).await;
    assert_eq!(settle(new_at, "its own").await, Settled::Done { charged: 1 });
    let job = weir.get(&format!("/api/jobs/{new}"), Who::User(after)).await.body;
    assert_eq!(job["output"], "its own", "{job}");
    weir.end().await;
}
