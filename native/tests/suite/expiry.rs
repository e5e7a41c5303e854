//! Jobs with an expiry: a job that still waits then is cancelled, and no attempt starts after it.

use std::time::Duration;

use serde_json::{Value, json};
use weir::webhooks;
use weir::work::Role;

use crate::common::gate::Gate;
use crate::common::{Answer, EXTERNAL, GO_TESTS, Weir, Who, files};

async fn submit(weir: &Weir, who: Who, headers: &[(&str, &str)]) -> Answer {
    let body = files(&[("a_test.go", GO_TESTS)]).to_string().into_bytes();
    weir.call("POST", "/api/jobs/analysis", who, headers, body).await
}

async fn job(weir: &Weir, id: i64, who: Who) -> Value {
    weir.get(&format!("/api/jobs/{id}"), who).await.body
}

/// Makes the job's expiry pass.
async fn pass(weir: &Weir, id: i64) {
    let pass = "UPDATE quota_reservations SET start_by = now() - interval '1 second' WHERE job_id = $1 AND start_by > now()";
    assert_eq!(weir.client().await.execute(pass, &[&id]).await.unwrap(), 1);
}

/// The seconds until a job expires; null without an expiry.
async fn seconds_left(weir: &Weir, id: i64) -> Option<f64> {
    let sql = "SELECT extract(epoch FROM start_by - now())::float8 FROM quota_reservations WHERE job_id = $1";
    weir.client().await.query_one(sql, &[&id]).await.unwrap().get(0)
}

