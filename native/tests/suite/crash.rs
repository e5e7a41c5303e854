//! Exactness while processes die: real `weir work` processes, `kill -9`, and continuous sampling.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::common::process;
use crate::common::{PLANS, Weir, Who};
use jiff::Timestamp;
use serde_json::json;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// The processes that this one has started.
fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of_thread = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("children"));
    let lists = threads.filter_map(|thread| of_thread(thread.ok()?).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace()
                .map(|pid| pid.parse().unwrap())
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Whether a process has ended, or is a zombie.
fn has_ended(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|stat| stat.rsplit_once(") ")?.1.chars().next())
        .is_none_or(|state| state == 'Z')
}

#[derive(Default)]
struct Samples {
    taken: usize,
    most: HashMap<Uuid, i64>,
}

/// Repeatedly counts each user's running jobs in one snapshot.
async fn sample(client: Client, stopped: CancellationToken) -> Samples {
    let mut samples = Samples::default();
    let statement = client
        .prepare(
            "SELECT (args ->> 'user_id')::uuid, count(*) FROM river_job WHERE state = 'running' GROUP BY 1",
        )
        .await
        .unwrap();
    let mut beat = tokio::time::interval(Duration::from_millis(5));
    while !stopped.is_cancelled() {
        beat.tick().await;
        for row in client.query(&statement, &[]).await.unwrap() {
            let most = samples.most.entry(row.get(0)).or_default();
            *most = (*most).max(row.get(1));
        }
        samples.taken += 1;
    }
    samples
}

/// Kills the process in the middle of a job's first attempt. Returns the jobs that it ran, and the time.
async fn killed_at_work(
    weir: &Weir,
    client: &Client,
    victim: &mut process::KilledOnDrop,
    id: &str,
) -> (Vec<i64>, Timestamp) {
    weir.until("a job to be in the middle of its first attempt", async || {
        client
            .query_opt(
                "SELECT 1 FROM river_job WHERE state = 'running' AND attempted_by[array_upper(attempted_by, 1)] = $1 \
                 AND attempted_at > clock_timestamp() - interval '60 milliseconds' LIMIT 1",
                &[&id],
            )
            .await
            .unwrap()
    })
    .await;
    victim.0.kill().unwrap();
    victim.0.wait().unwrap();
    let orphaned = client
        .query(
            "SELECT id, clock_timestamp() FROM river_job \
             WHERE state = 'running' AND attempted_by[array_upper(attempted_by, 1)] = $1",
            &[&id],
        )
        .await
        .unwrap();
    assert!(!orphaned.is_empty(), "it was killed at work");
    let killed_at: Timestamp = orphaned[0].get(1);
    (orphaned.iter().map(|row| row.get(0)).collect(), killed_at)
}

