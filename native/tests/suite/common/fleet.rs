//! Fleets of River clients in other languages, without Weir's workers.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Weir;
use super::programs::GoProgram;

pub const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../clients");

pub async fn row_count(client: &Client, table: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {table}");
    client.query_one(&sql, &[]).await.unwrap().get(0)
}

/// Maintenance without workers, as `weir schedule` runs it.
pub struct Maintenance {
    stopped: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Maintenance {
    pub fn of(weir: &Weir) -> Self {
        let stopped = CancellationToken::new();
        let task = tokio::spawn(weir::work::reconcile::run(weir.context.clone(), stopped.clone()));
        Self { stopped, task }
    }

    pub async fn end(self) {
        self.stopped.cancel();
        self.task.await.unwrap();
    }
}

/// Runs a program of a language with these arguments until it ends, and returns what it printed.
pub async fn output(weir: &Weir, program: &[PathBuf], args: &[&str]) -> String {
    let mut command = Command::new(&program[0]);
    command
        .args(&program[1..])
        .args(args)
        .env("DATABASE_URL", weir.url());
    let ended = tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap()
        .unwrap();
    assert!(
        ended.status.success(),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    String::from_utf8_lossy(&ended.stdout).trim().to_owned()
}

/// A worker process. It has started a job when this returns.
pub async fn worker_at_work(weir: &Weir, program: &[PathBuf]) -> Child {
    let mut child = Command::new(&program[0])
        .args(&program[1..])
        .env("DATABASE_URL", weir.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let client = weir.client().await;
    let started = Instant::now();
    while row_count(&client, "river_job WHERE state = 'running'").await == 0 {
        assert!(child.try_wait().unwrap().is_none(), "the worker has ended");
        assert!(started.elapsed() < Duration::from_secs(60), "no job starts");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    child
}

/// The example in Go; `None` without Go.
pub async fn go() -> Option<GoProgram> {
    GoProgram::built(&format!("{CLIENTS}/go"), "./example").await
}

/// The slots of the shipped catalogue's plans.
pub async fn holders_over_their_slots(client: &Client, slots: &HashMap<Uuid, i64>) -> Vec<String> {
    let running = "SELECT s.holder, count(*) FROM river_job j JOIN weir_jobs s ON s.job_id = j.id \
                   WHERE j.state = 'running' GROUP BY 1";
    let rows = client.query(running, &[]).await.unwrap();
    let over = rows
        .iter()
        .filter(|row| row.get::<_, i64>(1) > slots[&row.get::<_, Uuid>(0)]);
    over.map(|row| format!("{}: {}", row.get::<_, Uuid>(0), row.get::<_, i64>(1)))
        .collect()
}

/// The time that a slot is free until the same holder's next job starts, in milliseconds by the database's clock.
/// Includes holders with one slot, and with jobs that all succeed immediately. Ignores jobs that ended in the first
/// seconds.
pub async fn wakes(
    client: &Client,
    slots: &HashMap<Uuid, i64>,
    quantiles: &[f64],
    cold: Duration,
) -> Vec<f64> {
    let single: Vec<Uuid> = slots
        .iter()
        .filter(|(_, slots)| **slots == 1)
        .map(|(holder, _)| *holder)
        .collect();
    let sql = "SELECT percentile_cont($2::float8[]) WITHIN GROUP (ORDER BY extract(epoch FROM started - ended)::float8 * 1000) \
               FROM (SELECT j.attempted_at AS started, \
                            lag(j.finalized_at) OVER (PARTITION BY s.holder ORDER BY j.attempted_at) AS ended \
                     FROM river_job j JOIN weir_jobs s ON s.job_id = j.id \
                     WHERE s.holder = ANY ($1) AND NOT EXISTS ( \
                         SELECT 1 FROM river_job o JOIN weir_jobs p ON p.job_id = o.id \
                         WHERE p.holder = s.holder AND o.attempt > 1)) w \
               WHERE ended > (SELECT min(attempted_at) + make_interval(secs => $3) FROM river_job)";
    client
        .query_one(sql, &[&single, &quantiles, &cold.as_secs_f64()])
        .await
        .unwrap()
        .get(0)
}
