//! The part of `fairness` with separate worker processes, one of which is killed.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::jobs::fill;
use super::process::{Process, Services};
use super::progress::progress;
use super::report::{BenchError, Line};
use super::stage::Stage;

const MAX_WAIT: Duration = Duration::from_secs(60);

/// Takes long enough to be killed while it runs.
const PROGRAM: &str = r#"["sh", "-c", "sleep 0.2; echo '{}'"]"#;

/// The number of snapshots that showed a user with more running jobs than slots, and the number of all snapshots.
async fn sample(
    client: tokio_postgres::Client,
    stopped: CancellationToken,
) -> Result<(u32, u32), BenchError> {
    let statement = client
        .prepare(
            "SELECT coalesce(max(n), 0) FROM \
             (SELECT count(*) AS n FROM river_job WHERE state = 'running' GROUP BY args ->> 'user_id') u",
        )
        .await?;
    let (mut taken, mut over) = (0, 0);
    let mut beat = tokio::time::interval(Duration::from_millis(5));
    while !stopped.is_cancelled() {
        beat.tick().await;
        let most: i64 = client.query_one(&statement, &[]).await?.get(0);
        taken += 1;
        over += u32::from(most > 1);
    }
    Ok((taken, over))
}

/// Three workers, one of which is killed while it works.
pub(super) async fn killed(stage: &Stage, weir: &Path) -> Result<Vec<Line>, BenchError> {
    progress("kill -9 of one of three workers");
    stage.clear().await?;
    let users = stage.users(8).await?;
    fill(stage, &users, users.len() * 150).await?;
    let client = stage.database.connect().await?;
    let services = Services::new(4, PROGRAM)?;
    let stopped = CancellationToken::new();
    let sampling = tokio::spawn(sample(stage.database.connect().await?, stopped.clone()));
    let _scheduler = Process::start(weir, &stage.url, &services, &["schedule"], &[])?;
    let mut workers = Vec::new();
    for _ in 0..3 {
        workers.push(Process::start(weir, &stage.url, &services, &["work"], &[])?);
    }
    let running = "SELECT attempted_by[array_upper(attempted_by, 1)], array_agg(id) FROM river_job \
                   WHERE state = 'running' GROUP BY 1 ORDER BY count(*) DESC";
    let started = Instant::now();
    let mut busy = HashMap::<String, Vec<i64>>::new();
    while busy.len() < 3 && started.elapsed() < MAX_WAIT {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let rows = client.query(running, &[]).await?;
        busy = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    }
    drop(workers.remove(0));
    let killed = Instant::now();
    // The jobs that are still running after this are those of the killed worker.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let rows = client
        .query(
            "SELECT id FROM river_job WHERE state = 'running' AND attempted_at < now() - interval '900 milliseconds'",
            &[],
        )
        .await?;
    let orphaned: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    let again = "SELECT count(*) FROM river_job WHERE id = ANY ($1) AND attempt > 1 AND state IN ('running', 'completed')";
    let resumed = loop {
        let resumed: i64 = client.query_one(again, &[&orphaned]).await?.get(0);
        // If it had no jobs at that moment, there is nothing to resume.
        if resumed > 0 || orphaned.is_empty() || killed.elapsed() > MAX_WAIT {
            break killed.elapsed().as_secs_f64();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    stopped.cancel();
    let (taken, over) = sampling.await??;
    Ok(vec![
        Line {
            target: Some("<= 15 s".to_owned()),
            holds: Some(resumed <= 15.0 && !orphaned.is_empty()),
            ..Line::printed(
                format!(
                    "kill -9 of a worker with {} jobs to its user's next start",
                    orphaned.len()
                ),
                resumed,
                "s",
            )
        },
        Line {
            target: Some("0".to_owned()),
            holds: Some(over == 0 && taken > 0),
            ..Line::printed(
                format!("limit exceeded, of {taken} samples over three workers and the kill"),
                over.into(),
                "",
            )
        },
    ])
}