async fn claimed(weir: &Weir, queue: &str) -> i64 {
    let claim = "SELECT count(*) FROM weir_claim($1, 'worker-1', 10, 0)";
    weir.client()
        .await
        .query_one(claim, &[&queue])
        .await
        .unwrap()
        .get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_when_it_expires_is_cancelled_and_returns_its_quota() {
    let weir = Weir::with(&[("WEBHOOK_WORKERS", "0")]).await;
    let (mut client, settings) = (weir.client().await, &weir.context.settings);
    let events = ["job.expired".to_owned(), "job.cancelled".to_owned()];
    let url = "https://example.com/expired";
    webhooks::add(&mut client, settings, "shell:test", url, &events, &[])
        .await
        .unwrap();
    let who = Who::User(weir.user("free").await);
    let gate = Gate::new();
    let working = gate.work(weir.another(&[]), Role::Both).await;
    let runs = submit(&weir, who, &[("weir-expires-in", "600")]).await.body["job"]["id"]
        .as_i64()
        .unwrap();
    weir.running(runs, who).await;
    let accepted = submit(&weir, who, &[("weir-expires-in", "600")]).await;
    let waits = accepted.body["job"]["id"].as_i64().unwrap();
    let left = seconds_left(&weir, waits).await.unwrap();
    assert!((500.0..=600.0).contains(&left), "{left}");
    assert_eq!(
        job(&weir, waits, who).await["expires_at"],
        accepted.body["job"]["expires_at"]
    );
    pass(&weir, waits).await;
    pass(&weir, runs).await;

    weir.reconcile().await;
    let ended = job(&weir, waits, who).await;
    assert_eq!(ended["status"], "cancelled");
    assert_eq!(ended["error"]["message"], "it had not started before it expired");
    assert_eq!(weir.quota(who, "analysis").await["reserved"], 1);
    // The attempt that runs goes on.
    assert_eq!(job(&weir, runs, who).await["status"], "running");
    gate.open();
    assert_eq!(weir.finished(runs, who).await["charged"], 1);
    let types = "SELECT (args ->> 'body')::jsonb ->> 'type' FROM river_job WHERE kind = 'weir:webhook'";
    let rows = weir.client().await.query(types, &[]).await.unwrap();
    let types: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(types, ["job.expired"]);
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_attempt_starts_at_an_expired_job() {
    let weir = Weir::with(&[EXTERNAL]).await;
    let client = weir.client().await;
    client
        .batch_execute("UPDATE plan_limits SET burst = 10")
        .await
        .unwrap();
    let submit =
        "SELECT job_id FROM weir_submit('anne', 'render', '{\"pages\": 1}', NULL, '{\"expires_in\": 60}')";
    let available: i64 = client.query_one(submit, &[]).await.unwrap().get(0);
    let parked: i64 = client.query_one(submit, &[]).await.unwrap().get(0);
    // No process reconciles here.
    for id in [available, parked] {
        pass(&weir, id).await;
    }
    assert_eq!(claimed(&weir, "render_default").await, 0);
    weir.reconcile().await;
    let who = Who::User(weir.holder("anne").await);
    for id in [available, parked] {
        assert_eq!(job(&weir, id, who).await["status"], "cancelled");
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_does_not_start_after_the_expiry() {
    let weir = Weir::with(&[EXTERNAL]).await;
    let client = weir.client().await;
    let submit =
        "SELECT job_id FROM weir_submit('anne', 'render', '{\"pages\": 3}', NULL, '{\"expires_in\": 60}')";
    let id: i64 = client.query_one(submit, &[]).await.unwrap().get(0);
    assert_eq!(claimed(&weir, "render_default").await, 1);
    pass(&weir, id).await;
    weir.reconcile().await;
    let who = Who::User(weir.holder("anne").await);
    assert_eq!(job(&weir, id, who).await["status"], "running");
    let fail = "SELECT weir_fail($1, 1, 'no paper', now())";
    let outcome: String = client.query_one(fail, &[&id]).await.unwrap().get(0);
    assert_eq!(outcome, "retry");
    weir.reconcile().await;
    assert_eq!(job(&weir, id, who).await["status"], "cancelled");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_counts_from_the_start_time_and_defaults_to_the_services() {
    let weir = Weir::with(&[EXTERNAL]).await;
    let client = weir.client().await;
    let submitted = async |service: &str, options: Value| -> i64 {
        let sql = "SELECT job_id FROM weir_submit('anne', $1, '{\"pages\": 1}', NULL, $2)";
        client.query_one(sql, &[&service, &options]).await.unwrap().get(0)
    };
    let near = |left: Option<f64>, seconds: f64| (seconds - 60.0..=seconds).contains(&left.unwrap());
    let later = (jiff::Timestamp::now() + Duration::from_secs(3600)).to_string();
    let id = submitted("render", json!({ "run_at": later, "expires_in": 600 })).await;
    assert!(near(seconds_left(&weir, id).await, 4200.0));
    let id = submitted("render", json!({})).await;
    assert_eq!(seconds_left(&weir, id).await, None);
    let id = submitted("mail", json!({})).await;
    assert!(near(seconds_left(&weir, id).await, 600.0));
    let id = submitted("mail", json!({ "expires_in": 120 })).await;
    assert!(near(seconds_left(&weir, id).await, 120.0));
    let by_http = weir
        .post("/api/jobs/mail", Who::User(weir.holder("anne").await), &json!({}))
        .await;
    let id = by_http.body["job"]["id"].as_i64().unwrap();
    assert!(near(seconds_left(&weir, id).await, 600.0));
    for wrong in [json!(0), json!("60"), json!(1.5), json!(31_622_401), json!(-1)] {
        let sql = "SELECT weir_submit('anne', 'mail', '{}', NULL, $1)";
        let refused = client.query_one(sql, &[&json!({ "expires_in": wrong })]).await;
        let error = refused.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "22023", "{wrong}");
    }
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_expiry_is_another_request() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("pro").await);
    let with = async |expiry: &str| {
        let headers = [("idempotency-key", "k1"), ("weir-expires-in", expiry)];
        submit(&weir, who, &headers).await
    };
    let first = with("600").await;
    assert_eq!(first.status, 202, "{}", first.body);
    assert_eq!(with("600").await.body["job"]["id"], first.body["job"]["id"]);
    assert_eq!(with("601").await.status, 422);
    assert_eq!(with("soon").await.status, 422);
    weir.abandon().await;
}
