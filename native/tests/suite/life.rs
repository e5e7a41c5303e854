//! A reservation follows its job to any kind of end.

use crate::common::{GO_TESTS, Weir, Who, files};
use serde_json::{Value, json};

async fn programs() -> Weir {
    Weir::with(&[("WEIR_CONFIG", "tests/programs.toml")]).await
}

async fn submit(weir: &Weir, who: Who, service: &str) -> i64 {
    let answer = weir
        .post(&format!("/api/jobs/{service}"), who, &json!({ "pages": 4 }))
        .await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    answer.body["job"]["id"].as_i64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_keeps_the_reservation_and_is_charged_once() {
    let weir = programs().await;
    let who = Who::User(weir.user("pro").await);
    let working = weir.work().await;
    let id = submit(&weir, who, "flaky").await;
    weir.until("the first attempt to fail", async || {
        let job = weir.get(&format!("/api/jobs/{id}"), who).await.body;
        (job["error"] != Value::Null && job["status"] == "queued").then(|| {
            assert_eq!(
                (&job["waiting_for"], &job["reserved"]),
                (&json!("retry"), &json!(5)),
                "{job}"
            );
        })
    })
    .await;
    weir.is_clean().await;
    let job = weir.finished(id, who).await;
    assert_eq!(
        (&job["status"], &job["charged"], &job["attempt"]),
        (&json!("completed"), &json!(2), &json!(2)),
        "{job}"
    );
    let quota = weir.quota(who, "specview").await;
    assert_eq!((&quota["used"], &quota["reserved"]), (&json!(2), &json!(0)));
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_discarded_job_is_free_and_has_a_reason() {
    let weir = programs().await;
    let who = Who::User(weir.user("free").await);
    let working = weir.work().await;
    let id = submit(&weir, who, "broken").await;
    let job = weir.finished(id, who).await;
    assert_eq!(job["status"], "failed");
    assert!(
        job["error"]["message"].as_str().unwrap().contains("out of paper"),
        "{job}"
    );
    weir.released(who, "specview").await;
    assert_eq!(weir.quota(who, "specview").await["used"], 0);
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn internal_errors_hide_database_messages_and_paths() {
    let weir = programs().await;
    let who = Who::User(weir.user("pro").await);
    let working = weir.work().await;
    for (service, expected) in [
        (
            "unstorable",
            "the output cannot be stored: it is too large or contains a NUL character",
        ),
        ("missing", "the handler's program cannot be started"),
    ] {
        let id = submit(&weir, who, service).await;
        let job = weir.finished(id, who).await;
        assert_eq!(job["status"], "failed", "{job}");
        assert_eq!(job["error"]["message"], expected);
    }
    weir.released(who, "specview").await;
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_not_charged_more_than_they_reserved() {
    let weir = programs().await;
    let who = Who::User(weir.user("free").await);
    let working = weir.work().await;
    let id = submit(&weir, who, "greedy").await;
    let job = weir.finished(id, who).await;
    assert_eq!((&job["output"]["used"], &job["charged"]), (&json!(99), &json!(4)));
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_charged_by_other_means_is_not_charged_again() {
    let weir = programs().await;
    let user = weir.user("free").await;
    let who = Who::User(user);
    let id = submit(&weir, who, "greedy").await;
    let client = weir.client().await;
    client
        .execute(
            "INSERT INTO usage_events (user_id, event_type, quota_amount, job_id, period_start) \
             VALUES ($1, 'specview', 3, $2, period_start_of($1, now()))",
            &[&user, &id],
        )
        .await
        .unwrap();
    weir.recount().await;
    let working = weir.work().await;
    let job = weir.finished(id, who).await;
    assert_eq!(job["status"], "completed", "{job}");
    let quota = weir.quota(who, "specview").await;
    assert_eq!((&quota["used"], &quota["reserved"]), (&json!(3), &json!(0)));
    working.stop().await;
    let complaints = weir.complaints().await;
    assert!(
        complaints.len() == 1 && complaints[0].contains("charged 1 time(s), 3 in all, should be 4"),
        "the audit names an amount that is not the job's: {complaints:?}"
    );
    client
        .execute("UPDATE usage_events SET quota_amount = 4", &[])
        .await
        .unwrap();
    weir.recount().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_amounts_are_422_and_never_500() {
    let weir = programs().await;
    let who = Who::User(weir.user("enterprise").await);
    for args in [
        json!({}),
        json!({"pages": 0}),
        json!({"pages": -1}),
        json!({"pages": 1_000_000_000_000_001_i64}),
        json!({"pages": 1.5}),
        json!({"pages": 1e300}),
        json!({"pages": "4"}),
        json!({"pages": null}),
    ] {
        let answer = weir.post("/api/jobs/greedy", who, &args).await;
        assert_eq!(answer.status, 422, "{args}: {}", answer.body);
        assert!(
            answer.body["detail"].as_str().unwrap().contains("pages"),
            "{}",
            answer.body
        );
    }
    let most = weir
        .post(
            "/api/jobs/greedy",
            who,
            &json!({"pages": 1_000_000_000_000_000_i64}),
        )
        .await;
    assert_eq!(most.status, 202, "{}", most.body);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_a_running_job_stops_its_program_and_frees_everything() {
    let weir = programs().await;
    let who = Who::User(weir.user("free").await);
    let working = weir.work().await;
    let id = submit(&weir, who, "slow").await;
    weir.running(id, who).await;
    let started = std::time::Instant::now();
    assert_eq!(
        weir.call("DELETE", &format!("/api/jobs/{id}"), who, &[], Vec::new())
            .await
            .status,
        200
    );
    let job = weir.finished(id, who).await;
    assert_eq!(
        (&job["status"], &job["error"]),
        (&json!("cancelled"), &Value::Null),
        "{job}"
    );
    assert!(started.elapsed().as_secs() < 10);
    weir.released(who, "specview").await;
    working.stop().await;
    weir.end().await;
}

/// Stops a worker while it works.
async fn a_stopped_worker_requeues_its_job(weir: Weir) {
    let who = Who::User(weir.user("free").await);
    let working = weir.work().await;
    let id = submit(&weir, who, "slow").await;
    weir.running(id, who).await;
    working.stop().await;
    let job = weir.get(&format!("/api/jobs/{id}"), who).await.body;
    assert_eq!(
        (&job["status"], &job["attempt"], &job["reserved"], &job["error"]),
        (&json!("queued"), &json!(0), &json!(5), &Value::Null),
        "{job}"
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_requeues_a_running_job_without_counting_the_attempt() {
    a_stopped_worker_requeues_its_job(programs().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_drain_time_a_running_job_is_requeued_immediately() {
    let config = [
        ("WEIR_CONFIG", "tests/programs.toml"),
        ("WEIR_DRAIN_TIMEOUT", "0s"),
    ];
    a_stopped_worker_requeues_its_job(Weir::with(&config).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_success_after_a_takeover_is_ignored() {
    use weir_ledger::settlement::{Ended, Settled, Success};
    let weir = programs().await;
    let who = Who::User(weir.user("free").await);
    let id = submit(&weir, who, "slow").await;
    let client = weir.client().await;
    // The second attempt runs in another client.
    client
        .execute(
            "UPDATE river_job SET state = 'running', attempt = 2, attempted_at = now(), attempted_by = '{a,b}' WHERE id = $1",
            &[&id],
        )
        .await
        .unwrap();
    let late = Success {
        attempt: 1,
        job_created_at: None,
        output: json!({"from": "a zombie"}),
        used: Some(5),
    };
    let settled = weir
        .context
        .settler
        .settle(Ended {
            job_id: id,
            holder: None,
            success: Some(late),
        })
        .await
        .unwrap();
    assert_eq!(settled, Settled::FencedOut);
    let job = weir.get(&format!("/api/jobs/{id}"), who).await.body;
    assert_eq!(
        (&job["status"], &job["reserved"], &job["charged"]),
        (&json!("running"), &json!(5), &json!(0)),
        "{job}"
    );
    let right = Success {
        attempt: 2,
        job_created_at: None,
        output: json!({}),
        used: Some(1),
    };
    let ended = Ended {
        job_id: id,
        holder: None,
        success: Some(right),
    };
    assert_eq!(
        weir.context.settler.settle(ended.clone()).await.unwrap(),
        Settled::Done { charged: 1 }
    );
    // A repetition changes nothing, either.
    assert_eq!(
        weir.context.settler.settle(ended).await.unwrap(),
        Settled::FencedOut
    );
    assert_eq!(weir.quota(who, "specview").await["used"], 1);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_does_not_reserve_or_show_another_users_job() {
    let weir = programs().await;
    let (a, b) = (
        Who::User(weir.user("free").await),
        Who::User(weir.user("free").await),
    );
    let mut body = files(&[("a_test.go", GO_TESTS)]);
    let plain = body.clone();
    for (name, value) in [("owner", "acme"), ("repo", "widgets"), ("commit_sha", "abc1234")] {
        body[name] = value.into();
    }
    let post = async |who, body: &Value| {
        let answer = weir.post("/api/jobs/analysis", who, body).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        (
            answer.body["job"]["id"].as_i64().unwrap(),
            answer.body["folded"].as_bool().unwrap(),
        )
    };
    let (first, folded) = post(a, &body).await;
    assert!(!folded);
    assert_eq!(post(a, &body).await, (first, true));
    assert_eq!(weir.quota(a, "analysis").await["reserved"], 1);
    let (theirs, folded) = post(b, &body).await;
    assert!(theirs != first && !folded, "another user gets a separate job");
    let (one, two) = (post(a, &plain).await, post(a, &plain).await);
    assert!(one.0 != two.0, "jobs without the member never fold");
    // All at once, by both users.
    body["commit_sha"] = "def5678".into();
    let answers =
        futures_util::future::join_all((0..20).map(|n| post(if n % 2 == 0 { a } else { b }, &body))).await;
    assert!(answers.iter().filter(|(_, folded)| !folded).count() >= 2);
    // River's key belongs to one user. The first user has one job, and the other's jobs are all separate.
    let jobs = |who| {
        let ids = answers.iter().skip(who).step_by(2).map(|(id, _)| id);
        ids.collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!(jobs(0).min(jobs(1)), 1, "{answers:?}");
    weir.end().await;
}
