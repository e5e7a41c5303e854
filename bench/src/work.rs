//! `work`: jobs a second with all features on, against bare River with the same pools.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use riverqueue::{Client, Job, QueueConfig, RunHandle, WorkContext, WorkOutcome, Workers};
use tokio::net::TcpListener;
use uuid::Uuid;

use super::jobs::{Count, counted, enough, fill_bare, fill_within};
use super::literal::{self, with_literal};
use super::progress::progress;
use super::report::{BenchError, Effort, Line, Report, conditions, median};
use super::reserve::BareArgs;
use super::stage::{KIND, Stage};
use weir::config::Settings;
use weir::webhooks;
use weir::work::{FETCH_COOLDOWN, Role, Working};
use weir_ledger::control;

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

/// The cost of an event per job, delivered to a webhook that answers immediately.
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
        "jobs through 10 workers, each reported to a webhook ({:.0} % delivered during the run), against none",
        100.0 * kept_up
    );
    Ok(Line::at_least(name, median(with), median(without), "1/s", 0.7))
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
    let jobs = fill_within(stage, users, jobs, effort.filling()).await?;
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
    let workers = bare_workers(stage, workers, count).await?;
    let rate = counted(&count.done, effort.span, jobs).await;
    workers.stop().await?;
    rate
}

/// Workers of bare River.
pub(super) struct BareWorkers {
    run: RunHandle,
    pool: sqlx::PgPool,
}

impl BareWorkers {
    pub(super) async fn stop(mut self) -> Result<(), BenchError> {
        self.run.stop_and_cancel().await?;
        self.pool.close().await;
        Ok(())
    }
}

pub(super) async fn bare_workers(
    stage: &Stage,
    workers: u32,
    count: &Count,
) -> Result<BareWorkers, BenchError> {
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
    let run = client.start()?;
    Ok(BareWorkers { run, pool })
}
