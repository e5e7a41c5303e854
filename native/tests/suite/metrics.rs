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

#[tokio::test(flavor = "multi_thread")]
async fn skipped_ticks_of_a_periodic_job_are_counted_once() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/periodic.toml");
    let weir = Weir::with(&[("WEIR_CONFIG", file)]).await;
    let client = weir.client().await;
    client
        .batch_execute("INSERT INTO periodic_jobs VALUES ('sweep-often', now() - interval '10 minutes')")
        .await
        .unwrap();
    let schedulers = [
        Process::start(&weir, &["schedule"], &[]),
        Process::start(&weir, &["schedule"], &[]),
    ];
    for scheduler in &schedulers {
        scheduler.ready().await;
    }
    weir.until("a tick", async || {
        let made = "SELECT 1 FROM river_job LIMIT 1";
        client.query_opt(made, &[]).await.unwrap()
    })
    .await;
    let mut skipped = 0.0;
    for scheduler in &schedulers {
        let scrape = scheduler.scrape().await;
        let of_job = [("periodic", "sweep-often")];
        skipped += scrape
            .value("weir_skipped_ticks_total", &of_job)
            .unwrap_or_default();
    }
    // Nine minutes, and what the schedulers took to start.
    assert!((540.0..600.0).contains(&skipped), "{skipped}");
    for scheduler in schedulers {
        assert_eq!(scheduler.stop().await, Some(0));
    }
    weir.end().await;
}
