//! Two processes of a River fleet in Go work the jobs of a hundred users, and one of them is killed.
//!
//! `WEIR_FLEET_JOBS` is the number of jobs; the claim is about 10 000.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::Weir;
use crate::common::fleet::{Maintenance, go, holders_over_their_slots, row_count, wakes};
use crate::common::process::KilledOnDrop;
use serde_json::json;

const USERS: usize = 100;

/// The interval between two samples of running jobs.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(5);

fn start(program: &Path, name: &str, weir: &Weir) -> KilledOnDrop {
    let child = Command::new(program)
        // More workers than slots, even without the killed process, and jobs that leave the machine idle, so that a
        // freed slot waits for neither.
        .args(["-takes", "500ms", "-workers", "200", "-name", name, "work"])
        .env("DATABASE_URL", weir.url())
        .stdin(Stdio::piped())
        .spawn();
    KilledOnDrop(child.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn killing_a_go_process_charges_each_job_once() {
    let Some(program) = go().await else { return };
    let jobs: i64 = std::env::var("WEIR_FLEET_JOBS").map_or(1000, |text| text.parse().unwrap());
    let weir = Weir::new().await;
    let client = weir.client().await;
    client
        .batch_execute("CREATE TABLE results (number int NOT NULL)")
        .await
        .unwrap();
    let (mut slots, mut users) = (HashMap::new(), Vec::new());
    for n in 0..USERS {
        let plan = ["free", "free", "free", "pro"][n % 4];
        let user = weir.user(plan).await;
        let unlimited =
            "INSERT INTO limit_overrides (user_id, event_type, month) VALUES ($1, 'analysis', -1)";
        client.execute(unlimited, &[&user]).await.unwrap();
        slots.insert(user, i64::from(weir.slots_of(plan)));
        users.push(user.to_string());
    }
    let submit = client
        .prepare("SELECT outcome FROM weir_submit($1, 'analysis', $2)")
        .await
        .unwrap();
    for number in 0..jobs {
        let user = &users[usize::try_from(number).unwrap() % USERS];
        client
            .execute(&submit, &[user, &json!({ "order": number })])
            .await
            .unwrap();
    }
    let maintenance = Maintenance::of(&weir);
    let begun = Instant::now();
    let (mut one, mut other) = (
        Some(start(&program.path, "fleet-one", &weir)),
        start(&program.path, "fleet-other", &weir),
    );
    let (mut samples, mut taken_back, mut last) = (0_u32, 0, (i64::MAX, Instant::now()));
    loop {
        let sampled = Instant::now();
        let over = holders_over_their_slots(&client, &slots).await;
        assert!(over.is_empty(), "{over:?}");
        samples += 1;
        if samples.is_multiple_of(10) {
            let left = row_count(&client, "river_job WHERE finalized_at IS NULL").await;
            if left == 0 {
                break;
            }
            if left < last.0 {
                last = (left, Instant::now());
            }
            assert!(
                last.1.elapsed() < Duration::from_secs(60),
                "the fleet does not get on"
            );
            if left <= jobs / 2 {
                drop(one.take());
                // It has no heartbeat, so its jobs are taken over after an hour, which passes here. The server may
                // still execute its last statements, so there may be more of them the next time.
                let age = "UPDATE river_job SET attempted_at = attempted_at - interval '2 hours' \
                           WHERE state = 'running' AND attempted_by[array_upper(attempted_by, 1)] = 'fleet-one' \
                             AND attempted_at > now() - interval '1 hour'";
                taken_back += client.execute(age, &[]).await.unwrap();
            }
        }
        tokio::time::sleep(SAMPLE_INTERVAL.saturating_sub(sampled.elapsed())).await;
    }
    let took = begun.elapsed();
    drop(other.0.stdin.take());
    let status = tokio::task::spawn_blocking(move || other.0.wait()).await.unwrap();
    assert!(status.unwrap().success());
    // Each connection plans its statements once.
    let wake = wakes(&client, &slots, &[0.5, 0.99], Duration::from_secs(3)).await;
    eprintln!(
        "{jobs} jobs of {USERS} users in {:.1} s; {samples} samples; {taken_back} jobs of the killed process; freed slot to \
         next start: p50 {:.1} ms, p99 {:.1} ms",
        took.as_secs_f64(),
        wake[0],
        wake[1]
    );
    assert!(taken_back > 0, "it was killed in the middle of something");
    let again = row_count(&client, "river_job WHERE attempt > 1").await;
    assert!(
        again > 0 && again.unsigned_abs() <= taken_back,
        "{again} of {taken_back}"
    );
    for (what, table) in [
        ("completed", "river_job WHERE state = 'completed'"),
        ("charged", "usage_events WHERE quota_amount = 1"),
        ("jobs charged", "(SELECT DISTINCT job_id FROM usage_events) u"),
        ("written", "results"),
        ("orders written", "(SELECT DISTINCT number FROM results) r"),
    ] {
        assert_eq!(row_count(&client, table).await, jobs, "{what}");
    }
    // A few milliseconds on an idle machine. A worker without a notification polls once a second.
    assert!(wake[0] < 400.0, "a freed slot is idle for {wake:?} ms");
    maintenance.end().await;
    weir.end().await;
}