async fn all_jobs_end(client: &Client, jobs: i64) {
    let started = Instant::now();
    loop {
        let open: i64 = client
            .query_one("SELECT count(*) FROM river_job WHERE finalized_at IS NULL", &[])
            .await
            .unwrap()
            .get(0);
        if open == 0 {
            break;
        }
        assert!(
            started.elapsed() < Duration::from_secs(90),
            "{open} of {jobs} jobs do not end"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_workers_jobs_resume_within_fifteen_seconds() {
    let weir = Weir::with(&[("WEIR_CONFIG", "tests/crash.toml")]).await;
    let client = weir.client().await;
    let mut users = HashMap::new();
    let mut jobs: i64 = 0;
    for plan in PLANS.into_iter().chain(["free"; 3]) {
        let user = weir.user(plan).await;
        let limit = i64::from(weir.slots_of(plan));
        users.insert(user, limit);
        for _ in 0..20 * limit {
            let answer = weir.post("/api/jobs/nap", Who::User(user), &json!({})).await;
            assert_eq!(answer.status, 202, "{}", answer.body);
            jobs += 1;
        }
    }
    let stopped = CancellationToken::new();
    let sampling = tokio::spawn(sample(weir.client().await, stopped.clone()));

    let _scheduler = process::spawn(&weir, "schedule");
    let mut victim = process::spawn(&weir, "work");
    let victims_id: String = weir
        .until("the first worker to register", async || {
            let row = client
                .query_opt("SELECT client_id FROM processes", &[])
                .await
                .unwrap()?;
            row.get(0)
        })
        .await;
    let _others = [process::spawn(&weir, "work"), process::spawn(&weir, "work")];
    weir.until("three workers", async || {
        let beating: i64 = client
            .query_one("SELECT count(*) FROM processes", &[])
            .await
            .unwrap()
            .get(0);
        (beating == 3).then_some(())
    })
    .await;
    let (orphaned, killed_at) = killed_at_work(&weir, &client, &mut victim, &victims_id).await;
    let _successor = process::spawn(&weir, "work");
    all_jobs_end(&client, jobs).await;
    stopped.cancel();
    let samples = sampling.await.unwrap();
    assert!(samples.taken > 500, "{} samples", samples.taken);
    for (user, limit) in users {
        assert!(
            samples.most[&user] <= limit,
            "{} jobs of a user ran at once, and the limit is {limit}",
            samples.most[&user]
        );
    }
    let row = client
        .query_one(
            "SELECT count(*) FILTER (WHERE state = 'completed'), \
                    count(*) FILTER (WHERE attempt <> CASE WHEN id = ANY ($1) THEN 2 ELSE 1 END), \
                    max(extract(epoch FROM attempted_at - $2)) FILTER (WHERE id = ANY ($1))::float8, \
                    (SELECT count(*) FROM usage_events) \
             FROM river_job",
            &[&orphaned, &killed_at],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, i64>(0), jobs, "everything ran");
    assert_eq!(row.get::<_, i64>(1), 0, "only the killed job ran twice");
    assert_eq!(row.get::<_, i64>(3), jobs, "each is charged once");
    let resumed_after: f64 = row.get(2);
    println!(
        "{} samples, {} jobs, {} orphaned, resumed {resumed_after:.1} s after the kill",
        samples.taken,
        jobs,
        orphaned.len()
    );
    assert!(
        resumed_after <= 15.0,
        "the next attempt started {resumed_after} s after the kill"
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_process_does_not_overwrite_its_successors_attempt() {
    let weir = Weir::with(&[("WEIR_CONFIG", "tests/crash.toml")]).await;
    let client = weir.client().await;
    let who = Who::User(weir.user("free").await);
    let other = Who::User(weir.user("free").await);
    for (service, who) in [("abandoned", who), ("lasting", other)] {
        let answer = weir.post(&format!("/api/jobs/{service}"), who, &json!({})).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
    }
    let until_attempt = async |number: i16| {
        weir.until("an attempt to run", async || {
            client
                .query_opt(
                    "SELECT 1 FROM river_job WHERE kind = 'test:abandoned' AND state = 'running' AND attempt = $1",
                    &[&number],
                )
                .await
                .unwrap()
        })
        .await
    };
    let _scheduler = process::spawn(&weir, "schedule");
    let mut zombie = process::spawn(&weir, "work");
    let pid = nix::unistd::Pid::from_raw(zombie.0.id().try_into().unwrap());
    // Both programs, and the watcher that kills them if the worker is killed.
    let programs = weir
        .until("both of its programs to run", async || {
            Some(children(zombie.0.id())).filter(|programs| programs.len() == 3)
        })
        .await;
    nix::sys::signal::kill(pid, nix::sys::signal::SIGSTOP).unwrap();
    until_attempt(1).await;

    // Its program continues, and fails while no process can record that.
    let _successor = process::spawn(&weir, "work");
    until_attempt(2).await;
    nix::sys::signal::kill(pid, nix::sys::signal::SIGCONT).unwrap();
    let ended = weir
        .until("the process to end itself", async || zombie.0.try_wait().unwrap())
        .await;
    assert_eq!(ended.code(), Some(70));
    weir.until("its programs to end with it", async || {
        programs.iter().all(|pid| has_ended(*pid)).then_some(())
    })
    .await;
    // By then, its last messages have arrived.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let row = client
        .query_one(
            "SELECT state::text, attempt, array_length(errors, 1) FROM river_job WHERE kind = 'test:abandoned'",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(
        (row.get::<_, &str>(0), row.get::<_, i16>(1), row.get::<_, i32>(2)),
        ("running", 2, 1),
        "the only error is that it was taken over"
    );
    weir.end().await;
}
