//! How attempts end that nobody ends well: too late, in a panic, with too much to say.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{Weir, Who};
use async_trait::async_trait;
use serde_json::{Map, Value, json};
use weir::handler::{Attempt, Handler, HandlerError, Outcome, Refusal, Worked};
use weir::work::{Duty, Working};
use weir_ledger::holder::Holder;

async fn programs() -> Weir {
    Weir::with(&[("WEIR_CONFIG", "tests/programs.toml")]).await
}

async fn submit(weir: &Weir, who: Who, service: &str, args: Value) -> i64 {
    let answer = weir.post(&format!("/api/jobs/{service}"), who, &args).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    answer.body["job"]["id"].as_i64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_takes_too_long_is_killed_with_its_children_and_its_users_next_job_runs() {
    let weir = programs().await;
    let who = Who::User(weir.user("free").await);
    // What the program's child makes when it lives on; the name tells which process runs the tests.
    let file = std::env::temp_dir().join(format!("weir-late-{}", std::process::id()));
    // Of an earlier process with that number, when this test failed.
    let _ = std::fs::remove_file(&file);
    let late = submit(&weir, who, "hasty", json!({})).await;
    let next = submit(&weir, who, "greedy", json!({ "pages": 4 })).await;
    assert_eq!(
        weir.get(&format!("/api/jobs/{next}"), who).await.body["waiting_for"],
        "slot"
    );
    let working = weir.work().await;
    weir.running(late, who).await;
    let started = Instant::now();
    let job = weir.finished(late, who).await;
    assert_eq!(
        (&job["status"], &job["attempt"], &job["charged"]),
        (&json!("failed"), &json!(1), &json!(0)),
        "{job}"
    );
    assert_eq!(job["error"]["message"], "it took longer than 1s, its time limit");
    assert_eq!(weir.finished(next, who).await["status"], "completed");
    weir.released(who, "specview").await;
    assert_eq!(
        weir.quota(who, "specview").await["used"],
        4,
        "of the other job alone"
    );
    tokio::time::sleep(Duration::from_secs(4).saturating_sub(started.elapsed())).await;
    assert!(!file.exists(), "a child of the program lived on");
    working.stop().await;
    weir.end().await;
}

/// Panics when its arguments want it.
struct Fragile;

#[async_trait]
impl Handler for Fragile {
    async fn reserve(&self, _holder: Holder, _args: &Map<String, Value>) -> Result<i64, Refusal> {
        Ok(5)
    }

    async fn work(&self, attempt: Attempt) -> Result<Worked, HandlerError> {
        assert!(attempt.args["sound"] == true, "as the test wants it");
        Ok(Outcome {
            output: json!({}),
            used: Some(2),
        }
        .into())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_panics_fails_its_job_and_keeps_neither_slot_nor_quota_nor_worker() {
    let weir = programs().await;
    let who = Who::User(weir.user("free").await);
    // More than the lane has workers, so that the last finds none if a panic keeps one.
    let mut panicking = Vec::new();
    for _ in 0..5 {
        panicking.push(submit(&weir, who, "broken", json!({ "sound": false })).await);
    }
    let sound = submit(&weir, who, "broken", json!({ "sound": true })).await;
    let context = weir.another(&[]).with_handler("test:broken", Arc::new(Fragile));
    let working = Working::start(&context, Duty::Both, &context.settings.services)
        .await
        .unwrap();
    for id in panicking {
        let job = weir.finished(id, who).await;
        assert_eq!(
            (&job["status"], &job["attempt"], &job["charged"]),
            (&json!("failed"), &json!(1), &json!(0)),
            "{job}"
        );
        assert_eq!(job["error"]["message"], "the handler panicked");
    }
    assert_eq!(weir.finished(sound, who).await["status"], "completed");
    weir.released(who, "specview").await;
    assert_eq!(weir.quota(who, "specview").await["used"], 2);
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_is_too_large_is_refused_for_good_and_told_how_large_it_may_be() {
    let weir = programs().await;
    let who = Who::User(weir.user("free").await);
    let working = weir.work().await;
    let id = submit(&weir, who, "verbose", json!({})).await;
    let job = weir.finished(id, who).await;
    assert_eq!(
        (&job["status"], &job["attempt"], &job["max_attempts"]),
        (&json!("failed"), &json!(1), &json!(3)),
        "{job}"
    );
    assert_eq!(job["error"]["message"], "the output is larger than 4194304 bytes");
    weir.released(who, "specview").await;
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_long_standard_error_the_end_is_told() {
    let weir = programs().await;
    let who = Who::User(weir.user("free").await);
    let working = weir.work().await;
    let id = submit(&weir, who, "complaining", json!({})).await;
    let job = weir.finished(id, who).await;
    let message = job["error"]["message"].as_str().unwrap();
    let end = message
        .strip_prefix("exit status: 7: ")
        .unwrap_or_else(|| panic!("{message}"));
    assert!(end.ends_with("at last"), "{end}");
    assert_eq!(end.chars().count(), 2_000);
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_says_how_far_it_is_and_that_is_no_part_of_why_it_failed() {
    let weir = programs().await;
    let who = Who::User(weir.user("free").await);
    let working = weir.work().await;
    let file = std::env::temp_dir().join(format!("weir-patient-{}", uuid::Uuid::new_v4()));
    let id = submit(&weir, who, "patient", json!({ "file": file })).await;
    weir.until("its progress", async || {
        let job = weir.get(&format!("/api/jobs/{id}"), who).await.body;
        (job["progress"] == json!({ "fraction": 0.4, "message": "page 2 of 5" })).then_some(())
    })
    .await;
    std::fs::write(&file, "").unwrap();
    let job = weir.finished(id, who).await;
    std::fs::remove_file(&file).unwrap();
    assert_eq!(
        (&job["error"]["message"], &job["progress"]),
        (&json!("exit status: 1: out of paper"), &Value::Null),
        "{job}"
    );
    working.stop().await;
    weir.end().await;
}
