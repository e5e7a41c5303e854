//! Jobs that a benchmark fills a queue with, and counts as they are done.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream;
use riverqueue::Client;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::report::{BenchError, Effort};
use super::reserve::BareArgs;
use super::stage::{Stage, submission};
use weir::handler::{Attempt, Handler, HandlerError, Outcome, Refusal, Worked};
use weir_ledger::holder::Holder;
use weir_ledger::reservation::Reserver;

/// The number of concurrent submissions while a queue is filled.
const FILLERS: usize = 256;

/// With fewer jobs, all would be done before the measurement starts.
const MIN_JOBS: usize = 20_000;

/// A handler that takes this long, and counts its jobs.
#[derive(Clone, Default)]
pub(super) struct Count {
    pub(super) takes: Duration,
    pub(super) done: Arc<AtomicU64>,
}

impl Count {
    pub(super) fn new(takes: Duration) -> Self {
        Self {
            takes,
            done: Arc::default(),
        }
    }

    pub(super) async fn run(&self) {
        if !self.takes.is_zero() {
            tokio::time::sleep(self.takes).await;
        }
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl Handler for Count {
    async fn reserve(&self, _holder: Holder, _args: &Map<String, Value>) -> Result<i64, Refusal> {
        Ok(1)
    }

    async fn work(&self, _attempt: Attempt) -> Result<Worked, HandlerError> {
        self.run().await;
        Ok(Outcome {
            output: Value::Null,
            used: None,
        }
        .into())
    }
}

/// The number of jobs for one turn. If a machine finishes them before the span is over, `counted` ends earlier.
pub(super) fn enough(workers: u32, takes: Duration, effort: Effort) -> usize {
    let most_a_second: f64 = match (workers < 100, effort.is_quick) {
        (true, true) => 7_000.0,
        (true, false) => 14_000.0,
        (false, true) => 15_000.0,
        (false, false) => 40_000.0,
    };
    // Infinite if a job takes no time.
    let at_once = 1.2 * f64::from(workers) / takes.as_secs_f64();
    (most_a_second.min(at_once) * (effort.span.as_secs_f64() + 1.0)) as usize
}

/// Submits this many jobs, for these users in turn.
pub(super) async fn fill(stage: &Stage, users: &[Uuid], jobs: usize) -> Result<(), BenchError> {
    fill_within(stage, users, jobs, Duration::MAX).await?;
    Ok(())
}

/// Like [`fill`], until this time is over and `MIN_JOBS` are there. Returns how many it submitted.
pub(super) async fn fill_within(
    stage: &Stage,
    users: &[Uuid],
    jobs: usize,
    within: Duration,
) -> Result<usize, BenchError> {
    let started = Instant::now();
    let reserver = Reserver::start(&stage.database);
    let mut submitted = stream::iter((0..jobs).take_while(|n| *n < MIN_JOBS || started.elapsed() < within))
        .map(|n| reserver.submit(submission(users[n % users.len()])))
        .buffer_unordered(FILLERS);
    let mut count = 0;
    while let Some(answer) = submitted.next().await {
        answer?;
        count += 1;
    }
    Ok(count)
}

/// Inserts this many jobs by River's client, rounded up to thousands, until this time is over and `MIN_JOBS` are there.
/// The jobs are those of these users in turn, or of a new user each. Returns how many.
pub(super) async fn fill_bare(
    stage: &Stage,
    users: Option<&[Uuid]>,
    jobs: usize,
    within: Duration,
) -> Result<usize, BenchError> {
    let started = Instant::now();
    let pool = stage.database.river_pool(2)?;
    let filler = Client::builder(pool.clone()).build()?;
    let mut count = 0;
    while count < jobs && (count < MIN_JOBS || started.elapsed() < within) {
        let mut batch = riverqueue::InsertBatch::default();
        for n in count..count + 1000 {
            let user = users.map_or_else(Uuid::new_v4, |users| users[n % users.len()]);
            let opts = riverqueue::InsertOpts::default().with_queue("analysis_default");
            batch.push_with(BareArgs::of(user), opts);
        }
        filler.insert_batch(batch).await?;
        count += 1000;
    }
    pool.close().await;
    Ok(count)
}

/// Jobs a second, from a moment after the first is done until the span is over or a tenth of these jobs is left.
pub(super) async fn counted(done: &AtomicU64, span: Duration, jobs: usize) -> Result<f64, BenchError> {
    while done.load(Ordering::Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (before, started) = (done.load(Ordering::Relaxed), Instant::now());
    let last = (jobs - jobs / 10) as u64;
    while started.elapsed() < span && done.load(Ordering::Relaxed) < last {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let (after, elapsed) = (done.load(Ordering::Relaxed), started.elapsed());
    if elapsed < span / 8 {
        let what = format!("{jobs} jobs are too few: they were done before the measurement started");
        return Err(std::io::Error::other(what).into());
    }
    Ok((after - before) as f64 / elapsed.as_secs_f64())
}
