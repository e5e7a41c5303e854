//! Ended jobs that run again: one, or all that failed alike. Each reserves quota as a new submission would.

use std::process::Output;

use serde_json::{Value, json};

use crate::common::process::command;
use crate::common::{Answer, EXTERNAL, Weir, Who};

/// Submits a job of `render` for this many pages, in SQL.
async fn submit(weir: &Weir, subject: &str, pages: i64) -> (String, Option<i64>) {
    let sql = "SELECT outcome, job_id FROM weir_submit($1, 'render', $2)";
    let args = json!({ "pages": pages });
    let row = weir
        .client()
        .await
        .query_one(sql, &[&subject, &args])
        .await
        .unwrap();
    (row.get(0), row.get(1))
}

/// Claims the next job, and fails it for good with this error.
async fn fail(weir: &Weir, error: &str) -> i64 {
    let client = weir.client().await;
    let claim = "SELECT job_id, attempt FROM weir_claim('render_default', 'worker-1')";
    let row = client.query_one(claim, &[]).await.unwrap();
    let (job, attempt): (i64, i32) = (row.get(0), row.get(1));
    let last = "UPDATE river_job SET max_attempts = attempt WHERE id = $1";
    client.execute(last, &[&job]).await.unwrap();
    let fail = "SELECT weir_fail($1, $2, $3)";
    let outcome: String = client
        .query_one(fail, &[&job, &attempt, &error])
        .await
        .unwrap()
        .get(0);
    assert_eq!(outcome, "discarded");
    job
}

async fn complete(weir: &Weir, job: i64) -> i64 {
    let client = weir.client().await;
    let claim = "SELECT attempt FROM weir_claim('render_default', 'worker-1') WHERE job_id = $1";
    let attempt: i32 = client.query_one(claim, &[&job]).await.unwrap().get(0);
    let complete = "SELECT charged FROM weir_complete($1, $2)";
    client
        .query_one(complete, &[&job, &attempt])
        .await
        .unwrap()
        .get(0)
}

async fn retry(weir: &Weir, job: i64) -> (String, Value) {
    let sql = "SELECT outcome, coalesce(quota, 'null') FROM weir_retry($1)";
    let row = weir.client().await.query_one(sql, &[&job]).await.unwrap();
    (row.get(0), row.get(1))
}

async fn by_http(weir: &Weir, job: i64, who: Who) -> Answer {
    let path = format!("/api/jobs/{job}/retry");
    weir.call("POST", &path, who, &[], Vec::new()).await
}

/// The user's month: the limit, used and reserved.
async fn month(weir: &Weir, who: Who) -> (i64, i64) {
    let quota = weir.quota(who, "analysis").await;
    (
        quota["used"].as_i64().unwrap(),
        quota["reserved"].as_i64().unwrap(),
    )
}

fn run(weir: &Weir, arguments: &[&str]) -> Output {
    command(weir, arguments).output().unwrap()
}

