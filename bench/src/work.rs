//! `work`: jobs a second with all features on, against bare River with the same pools.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use axum::Router;
use axum::http::StatusCode;
use futures_util::StreamExt;
use futures_util::stream;
use riverqueue::{Client, Job, QueueConfig, WorkContext, WorkOutcome, Workers};
use serde_json::{Map, Value};
use tokio::net::TcpListener;
use uuid::Uuid;

use super::literal::{self, with_literal};
use super::progress::progress;
use super::report::{BenchError, Effort, Line, Report, conditions, median};
use super::reserve::BareArgs;
use super::stage::{KIND, Stage, submission};
use weir::config::Settings;
use weir::handler::{Attempt, Handler, HandlerError, Outcome, Refusal, Worked};
use weir::webhooks;
use weir::work::{FETCH_COOLDOWN, Role, Working};
use weir_ledger::control;
use weir_ledger::holder::Holder;
use weir_ledger::reservation::Reserver;
use weir_ledger::rules::Rules;

/// The number of concurrent submissions while a queue is filled.
const FILLERS: usize = 256;

/// With fewer jobs, all would be done before the measurement starts.
const MIN_JOBS: usize = 20_000;

/// A handler that takes this long, and counts its jobs.
#[derive(Clone, Default)]
pub(super) struct Count {
    takes: Duration,
    pub(super) done: Arc<AtomicU64>,
}

