//! Counters that change only after a failure, read from the real binary after a real one.

use crate::common::process::{Process, Scrape};
use std::time::Duration;

use crate::common::{GO_TESTS, Weir, Who, files, lock_holder};
use serde_json::json;

/// Absolute, because the binary starts in another folder than the tests.
const PROGRAMS: (&str, &str) = (
    "WEIR_CONFIG",
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs.toml"),
);

#[tokio::test(flavor = "multi_thread")]
async fn jobs_snoozed_by_the_guard_are_counted_by_tier() {
    let weir = Weir::with(&[PROGRAMS]).await;
    let user = weir.user("free").await;
    // Another River client's jobs are claimed without a slot. There is one slot for two jobs.
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
    let snoozes = async |plan: &str| {
        let scrape = process.scrape().await;
        scrape.value("weir_snoozes_total", &[("plan", plan)])
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
async fn jobs_taken_over_from_a_dead_process_are_counted() {
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
    // Killed, and dead for long enough by the test's clock.
    drop(worker);
    weir.client()
        .await
        .batch_execute(
            "UPDATE processes SET beat_at = beat_at - interval '1 minute'; \
             UPDATE river_job SET attempted_at = attempted_at - interval '1 minute'",
        )
        .await
        .unwrap();
    weir.until("the job to be taken over", async || {
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
    // Nine minutes, and the schedulers' start-up time.
    assert!((540.0..600.0).contains(&skipped), "{skipped}");
    for scheduler in schedulers {
        assert_eq!(scheduler.stop().await, Some(0));
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_parked_job_is_shown_by_lane_and_plan() {
    let weir = Weir::new().await;
    let (free, pro) = (weir.user("free").await, weir.user("pro").await);
    let process = Process::start(&weir, &["schedule"], &[]);
    process.ready().await;
    // More jobs than a free user's slots, and as many as those of another plan.
    for _ in 0..10 {
        weir.analyse(Who::User(free), "a_test.go", GO_TESTS).await;
    }
    weir.analyse(Who::User(pro), "a_test.go", GO_TESTS).await;
    weir.client()
        .await
        .batch_execute(
            "UPDATE quota_reservations SET parked_at = parked_at - interval '20 minutes' \
             WHERE job_id = (SELECT min(job_id) FROM quota_reservations WHERE parked_at IS NOT NULL)",
        )
        .await
        .unwrap();
    let oldest = |scrape: &Scrape, lane: &str, plan: &str| {
        let labels = [("service", "analysis"), ("lane", lane), ("plan", plan)];
        scrape.value("weir_oldest_parked_seconds", &labels)
    };
    let scrape = weir
        .until("the oldest parked job in a scrape that could count", async || {
            let scrape = process.scrape().await;
            let has_counted = scrape.value("weir_jobs_counted", &[]) == Some(1.0);
            (has_counted && oldest(&scrape, "default", "free")? > 0.0).then_some(scrape)
        })
        .await;
    let waited = oldest(&scrape, "default", "free").unwrap();
    assert!((1200.0..1300.0).contains(&waited), "{waited}");
    assert_eq!(oldest(&scrape, "scheduled", "free"), Some(0.0));
    assert_eq!(oldest(&scrape, "priority", "pro"), Some(0.0));
    assert_eq!(process.stop().await, Some(0));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_for_a_holders_lock_are_counted_in_seconds() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    let process = Process::start(&weir, &["serve"], &[]);
    process.ready().await;
    let mut operator = weir.client().await;
    let open = lock_holder(&mut operator, user).await;
    let body = files(&[("a_test.go", GO_TESTS)]).to_string();
    let submit = process.call("POST", "/api/jobs/analysis", Who::User(user), "blocked", &body);
    assert_eq!(submit.await.status, 503);
    open.rollback().await.unwrap();
    let seconds = process.scrape().await.value("weir_blocked_seconds_total", &[]);
    // It waits for five seconds. Two submissions of the holder would wait just as long.
    assert!((3.0..=6.0).contains(&seconds.unwrap()), "{seconds:?}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        process.scrape().await.value("weir_blocked_seconds_total", &[]),
        seconds
    );
    assert_eq!(process.stop().await, Some(0));
    weir.end().await;
}