fn printed(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_job_runs_again_and_is_charged_once() {
    let weir = Weir::with(&[EXTERNAL]).await;
    let who = Who::User(weir.holder("anne").await);
    submit(&weir, "anne", 7).await;
    let job = fail(&weir, "no paper").await;
    assert_eq!(month(&weir, who).await, (0, 0));

    let answer = by_http(&weir, job, who).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    assert_eq!(answer.body["job"]["id"], job);
    assert_eq!(answer.body["job"]["waiting_for"], "worker");
    assert_eq!(
        (&answer.body["job"]["reserved"], &answer.body["quota"]["reserved"]),
        (&json!(7), &json!(7))
    );
    assert_eq!(month(&weir, who).await, (0, 7));
    // It waits, so it has not failed.
    assert_eq!(by_http(&weir, job, who).await.status, 409);
    assert_eq!(complete(&weir, job).await, 7);
    assert_eq!(month(&weir, who).await, (7, 0));
    // It was charged.
    assert_eq!(retry(&weir, job).await.0, "not_failed");
    assert_eq!(retry(&weir, 4711).await.0, "not_found");
    let errors = "SELECT cardinality(errors), attempt::int FROM river_job WHERE id = $1";
    let row = weir.client().await.query_one(errors, &[&job]).await.unwrap();
    assert_eq!(
        (row.get::<_, i32>(0), row.get::<_, i32>(1)),
        (1, 2),
        "it keeps its first attempt"
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_users_job_and_a_job_over_the_quota_do_not_run_again() {
    let weir = Weir::with(&[EXTERNAL]).await;
    let who = Who::User(weir.holder("anne").await);
    submit(&weir, "anne", 40).await;
    let job = fail(&weir, "no paper").await;
    let stranger = Who::User(weir.user("free").await);
    assert_eq!(by_http(&weir, job, stranger).await.status, 404);

    weir.use_up(weir.holder("anne").await, "analysis", 11).await;
    let refused = by_http(&weir, job, who).await;
    assert_eq!(refused.status, 429, "{}", refused.body);
    assert_eq!(refused.body["quota"]["remaining"], 39);
    let (outcome, quota) = retry(&weir, job).await;
    assert_eq!(
        (outcome.as_str(), &quota["windows"][0]["remaining"]),
        ("over_quota", &json!(39))
    );
    let state = "SELECT state::text FROM river_job WHERE id = $1";
    let state: String = weir
        .client()
        .await
        .query_one(state, &[&job])
        .await
        .unwrap()
        .get(0);
    assert_eq!(state, "discarded");
    assert_eq!(month(&weir, who).await, (11, 0));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_beyond_the_plan_draws_on_grants() {
    let weir = Weir::with(&[EXTERNAL]).await;
    let who = Who::User(weir.holder("anne").await);
    submit(&weir, "anne", 8).await;
    let job = fail(&weir, "no paper").await;
    weir.use_up(weir.holder("anne").await, "analysis", 45).await;
    let grant = run(
        &weir,
        &["user", "grant", "anne", "analysis", "10", "--reason", "test"],
    );
    assert!(grant.status.success(), "{grant:?}");
    assert_eq!(retry(&weir, job).await.0, "admitted");
    let drawn = "SELECT from_grants, overage FROM quota_reservations WHERE job_id = $1";
    let row = weir.client().await.query_one(drawn, &[&job]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (3, 0));
    assert_eq!(complete(&weir, job).await, 8);
    assert_eq!(month(&weir, who).await, (53, 0));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_and_an_expired_job_run_again_when_their_user_has_a_slot() {
    let weir = Weir::with(&[EXTERNAL]).await;
    let client = weir.client().await;
    let who = Who::User(weir.holder("anne").await);
    let first = submit(&weir, "anne", 1).await.1.unwrap();
    let sql =
        "SELECT job_id FROM weir_submit('anne', 'render', '{\"pages\": 2}', NULL, '{\"expires_in\": 60}')";
    let expires: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
    let pass = "UPDATE quota_reservations SET start_by = now() WHERE job_id = $1";
    client.execute(pass, &[&expires]).await.unwrap();
    weir.reconcile().await;
    assert_eq!(
        weir.get(&format!("/api/jobs/{expires}"), who).await.body["status"],
        "cancelled"
    );
    // The only slot is taken.
    let answer = by_http(&weir, expires, who).await;
    assert_eq!(answer.body["job"]["waiting_for"], "slot", "{}", answer.body);
    assert_eq!(answer.body["job"]["expires_at"], Value::Null);
    let path = format!("/api/jobs/{first}");
    assert_eq!(
        weir.call("DELETE", &path, who, &[], Vec::new()).await.body["status"],
        "cancelled"
    );
    assert_eq!(
        by_http(&weir, first, who).await.body["job"]["waiting_for"],
        "slot"
    );
    assert_eq!(complete(&weir, expires).await, 2);
    // A failure of the retried job is a failure, and no cancellation.
    assert_eq!(fail(&weir, "no paper").await, first);
    assert_eq!(weir.get(&path, who).await.body["status"], "failed");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_retries_the_jobs_that_failed_alike() {
    let weir = Weir::with(&[EXTERNAL]).await;
    let mut carls = None;
    for (subject, error) in [
        ("anne", "connection refused"),
        ("bea", "Connection refused by peer"),
        ("carl", "no paper"),
    ] {
        (_, carls) = submit(&weir, subject, 3).await;
        fail(&weir, error).await;
    }
    weir.use_up(weir.holder("bea").await, "analysis", 49).await;
    let selection = [
        "job",
        "retry",
        "--service",
        "render",
        "--error",
        "connection refused",
    ];
    let dry = run(&weir, &[&selection[..], &["--dry-run"]].concat());
    assert_eq!(printed(&dry), "2 jobs would change\n");
    let done = run(&weir, &selection);
    assert_eq!(printed(&done), "over_quota: 1 job\nretried: 1 job\n");
    assert_eq!(done.status.code(), Some(1));
    let log = "SELECT after FROM admin_log WHERE action = 'jobs.retry'";
    let after: Value = weir.client().await.query_one(log, &[]).await.unwrap().get(0);
    assert_eq!(after["outcomes"], json!({ "over_quota": 1, "retried": 1 }));

    let key = run(&weir, &["key", "create", "--name", "ops", "--scope", "admin"]);
    let bearer = format!("Bearer {}", printed(&key).lines().last().unwrap());
    let ask = async |body: Value| {
        weir.with_key("POST", "/admin/jobs/retry", &bearer, "-", &body.to_string())
            .await
    };
    let all = ask(json!({ "subject": "carl", "dry_run": true })).await;
    assert_eq!(
        all.body,
        json!({ "matching": 1, "next": carls, "outcomes": {} }),
        "{}",
        all.status
    );
    let all = ask(json!({ "subject": "carl" })).await;
    assert_eq!(
        all.body,
        json!({ "matching": 1, "next": carls, "outcomes": { "retried": 1 } })
    );
    let rest = ask(json!({ "subject": "carl", "after": carls })).await;
    assert_eq!(rest.body, json!({ "matching": 0, "next": null, "outcomes": {} }));
    assert_eq!(ask(json!({})).await.status, 422);
    assert_eq!(ask(json!({ "service": "nothing" })).await.status, 404);
    let none = run(&weir, &["job", "retry", "--user", "carl"]);
    assert_eq!(printed(&none), "no job matches\n");
    assert!(!run(&weir, &["job", "retry"]).status.success());
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_cancels_jobs_and_pauses_a_lane() {
    let weir = Weir::with(&[EXTERNAL]).await;
    for _ in 0..3 {
        submit(&weir, "anne", 1).await;
    }
    let (_, kept) = submit(&weir, "bea", 1).await;
    let done = run(&weir, &["job", "cancel", "--user", "anne"]);
    assert_eq!(printed(&done), "cancelled: 3 jobs\n", "{done:?}");
    assert_eq!(
        printed(&run(&weir, &["job", "cancel", "4711"])),
        "not_found: 1 job\n"
    );
    weir.reconcile().await;
    let who = Who::User(weir.holder("anne").await);
    assert_eq!(month(&weir, who).await, (0, 0));

    let unknown = run(&weir, &["lane", "pause", "nothing"]);
    assert!(
        String::from_utf8_lossy(&unknown.stderr).contains("no service has a lane"),
        "{unknown:?}"
    );
    let row = "INSERT INTO river_queue (name, created_at, updated_at) VALUES ('render_default', now(), now()) ON CONFLICT DO NOTHING";
    weir.client().await.batch_execute(row).await.unwrap();
    assert_eq!(
        printed(&run(&weir, &["lane", "pause", "render_default"])),
        "paused render_default\n"
    );
    let claim = "SELECT job_id FROM weir_claim('render_default', 'worker-1', 5)";
    assert!(weir.client().await.query(claim, &[]).await.unwrap().is_empty());
    assert_eq!(
        printed(&run(&weir, &["lane", "resume", "render_default"])),
        "resumed render_default\n"
    );
    let log = "SELECT array_agg(action ORDER BY id) FROM admin_log WHERE actor LIKE 'shell:%'";
    let actions: Vec<String> = weir.client().await.query_one(log, &[]).await.unwrap().get(0);
    assert_eq!(actions, ["jobs.cancel", "lane.pause", "lane.resume"]);
    let claimed = weir.client().await.query(claim, &[]).await.unwrap();
    assert_eq!(
        claimed.iter().map(|row| row.get(0)).collect::<Vec<Option<i64>>>(),
        [kept]
    );
    let key = run(&weir, &["key", "create", "--name", "ops", "--scope", "admin"]);
    let bearer = format!("Bearer {}", printed(&key).lines().last().unwrap());
    let ask =
        async |path: &str, body: Value| weir.with_key("POST", path, &bearer, "-", &body.to_string()).await;
    let queued = [submit(&weir, "carl", 1).await.1, submit(&weir, "carl", 1).await.1];
    assert_eq!(
        printed(&run(
            &weir,
            &[
                "job",
                "cancel",
                "--kind",
                "render:video",
                "--user",
                "carl",
                "--dry-run"
            ]
        )),
        "0 jobs would change\n"
    );
    let cancelled = ask("/admin/jobs/cancel", json!({ "subject": "carl" })).await;
    assert_eq!(
        cancelled.body,
        json!({ "matching": 2, "next": queued[1], "outcomes": { "cancelled": 2 } })
    );
    for (change, paused) in [("pause", true), ("resume", false)] {
        let path = format!("/admin/lanes/render_default/{change}");
        assert_eq!(ask(&path, Value::Null).await.status, 204);
        let is_paused = "SELECT paused_at IS NOT NULL FROM river_queue WHERE name = 'render_default'";
        let row = weir.client().await.query_one(is_paused, &[]).await.unwrap();
        assert_eq!(row.get::<_, bool>(0), paused);
    }
    let log = "SELECT array_agg(action ORDER BY id) FROM admin_log WHERE actor = 'key:ops'";
    let actions: Vec<String> = weir.client().await.query_one(log, &[]).await.unwrap().get(0);
    assert_eq!(actions, ["jobs.cancel", "lane.pause", "lane.resume"]);
    let complete = "UPDATE river_job SET state = 'completed', finalized_at = now() WHERE id = $1";
    weir.client().await.execute(complete, &[&kept]).await.unwrap();
    let late = run(&weir, &["job", "cancel", &kept.unwrap().to_string()]);
    assert_eq!((printed(&late), late.status.code()), ("ended: 1 job\n", Some(1)));
    weir.abandon().await;
}
