//! Endpoints that return 202 and finish later, at the routes for workers.

use std::time::{Duration, Instant};

use crate::common::later::{SECRET, Stage};
use crate::common::process::Process;
use jiff::Timestamp;
use serde_json::{Value, json};
use weir::outbound;

#[tokio::test(flavor = "multi_thread")]
async fn a_later_answer_survives_its_worker_and_is_charged_once() {
    let stage = Stage::new("60s", &[]).await;
    let schedule = Process::start(&stage.weir, &["schedule"], &[]);
    let worker = Process::start(&stage.weir, &["work"], &[]);
    let (who, other) = (stage.user().await, stage.user().await);
    let (job, asked) = stage.answered_later(who).await;
    // A job that a process waits for, to show when the process's jobs are taken over.
    let waited_for = stage.submit(other, "hang").await;
    stage.started(waited_for, 1).await;
    drop(worker);
    let worker = Process::start(&stage.weir, &["work"], &[("WEIR_DRAIN_TIMEOUT", "1s")]);
    stage.started(waited_for, 2).await;
    let seen = stage.job(job, who).await;
    assert_eq!(
        (&seen["status"], &seen["attempt"]),
        (&json!("running"), &json!(1)),
        "{seen}"
    );
    assert_eq!(worker.stop().await, Some(0));
    let answer = json!({ "output": { "said": "at last" }, "used": 3 });
    assert_eq!(stage.report(&asked, "complete", &answer).await["charged"], 3);
    let done = stage.weir.finished(job, who).await;
    assert_eq!(
        (
            &done["status"],
            &done["charged"],
            &done["output"]["said"],
            &done["attempt"]
        ),
        (&json!("completed"), &json!(3), &json!("at last"), &json!(1)),
        "{done}"
    );
    assert_eq!(stage.asked(job).len(), 1);
    assert_eq!(stage.charges(job).await, [3]);
    stage
        .weir
        .call(
            "DELETE",
            &format!("/api/jobs/{waited_for}"),
            other,
            &[],
            Vec::new(),
        )
        .await;
    stage.weir.finished(waited_for, other).await;
    // Without a process that runs maintenance, nothing settles it.
    stage.weir.is_clean().await;
    assert_eq!(schedule.stop().await, Some(0));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_attempt_is_taken_over_and_its_late_answer_refused() {
    // Long enough for the reports on the second attempt.
    let stage = Stage::new("6s", &[]).await;
    let working = stage.work().await;
    let who = stage.user().await;
    let (job, first) = stage.answered_later(who).await;
    let second = stage.started(job, 2).await;
    stage.outstanding(job).await;
    let seen = stage.job(job, who).await;
    assert_eq!(seen["status"], "running", "{seen}");
    assert_eq!(seen["error"]["message"], "the handler reported nothing for 6 s");
    for (what, body) in [
        ("complete", json!({ "output": 1 })),
        ("fail", json!({ "error": "late" })),
        ("progress", json!({ "fraction": 0.5 })),
        ("extend", json!({ "more": 1 })),
        ("heartbeat", Value::Null),
    ] {
        let why = stage.refused(&first, what, &body, 409).await;
        assert!(why.contains("is retried"), "{what}: {why}");
    }
    assert_eq!(
        stage.report(&second, "complete", &json!({ "output": 2 })).await["charged"],
        5
    );
    let done = stage.weir.finished(job, who).await;
    assert_eq!(
        (&done["output"], &done["charged"]),
        (&json!(2), &json!(5)),
        "{done}"
    );
    let why = stage
        .refused(&first, "complete", &json!({ "output": 1 }), 409)
        .await;
    assert!(why.contains("has ended"), "{why}");
    assert_eq!(stage.charges(job).await, [5]);
    working.stop().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_and_heartbeats_extend_an_attempt_past_its_timeout() {
    let stage = Stage::new("3s", &[]).await;
    let working = stage.work().await;
    let who = stage.user().await;
    let (job, asked) = stage.answered_later(who).await;
    let started = Instant::now();
    let mut deadline = Timestamp::UNIX_EPOCH;
    let mut reports = 0;
    while started.elapsed() < Duration::from_secs(7) {
        reports += 1;
        let reported = if reports % 2 == 0 {
            stage.report(&asked, "heartbeat", &Value::Null).await
        } else {
            let progress = json!({ "fraction": 0.25, "message": format!("{reports} 장") });
            let reported = stage.report(&asked, "progress", &progress).await;
            assert_eq!(stage.job(job, who).await["progress"], progress);
            reported
        };
        let next: Timestamp = reported["deadline_at"].as_str().unwrap().parse().unwrap();
        assert!(next > deadline);
        deadline = next;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(stage.asked(job).len(), 1);
    stage.report(&asked, "complete", &json!({})).await;
    let done = stage.weir.finished(job, who).await;
    assert_eq!(
        (&done["attempt"], &done["progress"]),
        (&json!(1), &Value::Null),
        "{done}"
    );
    working.stop().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_continues_when_an_extension_is_refused() {
    let stage = Stage::new("60s", &[]).await;
    let working = stage.work().await;
    let who = stage.user().await;
    let (job, asked) = stage.answered_later(who).await;
    let extended = stage.report(&asked, "extend", &json!({ "more": 7 })).await;
    assert_eq!(
        (&extended["extended"], &extended["quota"]["reserved"]),
        (&json!(true), &json!(12))
    );
    let refused = stage
        .report(&asked, "extend", &json!({ "more": 1_000_000 }))
        .await;
    assert_eq!(
        (&refused["extended"], &refused["quota"]["reserved"]),
        (&json!(false), &json!(12))
    );
    assert_eq!(stage.job(job, who).await["reserved"], 12);
    let why = stage
        .refused(&asked, "complete", &json!({ "used": -1 }), 422)
        .await;
    assert!(why.contains("used must be 0 or more"), "{why}");
    assert_eq!(
        stage.report(&asked, "complete", &json!({ "used": 11 })).await["charged"],
        11
    );
    working.stop().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_stops_without_waiting_for_outstanding_answers() {
    let stage = Stage::new("60s", &[("WEIR_DRAIN_TIMEOUT", "60s")]).await;
    let working = stage.work().await;
    let mut outstanding = Vec::new();
    for _ in 0..20 {
        let who = stage.user().await;
        let job = stage.submit(who, "later").await;
        // Beyond the one slot of the plan.
        let parked = stage.submit(who, "work").await;
        outstanding.push((who, job, parked));
    }
    for (who, job, parked) in &outstanding {
        stage.outstanding(*job).await;
        let parked = stage.job(*parked, *who).await;
        assert_eq!(parked["waiting_for"], "slot", "{parked}");
    }
    // They run without a worker: a job that waited for a worker would be claimed.
    let (who, ..) = outstanding[0];
    let lanes = stage.weir.get("/api/lanes", who).await.body;
    let lane = &lanes["services"]["remote"]["default"];
    assert_eq!(
        [&lane["running"], &lane["outstanding"], &lane["queued"]],
        [&json!(20), &json!(20), &json!(0)],
        "{lanes}"
    );
    stage.weir.is_clean().await;
    let started = Instant::now();
    working.stop().await;
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "{:?}",
        started.elapsed()
    );
    let working = stage.work().await;
    for (who, job, parked) in outstanding {
        let asked = stage.asked(job).remove(0);
        stage.report(&asked, "complete", &json!({ "used": 1 })).await;
        assert_eq!(stage.weir.finished(parked, who).await["status"], "completed");
    }
    working.stop().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_frees_the_slot_and_notifies_the_endpoint() {
    let stage = Stage::new("60s", &[]).await;
    let working = stage.work().await;
    let who = stage.user().await;
    let (job, asked) = stage.answered_later(who).await;
    let next = stage.submit(who, "work").await;
    let path = format!("/api/jobs/{job}");
    let cancelled = stage.weir.call("DELETE", &path, who, &[], Vec::new()).await;
    assert_eq!(cancelled.status, 200, "{}", cancelled.body);
    assert_eq!(stage.weir.finished(job, who).await["status"], "cancelled");
    assert_eq!(stage.weir.finished(next, who).await["status"], "completed");
    for (what, body) in [("progress", json!({ "fraction": 1 })), ("complete", json!({}))] {
        let why = stage.refused(&asked, what, &body, 409).await;
        assert!(why.contains("was cancelled"), "{why}");
    }
    assert_eq!(stage.charges(job).await, [] as [i64; 0]);
    working.stop().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_after_a_cancel_does_not_revive_an_old_attempt() {
    let stage = Stage::new("60s", &[]).await;
    let working = stage.work().await;
    let who = stage.user().await;
    let (job, asked) = stage.answered_later(who).await;
    let path = format!("/api/jobs/{job}");
    let cancelled = stage.weir.call("DELETE", &path, who, &[], Vec::new()).await;
    assert_eq!(cancelled.status, 200, "{}", cancelled.body);
    stage.weir.finished(job, who).await;
    let client = stage.weir.client().await;
    stage
        .weir
        .until("it to hold nothing", async || {
            let held = "SELECT 1 FROM quota_reservations";
            client.query(held, &[]).await.unwrap().is_empty().then_some(())
        })
        .await;
    working.stop().await;
    // Another job has the slot by the time an operator retries the job, so it waits.
    let next = stage.submit(who, "work").await;
    client
        .execute(
            "UPDATE river_job SET state = 'pending', finalized_at = NULL WHERE id = $1",
            &[&job],
        )
        .await
        .unwrap();
    stage.refused(&asked, "heartbeat", &json!({}), 409).await;
    let read = stage.weir.get(&path, who).await.body;
    assert_eq!(read["status"], "queued", "{read}");
    let left: i64 = client
        .query_one("SELECT count(*) FROM outstanding_attempts", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!((left, next > job), (0, true));
    stage.weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_follow_the_retry_policy_unless_they_are_final() {
    let stage = Stage::new("60s", &[]).await;
    let working = stage.work().await;
    let who = stage.user().await;
    let (job, first) = stage.answered_later(who).await;
    let failed = stage
        .report(&first, "fail", &json!({ "error": "out of paper" }))
        .await;
    assert_eq!(failed["outcome"], "retry");
    let second = stage.started(job, 2).await;
    stage.outstanding(job).await;
    assert_eq!(
        first.headers["idempotency-key"],
        second.headers["idempotency-key"]
    );
    assert_ne!(first.token, second.token);
    // The last attempt, although it asks for a retry.
    let last = json!({ "error": "no ink", "retry_at": "2026-12-01T00:00:00Z" });
    assert_eq!(stage.report(&second, "fail", &last).await["outcome"], "discarded");
    let over = stage.weir.finished(job, who).await;
    assert_eq!(
        (
            &over["status"],
            &over["charged"],
            &over["error"]["message"],
            &over["max_attempts"]
        ),
        (&json!("failed"), &json!(0), &json!("no ink"), &json!(2)),
        "{over}"
    );
    let (job, asked) = stage.answered_later(who).await;
    let never = json!({ "error": "no such repository", "retry": false });
    assert_eq!(stage.report(&asked, "fail", &never).await["outcome"], "discarded");
    let over = stage.weir.finished(job, who).await;
    assert_eq!(
        (&over["status"], &over["attempt"], &over["max_attempts"]),
        (&json!("failed"), &json!(1), &json!(2)),
        "{over}"
    );
    working.stop().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_signed_by_both_secrets_during_rotation() {
    let old = outbound::Secret::random();
    let stage = Stage::new("60s", &[("HANDLER_SECRET_PREVIOUS", &old.reveal())]).await;
    let working = stage.work().await;
    let who = stage.user().await;
    let job = stage.submit(who, "work").await;
    stage.weir.finished(job, who).await;
    let asked = stage.asked(job).remove(0);
    let at = Timestamp::from_second(asked.headers["webhook-timestamp"].parse().unwrap()).unwrap();
    let id = asked.headers["webhook-id"].clone();
    let secrets = [SECRET.parse().unwrap(), old];
    for (name, value) in outbound::headers(&secrets, &id, at, asked.body.as_bytes()) {
        assert_eq!(asked.headers[name], value, "{name}");
    }
    working.stop().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_secret_requests_are_not_signed_or_answered_later() {
    let stage = Stage::new("60s", &[("HANDLER_SECRET", "")]).await;
    let working = stage.work().await;
    let who = stage.user().await;
    let job = stage.submit(who, "later").await;
    let over = stage.weir.finished(job, who).await;
    assert_eq!(
        (&over["status"], &over["error"]["message"]),
        (
            &json!("failed"),
            &json!("the endpoint answers later, which this process does not allow")
        ),
        "{over}"
    );
    let asked = stage.asked(job).remove(0);
    assert!(!asked.headers.contains_key("webhook-signature") && asked.token.is_empty());
    working.stop().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_without_a_holder_can_be_answered_later() {
    // Long enough for the reports on the second attempt.
    let stage = Stage::new("6s", &[]).await;
    let working = stage.work().await;
    let job = stage.insert_unowned("later").await;
    stage.started(job, 1).await;
    let asked = stage.started(job, 2).await;
    stage.outstanding(job).await;
    let reported = stage
        .report(&asked, "progress", &json!({ "fraction": 0.5 }))
        .await;
    assert!(reported["deadline_at"].is_string());
    let extended = stage.report(&asked, "extend", &json!({ "more": 1 })).await;
    assert_eq!(extended, json!({ "extended": false, "quota": null }));
    assert_eq!(
        stage.report(&asked, "complete", &json!({ "output": 7 })).await["charged"],
        0
    );
    let sql = "SELECT state::text, output_of(id) FROM river_job WHERE id = $1";
    let row = stage.weir.client().await.query_one(sql, &[&job]).await.unwrap();
    assert_eq!((row.get(0), row.get(1)), ("completed", json!(7)));
    working.stop().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_total_reserves_once() {
    let stage = Stage::new("60s", &[]).await;
    let working = stage.work().await;
    let who = stage.user().await;
    let (job, asked) = stage.answered_later(who).await;
    for _ in 0..2 {
        let extended = stage.report(&asked, "extend", &json!({ "total": 12 })).await;
        assert_eq!(
            (&extended["extended"], &extended["quota"]["reserved"]),
            (&json!(true), &json!(12))
        );
    }
    let less = stage.report(&asked, "extend", &json!({ "total": 1 })).await;
    assert_eq!(
        (&less["extended"], &less["quota"]["reserved"]),
        (&json!(true), &json!(12))
    );
    let refused = stage
        .report(&asked, "extend", &json!({ "total": 1_000_000 }))
        .await;
    assert_eq!(refused["extended"], false);
    assert_eq!(stage.report(&asked, "complete", &json!({})).await["charged"], 12);
    assert_eq!(stage.job(job, who).await["charged"], 12);
    working.stop().await;
    stage.end().await;
}