impl Count {
    fn new(takes: Duration) -> Self {
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

/// Runs the benchmark.
///
/// # Errors
///
/// When the database cannot be used. The benchmark's databases may then be left on the server.
pub(crate) async fn work(settings: &Settings, effort: Effort) -> Result<Report, BenchError> {
    let effort = effort.with_long_turns();
    let (ours, bare) = (Stage::new(settings).await?, Stage::new(settings).await?);
    let users = ours.users(1000).await?;
    let mut conditions = conditions(&ours.database.connect().await?).await?;
    conditions.push(format!(
        "no-op jobs of 1 000 users; fetch cooldown {} ms on both sides; {} turns of {} s each side; \
         a pool is how many handlers run at once; the handlers of the decisions taken literally have {} connections",
        FETCH_COOLDOWN.as_millis(),
        effort.turns,
        effort.span.as_secs_f64(),
        literal::CONNECTIONS
    ));
    let mut lines = Vec::new();
    for (workers, takes, target) in [
        (10, Duration::ZERO, Some(2.0)),
        (100, Duration::ZERO, Some(1.0)),
        (1000, Duration::ZERO, Some(0.9)),
        (10, Duration::from_millis(5), None),
    ] {
        let (mut our_rates, mut their_rates) = (Vec::new(), Vec::new());
        for turn in 1..=effort.turns {
            progress(&format!(
                "jobs of {} ms through {workers} workers, turn {turn} of {}",
                takes.as_millis(),
                effort.turns
            ));
            let count = Count::new(takes);
            our_rates.push(with_weir(settings, &ours, &users, workers, &count, effort).await?);
            let count = Count::new(takes);
            their_rates.push(with_river(&bare, workers, &count, effort).await?);
        }
        let (our_rate, their_rate) = (median(our_rates), median(their_rates));
        let which = match takes.as_millis() {
            0 => String::new(),
            millis => format!(" of {millis} ms"),
        };
        let name = format!("jobs{which} through {workers} workers, against bare riverqueue");
        lines.push(match target {
            Some(target) => Line::at_least(name, our_rate, their_rate, "1/s", target),
            None => Line::compared(name, our_rate, their_rate, "1/s"),
        });
    }
    for workers in [10, 100, 1000] {
        let (mut our_rates, mut their_rates) = (Vec::new(), Vec::new());
        for turn in 1..=effort.turns {
            progress(&format!(
                "the decisions literally through {workers} workers, turn {turn} of {}",
                effort.turns
            ));
            let count = Count::new(Duration::ZERO);
            our_rates.push(with_weir(settings, &ours, &users, workers, &count, effort).await?);
            let count = Count::new(Duration::ZERO);
            their_rates.push(with_literal(&ours, &users, workers, &count, effort).await?);
        }
        let name = format!("jobs through {workers} workers, against the decisions literally on riverqueue");
        lines.push(Line::at_least(
            name,
            median(our_rates),
            median(their_rates),
            "1/s",
            2.0,
        ));
    }
    lines.push(with_webhook(settings, &ours, &users, effort).await?);
    ours.end().await?;
    bare.end().await?;
    Ok(Report { conditions, lines })
}

/// The cost of an event per job, delivered to a webhook that answers at once.
async fn with_webhook(
    settings: &Settings,
    stage: &Stage,
    users: &[Uuid],
    effort: Effort,
) -> Result<Line, BenchError> {
    let mut settings = settings.clone();
    settings.webhook_private_networks = true;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let url = format!("http://{}/", listener.local_addr()?);
    let delivered = Arc::new(AtomicU64::new(0));
    let deliveries = Arc::clone(&delivered);
    let receiver = Router::new().fallback(async move || {
        deliveries.fetch_add(1, Ordering::Relaxed);
        StatusCode::NO_CONTENT
    });
    let receiving = tokio::spawn(async move { axum::serve(listener, receiver).await });
    let mut client = stage.database.connect().await?;
    let (mut with, mut without, mut ended) = (Vec::new(), Vec::new(), 0);
    for turn in 1..=effort.turns {
        progress(&format!("events to a webhook, turn {turn} of {}", effort.turns));
        let count = Count::new(Duration::ZERO);
        without.push(with_weir(&settings, stage, users, 10, &count, effort).await?);
        let events = ["job.completed".to_owned()];
        let made = webhooks::add(&mut client, &settings, "weir-bench", &url, &events, &[]).await?;
        let count = Count::new(Duration::ZERO);
        with.push(with_weir(&settings, stage, users, 10, &count, effort).await?);
        ended += count.done.load(Ordering::Relaxed);
        control::remove_webhook(&mut client, "weir-bench", made.webhook.id).await?;
    }
    receiving.abort();
    let kept_up = delivered.load(Ordering::Relaxed) as f64 / ended as f64;
    let name = format!(
        "jobs through 10 workers, each reported to a webhook ({:.0} % meanwhile), against none",
        100.0 * kept_up
    );
    Ok(Line::at_least(name, median(with), median(without), "1/s", 0.7))
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
pub(super) async fn fill(
    stage: &Stage,
    rules: &Arc<Rules>,
    users: &[Uuid],
    jobs: usize,
) -> Result<(), BenchError> {
    fill_within(stage, rules, users, jobs, Duration::MAX).await?;
    Ok(())
}

/// Like [`fill`], until this time is over and `MIN_JOBS` are there. Returns how many it submitted.
pub(super) async fn fill_within(
    stage: &Stage,
    rules: &Arc<Rules>,
    users: &[Uuid],
    jobs: usize,
    within: Duration,
) -> Result<usize, BenchError> {
    let started = Instant::now();
    let reserver = Reserver::start(&stage.database, Arc::clone(rules));
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
    if elapsed < span / 4 {
        let what = format!("{jobs} jobs are too few: they were done before the measurement had begun");
        return Err(std::io::Error::other(what).into());
    }
    Ok((after - before) as f64 / elapsed.as_secs_f64())
}

async fn with_weir(
    settings: &Settings,
    stage: &Stage,
    users: &[Uuid],
    workers: u32,
    count: &Count,
    effort: Effort,
) -> Result<f64, BenchError> {
    stage.clear().await?;
    let jobs = enough(workers, count.takes, effort);
    let jobs = fill_within(stage, &stage.rules, users, jobs, effort.filling()).await?;
    stage.tidy().await?;
    let context = stage
        .context(settings, workers)?
        .with_handler(KIND, Arc::new(count.clone()));
    let working = Working::start(&context, Role::Both, &context.settings.services).await?;
    let rate = counted(&count.done, effort.span, jobs).await;
    working.stop().await;
    rate
}

async fn with_river(stage: &Stage, workers: u32, count: &Count, effort: Effort) -> Result<f64, BenchError> {
    stage.clear().await?;
    let jobs = enough(workers, count.takes, effort);
    let jobs = fill_bare(stage, None, jobs, effort.filling()).await?;
    stage.tidy().await?;
    let pool = stage.database.river_pool(10)?;
    let counting = count.clone();
    let mut registered = Workers::new();
    registered.add_fn::<BareArgs, _, _, _>(move |_: WorkContext, _: Job<BareArgs>| {
        let count = counting.clone();
        async move {
            count.run().await;
            Ok::<_, std::convert::Infallible>(WorkOutcome::Complete)
        }
    })?;
    let client = Client::builder(pool.clone())
        .workers(registered)
        .fetch_cooldown(FETCH_COOLDOWN)
        .queue("analysis_default", QueueConfig::new(workers as usize))
        .build()?;
    let mut run = client.start()?;
    let rate = counted(&count.done, effort.span, jobs).await;
    run.stop_and_cancel().await?;
    pool.close().await;
    rate
}
