//! Counters that only move when something has gone wrong, read from the real binary after it really has.

use crate::common::process::Process;
use crate::common::{Weir, Who};
use serde_json::json;

/// Absolute, since the binary starts in another folder than the tests.
const PROGRAMS: (&str, &str) = (
    "WEIR_CONFIG",
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs.toml"),
);

#[tokio::test(flavor = "multi_thread")]
async fn what_the_guard_sends_back_is_counted_by_tier() {
    let weir = Weir::with(&[PROGRAMS]).await;
    let user = weir.user("free").await;
    // What another River client inserts is claimed without a slot; there is one for two.
    weir.client()
        .await
        .execute(
            "INSERT INTO river_job (args, kind, queue, max_attempts, state) \
             SELECT jsonb_build_object('user_id', $1::uuid), 'test:loyal', 'loyal_default', 3, 'available' \
             FROM generate_series(1, 2)",
            &[&user],
        )
        .await
        .unwrap();
    let process = Process::start(&weir, &["work"], &[]);
    process.ready().await;
    let snoozes = async |tier: &str| {
        let scrape = process.scrape().await;
        scrape.value("weir_snoozes_total", &[("tier", tier)])
    };
    weir.until("a refusal to be counted", async || {
        (snoozes("free").await? > 0.0).then_some(())
    })
    .await;
    assert_eq!(snoozes("pro").await, Some(0.0));
    assert_eq!(process.stop().await, Some(0));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_taken_back_from_a_dead_process_is_counted() {
    let weir = Weir::with(&[PROGRAMS]).await;
    let who = Who::User(weir.user("free").await);
    let scheduler = Process::start(&weir, &["schedule"], &[]);
    scheduler.ready().await;
    let reclaimed = async || scheduler.scrape().await.value("weir_reclaimed_total", &[]);
    let worker = Process::start(&weir, &["work"], &[]);
    let answer = weir.post("/api/jobs/loyal", who, &json!({})).await;
    let id = answer.body["job"]["id"].as_i64().unwrap();
    weir.running(id, who).await;
    assert_eq!(reclaimed().await, Some(0.0));
    // Killed, and by the clock of the test dead for long enough.
    drop(worker);
    weir.client()
        .await
        .batch_execute(
            "UPDATE processes SET beat_at = beat_at - interval '1 minute'; \
             UPDATE river_job SET attempted_at = attempted_at - interval '1 minute'",
        )
        .await
        .unwrap();
    weir.until("the job to be taken back", async || {
        (reclaimed().await? > 0.0).then_some(())
    })
    .await;
    assert_eq!(reclaimed().await, Some(1.0));
    let job = weir.get(&format!("/api/jobs/{id}"), who).await.body;
    assert_eq!(
        (&job["status"], &job["attempt"]),
        (&json!("queued"), &json!(1)),
        "{job}"
    );
    assert_eq!(scheduler.stop().await, Some(0));
    weir.end().await;
}
