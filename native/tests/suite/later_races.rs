//! Races with endpoints that answer later: they report too early, twice, or about attempts of others; and processes die
//! at the wrong moment.

use crate::common::later::Stage;
use crate::common::process::Process;
use crate::common::{Who, lock_holder};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_may_finish_before_its_202() {
    let stage = Stage::new("60s", &[]).await;
    let working = stage.work().await;
    let who = stage.user().await;
    let job = stage.submit(who, "hold").await;
    let asked = stage.started(job, 1).await;
    let reported = stage
        .report(&asked, "progress", &json!({ "fraction": 0.5 }))
        .await;
    assert_eq!(reported["deadline_at"], Value::Null, "its process waits for it");
    assert_eq!(stage.job(job, who).await["progress"]["fraction"], 0.5);
    stage.report(&asked, "extend", &json!({ "more": 1 })).await;
    let done = json!({ "output": "quick", "used": 6 });
    assert_eq!(stage.report(&asked, "complete", &done).await["charged"], 6);
    // A job that fails this way has its next attempt while the first one's process may still wait.
    let other = Who::User(stage.weir.user("pro").await);
    let failing = stage.submit(other, "hold").await;
    let first = stage.started(failing, 1).await;
    assert_eq!(
        stage.report(&first, "fail", &json!({ "error": "x" })).await["outcome"],
        "retry"
    );
    stage.let_go();
    let job = stage.weir.finished(job, who).await;
    assert_eq!(
        (&job["status"], &job["output"]),
        (&json!("completed"), &json!("quick")),
        "{job}"
    );
    let second = stage.started(failing, 2).await;
    stage.outstanding(failing).await;
    assert_eq!(
        stage.refused(&first, "heartbeat", &Value::Null, 409).await,
        TRIED_AGAIN
    );
    assert_eq!(stage.report(&second, "complete", &json!({})).await["charged"], 5);
    assert_eq!(stage.weir.finished(failing, other).await["attempt"], 2);
    working.stop().await;
    assert_eq!(stage.charges(failing).await, [5]);
    stage.end().await;
}

