//! `weir bench fairness`: what one user's flood costs another, and how soon a freed slot is taken.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::stage::{KIND, Stage, submission};
use super::work::fill;
use super::{BenchError, Effort, Line, Report, conditions, percentile};
use crate::config::Settings;
use crate::handler::{Attempt, Handler, HandlerError, Outcome, Refusal};
use crate::holder::Holder;
use crate::reservation::Reserver;
use crate::work::{Duty, Working};

/// How long every job of this benchmark takes.
const JOB: Duration = Duration::from_millis(20);

/// So many jobs are done before anything is measured.
const WARM_UP: usize = 20;

/// Workers in the lane.
const WORKERS: u32 = 5;

/// Remembers when each job began and ended, by holder.
#[derive(Default)]
struct Diary(Mutex<HashMap<Uuid, Vec<(Instant, Instant)>>>);

#[async_trait]
impl Handler for Diary {
    async fn reserve(&self, _holder: Holder, _args: &Map<String, Value>) -> Result<i32, Refusal> {
        Ok(1)
    }

    async fn work(&self, attempt: Attempt) -> Result<Outcome, HandlerError> {
        let begun = Instant::now();
        tokio::time::sleep(JOB).await;
        if let Some(holder) = attempt.holder {
            let mut diary = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            diary.entry(holder.id).or_default().push((begun, Instant::now()));
        }
        Ok(Outcome {
            output: Value::Null,
            used: None,
        })
    }
}

impl Diary {
    fn of(&self, user: Uuid) -> Vec<(Instant, Instant)> {
        let diary = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entries = diary.get(&user).cloned().unwrap_or_default();
        entries.sort_unstable();
        entries
    }
}

/// Runs it.
///
/// # Errors
///
/// When the database cannot be used; its own database may then be left on the server.
pub async fn fairness(settings: &Settings, effort: Effort) -> Result<Report, BenchError> {
    let stage = Stage::new(settings).await?;
    let newcomers = (effort.turns * 30).max(60);
    let mut conditions = conditions(&stage.database.connect().await?).await?;
    conditions.push(format!(
        "one lane with {WORKERS} workers, jobs of {} ms, one slot a user; {newcomers} newcomers, one after the other",
        JOB.as_millis()
    ));
    let mut lines = Vec::new();
    let mut quiet = newcomers_wait(settings, &stage, 0, newcomers).await?.0;
    let quiet_p99 = percentile(&mut quiet, 0.99);
    for flood in [effort.history / 100, effort.history / 10] {
        let (mut waits, mut wakes, idle) = newcomers_wait(settings, &stage, flood, newcomers).await?;
        let ratio = percentile(&mut waits, 0.99) / quiet_p99;
        lines.push(Line {
            name: format!(
                "newcomer, submit to start, p99, with {flood} jobs of another waiting, against none"
            ),
            value: percentile(&mut waits, 0.99),
            unit: "ms",
            baseline: Some(quiet_p99),
            ratio: Some(ratio),
            target: Some("<= 1.2".to_owned()),
            holds: Some(ratio <= 1.2),
        });
        for (name, of, most) in [("p50", 0.5, 5.0), ("p99", 0.99, 15.0)] {
            let value = percentile(&mut wakes, of);
            lines.push(Line {
                name: format!("slot freed to the same user's next start, {name}, {flood} parked"),
                value,
                unit: "ms",
                baseline: None,
                ratio: None,
                target: Some(format!("<= {most} ms")),
                holds: Some(value <= most),
            });
        }
        lines.push(Line::printed(
            format!("transactions while {flood} wait and nobody works"),
            idle,
            "1/s",
        ));
    }
    lines.push(jain(settings, &stage, effort).await?);
    stage.end().await?;
    Ok(Report { conditions, lines })
}

type Waits = (Vec<Duration>, Vec<Duration>, f64);