const TRIED_AGAIN: &str = "This attempt is over, and the job is retried. Stop working on this attempt.";

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_report_of_an_attempt_counts_once() {
    let stage = Stage::new("60s", &[]).await;
    let working = stage.work().await;
    let who = stage.user().await;
    let (job, asked) = stage.answered_later(who).await;
    let send = |n: i64| {
        let body = json!({ "output": n, "used": 2 });
        let (stage, asked) = (&stage, &asked);
        async move { stage.send(asked.job, &asked.token, "complete", &body).await }
    };
    let answers = tokio::join!(
        send(0),
        send(1),
        send(2),
        send(3),
        send(4),
        send(5),
        send(6),
        send(7)
    );
    let answers: [_; 8] = answers.into();
    for answer in answers {
        assert_eq!(
            (answer.status.as_u16(), &answer.body["charged"]),
            (200, &json!(2))
        );
    }
    assert_eq!(stage.charges(job).await, [2]);
    stage
        .refused(&asked, "fail", &json!({ "error": "after all" }), 409)
        .await;

    // Completed and failed at once: one report is accepted.
    let (job, asked) = stage.answered_later(who).await;
    let (done, failed) = (json!({}), json!({ "error": "x", "retry": false }));
    let (one, other) = tokio::join!(
        stage.send(job, &asked.token, "complete", &done),
        stage.send(job, &asked.token, "fail", &failed)
    );
    let mut statuses = [one.status.as_u16(), other.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409]);
    let over = stage.weir.finished(job, who).await;
    let completed = one.status == 200;
    assert_eq!(over["status"], if completed { "completed" } else { "failed" });
    assert_eq!(stage.charges(job).await.len(), usize::from(completed));
    working.stop().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_token_is_for_one_job_and_bad_bodies_get_a_reason() {
    let stage = Stage::new("60s", &[]).await;
    let working = stage.work().await;
    let (who, other) = (stage.user().await, stage.user().await);
    let (job, asked) = stage.answered_later(who).await;
    let (others, theirs) = stage.answered_later(other).await;
    let beat = Value::Null;
    let longer = format!("{}A", asked.token);
    let forged = asked.token.replacen("1.1.", "2.2.", 1);
    for wrong in [
        theirs.token.as_str(),
        "",
        "x",
        "1.1",
        &longer,
        &forged,
        &asked.token[1..],
    ] {
        let answer = stage.send(job, wrong, "heartbeat", &beat).await;
        assert_eq!(answer.status, 401, "{wrong}");
        assert!(!answer.body.to_string().contains(&asked.token));
    }
    assert_eq!(
        stage
            .send(others, &asked.token, "complete", &json!({}))
            .await
            .status,
        401
    );
    assert_eq!(
        stage
            .send(job + 1000, &asked.token, "complete", &json!({}))
            .await
            .status,
        401
    );
    let by_user = stage
        .weir
        .post(&format!("/worker/jobs/{job}/complete"), who, &json!({}))
        .await;
    assert_eq!(by_user.status, 401);
    for (what, body, wanted) in [
        ("progress", r#"{"fraction": -1}"#, "fraction from 0 to 1"),
        ("progress", r#"{"fraction": 2}"#, "fraction from 0 to 1"),
        ("progress", r#"{"fraction": 1e400}"#, "out of range"),
        ("progress", r#"{"fraction": NaN}"#, "The body is not valid"),
        ("progress", "{}", "missing field `fraction`"),
        ("progress", r#"{"fraction": 0.5, "message": "\u0000"}"#, "NUL"),
        ("extend", r#"{"more": 0}"#, "from 1 to"),
        ("extend", r#"{"more": -5}"#, "from 1 to"),
        ("fail", "{}", "missing field `error`"),
        (
            "fail",
            r#"{"error": "x", "retry_at": "3000-01-01T00:00:00Z"}"#,
            "within 366 days",
        ),
        ("fail", r#"{"error": "x\u0000"}"#, "NUL"),
        ("complete", r#"{"outputs": 1}"#, "unknown field `outputs`"),
        ("complete", r#"{"output": "\u0000"}"#, "NUL"),
        ("complete", "[]", "The body is not valid"),
    ] {
        let answer = stage.send_raw(job, &asked.token, what, body.to_owned()).await;
        let detail = answer.body["detail"].as_str().unwrap_or_default();
        assert!(
            answer.status == 422 && detail.contains(wanted),
            "{what} {body}: {}",
            answer.body
        );
    }
    let long = json!({ "fraction": 0.5, "message": "x".repeat(1001) });
    assert!(
        stage
            .refused(&asked, "progress", &long, 422)
            .await
            .contains("1000 bytes")
    );
    for (what, body) in [
        ("complete", json!({ "output": "x".repeat(10 * 1024 * 1024) })),
        ("complete", json!({ "output": "x".repeat(4 * 1024 * 1024) })),
        ("fail", json!({ "error": "x".repeat(1024 * 1024) })),
        (
            "progress",
            json!({ "fraction": 1, "message": "x".repeat(1024 * 1024) }),
        ),
    ] {
        assert!(stage.refused(&asked, what, &body, 413).await.contains("bytes"));
    }
    assert_eq!(stage.job(job, who).await["status"], "running");
    let largest = json!({ "output": "x".repeat(4 * 1024 * 1024 - 2) });
    assert_eq!(stage.report(&asked, "complete", &largest).await["charged"], 5);
    stage
        .report(&theirs, "complete", &json!({ "used": 1_000_000 }))
        .await;
    assert_eq!(stage.charges(others).await, [5], "no more than it reserved");
    working.stop().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_before_the_202_costs_one_attempt() {
    let stage = Stage::new("60s", &[]).await;
    let schedule = Process::start(&stage.weir, &["schedule"], &[]);
    let worker = Process::start(&stage.weir, &["work"], &[]);
    let who = stage.user().await;
    let job = stage.submit(who, "hold").await;
    let first = stage.started(job, 1).await;
    let mut client = stage.weir.client().await;
    let lock = client.transaction().await.unwrap();
    lock.execute("SELECT 1 FROM river_job WHERE id = $1 FOR UPDATE", &[&job])
        .await
        .unwrap();
    stage.let_go();
    stage
        .weir
        .until("the process to wait for the job's row", async || {
            // The first 1024 bytes of a statement.
            let sql = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' \
                       AND query LIKE '%WITH attempt AS MATERIALIZED%'";
            let rows = stage.weir.client().await.query(sql, &[]).await.unwrap();
            (!rows.is_empty()).then_some(())
        })
        .await;
    let waiting: i32 = stage
        .weir
        .client()
        .await
        .query_one(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' LIMIT 1",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    drop(worker);
    // The server may still execute a dead process's last statements. Here, it does not.
    lock.execute("SELECT pg_terminate_backend($1)", &[&waiting])
        .await
        .unwrap();
    lock.rollback().await.unwrap();
    let worker = Process::start(&stage.weir, &["work"], &[]);
    let second = stage.started(job, 2).await;
    stage.outstanding(job).await;
    assert_eq!(
        stage.refused(&first, "complete", &json!({}), 409).await,
        TRIED_AGAIN
    );
    stage.report(&second, "complete", &json!({})).await;
    assert_eq!(stage.weir.finished(job, who).await["attempt"], 2);
    assert_eq!(stage.charges(job).await, [5]);
    assert_eq!(worker.stop().await, Some(0));
    assert_eq!(schedule.stop().await, Some(0));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_attempt_cannot_answer_for_its_successor() {
    let stage = Stage::new("60s", &[("WEIR_DRAIN_TIMEOUT", "1s")]).await;
    let working = stage.work().await;
    let who = stage.user().await;
    let job = stage.submit(who, "hold").await;
    let aborted = stage.started(job, 1).await;
    working.stop().await;
    stage.let_go();
    let working = stage.work().await;
    stage.outstanding(job).await;
    let again = stage.asked(job).pop().unwrap();
    assert_eq!((again.attempt, stage.asked(job).len()), (1, 2));
    assert_eq!(
        stage.refused(&aborted, "complete", &json!({}), 409).await,
        TRIED_AGAIN
    );
    stage.report(&again, "complete", &json!({})).await;
    assert_eq!(stage.charges(job).await, [5]);
    working.stop().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outstanding_answer_blocks_deletion_of_its_account() {
    let stage = Stage::new("60s", &[]).await;
    let working = stage.work().await;
    let who = stage.user().await;
    let Who::User(id) = who else { unreachable!() };
    let (job, asked) = stage.answered_later(who).await;
    let waiting = stage.submit(who, "work").await;
    let mut client = stage.weir.client().await;
    let holders = stage.weir.context.holders().await.unwrap();
    let account = weir_ledger::control::User::of(holders, id.into());
    let refused = weir_ledger::control::delete(&mut client, "shell:test", &account)
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("are still running"), "{refused}");
    assert_eq!(stage.weir.finished(waiting, who).await["status"], "cancelled");
    assert_eq!(stage.job(job, who).await["status"], "running");
    stage.report(&asked, "heartbeat", &Value::Null).await;
    client
        .execute("DELETE FROM users WHERE id = $1", &[&id])
        .await
        .unwrap();
    stage
        .weir
        .until("the job to be cancelled", async || {
            stage.weir.reconcile().await;
            let sql = "SELECT 1 FROM river_job WHERE id = $1 AND state = 'cancelled'";
            (!client.query(sql, &[&job]).await.unwrap().is_empty()).then_some(())
        })
        .await;
    assert!(
        stage
            .refused(&asked, "complete", &json!({}), 409)
            .await
            .contains("was cancelled")
    );
    working.stop().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_restarted_by_hand_belongs_to_its_new_attempt() {
    let stage = Stage::new("60s", &[]).await;
    let working = stage.work().await;
    let who = stage.user().await;
    let (job, first) = stage.answered_later(who).await;
    stage.weir.river().jobs().retry(job).await.unwrap();
    stage.started(job, 2).await;
    assert_eq!(
        stage.refused(&first, "heartbeat", &Value::Null, 409).await,
        TRIED_AGAIN
    );
    // River may have been about to report on the first attempt. That costs another attempt, and nothing else.
    stage
        .weir
        .until("the latest attempt to complete the job", async || {
            let latest = stage.asked(job).pop().unwrap();
            assert_ne!(latest.token, first.token);
            let done = json!({ "used": 4 });
            let answer = stage.send(job, &latest.token, "complete", &done).await;
            (answer.status == 200).then_some(())
        })
        .await;
    assert_eq!(stage.weir.finished(job, who).await["status"], "completed");
    assert_eq!(stage.charges(job).await, [4]);
    working.stop().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_holder_does_not_delay_other_overdue_attempts() {
    // Long enough to lock the holder before its attempt is overdue.
    let stage = Stage::new("5s", &[]).await;
    let working = stage.work().await;
    let (locked, other) = (stage.user().await, stage.user().await);
    let mut client = stage.weir.client().await;
    let (blocked, _) = stage.answered_later(locked).await;
    let Who::User(id) = locked else { unreachable!() };
    let lock = lock_holder(&mut client, id).await;
    let (free, _) = stage.answered_later(other).await;
    stage.started(free, 2).await;
    assert_eq!(stage.asked(blocked).len(), 1);
    lock.rollback().await.unwrap();
    stage.started(blocked, 2).await;
    for (job, who) in [(blocked, locked), (free, other)] {
        // Its last attempt is also silent.
        let over = stage.weir.finished(job, who).await;
        assert_eq!(
            (&over["status"], &over["charged"]),
            (&json!("failed"), &json!(0)),
            "{over}"
        );
    }
    working.stop().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_on_a_blocked_user_do_not_use_readers_connections() {
    let stage = Stage::new("60s", &[]).await;
    let working = stage.work().await;
    let (locked, other) = (stage.user().await, stage.user().await);
    let (job, asked) = stage.answered_later(locked).await;
    let Who::User(id) = locked else { unreachable!() };
    let mut client = stage.weir.client().await;
    let lock = lock_holder(&mut client, id).await;
    let observer = stage.weir.client().await;
    let waiting = async || {
        let sql =
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        observer.query(sql, &[]).await.unwrap().len()
    };
    // More than the process's connections.
    let wish = json!({ "more": 1 });
    let wishes =
        futures_util::future::join_all((0..30).map(|_| stage.send(job, &asked.token, "extend", &wish)));
    let others = async {
        stage
            .weir
            .until("one that waits for the lock", async || {
                (waiting().await > 0).then_some(())
            })
            .await;
        assert_eq!(stage.weir.get("/api/jobs", other).await.status, 200);
        assert!(waiting().await <= 1, "the rest waits without a connection");
        lock.rollback().await.unwrap();
    };
    let (answers, ()) = tokio::join!(wishes, others);
    for answer in answers {
        assert!([200, 503].contains(&answer.status.as_u16()), "{}", answer.body);
    }
    assert_eq!(
        stage.report(&asked, "complete", &json!({ "used": 1 })).await["charged"],
        1
    );
    working.stop().await;
    stage.end().await;
}