/// How long newcomers wait while this many jobs of one user do, how long that user's slot stays free between two jobs,
/// and how many transactions a second the database commits before anybody works.
async fn newcomers_wait(
    settings: &Settings,
    stage: &Stage,
    flood: i64,
    newcomers: usize,
) -> Result<Waits, BenchError> {
    stage.clear().await?;
    let hot = stage.users(1).await?;
    let others = stage.users(newcomers as i64).await?;
    fill(stage, &hot, usize::try_from(flood).unwrap_or_default()).await?;
    let idle = transactions(stage).await?;
    let diary = Arc::new(Diary::default());
    let context = stage
        .context(settings, WORKERS)?
        .with_handler(KIND, Arc::clone(&diary) as Arc<dyn Handler>);
    let working = Working::start(&context, Duty::Both, &context.settings.services).await?;
    let reserver = Reserver::start(stage.database.clone(), Arc::clone(&stage.rules));
    // Connections, statements and plans are made by the first ones.
    while flood > 0 && diary.of(hot[0]).len() < WARM_UP {
        tokio::time::sleep(JOB).await;
    }
    let measured = Instant::now();
    let mut waits = Vec::new();
    for user in others {
        let submitted = Instant::now();
        reserver.submit(submission(user)).await?;
        let begun = loop {
            if let Some((begun, _)) = diary.of(user).first() {
                break *begun;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        waits.push(begun.duration_since(submitted));
    }
    let mut entries = diary.of(hot[0]);
    entries.retain(|(begun, _)| *begun > measured);
    let wakes = entries
        .windows(2)
        .map(|pair| pair[1].0.saturating_duration_since(pair[0].1))
        .collect();
    working.stop().await;
    Ok((waits, wakes, idle))
}

async fn transactions(stage: &Stage) -> Result<f64, BenchError> {
    let client = stage.database.connect().await?;
    let sql = "SELECT xact_commit::float8 FROM pg_stat_database WHERE datname = current_database()";
    let before: f64 = client.query_one(sql, &[]).await?.get(0);
    let span = Duration::from_secs(3);
    tokio::time::sleep(span).await;
    client.batch_execute("SELECT pg_stat_clear_snapshot()").await?;
    let after: f64 = client.query_one(sql, &[]).await?.get(0);
    Ok((after - before) / span.as_secs_f64())
}

/// Jain's index of what 50 users of one tier got, who have between 20 and 1 000 jobs waiting: 1 when all got the same.
async fn jain(settings: &Settings, stage: &Stage, effort: Effort) -> Result<Line, BenchError> {
    stage.clear().await?;
    let users = stage.users(50).await?;
    for (place, user) in users.iter().enumerate() {
        fill(stage, &[*user], 60 + place * 10).await?;
    }
    let diary = Arc::new(Diary::default());
    let context = stage
        .context(settings, WORKERS)?
        .with_handler(KIND, Arc::clone(&diary) as Arc<dyn Handler>);
    let working = Working::start(&context, Duty::Both, &context.settings.services).await?;
    let window = (effort.span * 2).min(Duration::from_secs(10));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let count = |user: &Uuid| diary.of(*user).len() as f64;
    let before: Vec<f64> = users.iter().map(count).collect();
    tokio::time::sleep(window).await;
    let got: Vec<f64> = users
        .iter()
        .zip(before)
        .map(|(user, before)| count(user) - before)
        .collect();
    working.stop().await;
    let sum: f64 = got.iter().sum();
    let squares: f64 = got.iter().map(|got| got * got).sum();
    let index = sum * sum / (got.len() as f64 * squares);
    Ok(Line {
        name: format!(
            "Jain's index over {} s, 50 users with unequal backlogs",
            window.as_secs_f64()
        ),
        value: index,
        unit: "",
        baseline: None,
        ratio: None,
        target: Some(">= 0.99".to_owned()),
        holds: Some(index >= 0.99),
    })
}
