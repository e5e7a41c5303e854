//! `fairness`: the cost of one user's flood to another user, and how soon a freed slot is reused.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::crash;
use super::jobs::fill;
use super::progress::progress;
use super::report::{BenchError, Effort, Line, Report, conditions, median, percentile};
use super::stage::{KIND, Stage, submission};
use weir::config::Settings;
use weir::handler::{Attempt, Handler, HandlerError, Outcome, Refusal, Worked};
use weir::work::reconcile;
use weir::work::{Role, Working};
use weir_ledger::holder::Holder;
use weir_ledger::reservation::Reserver;

/// The duration of every job in this benchmark.
const JOB: Duration = Duration::from_millis(20);

/// The number of measured newcomers in each turn, a quarter of them in a quick run, and the number of unmeasured ones
/// before them.
const NEWCOMERS: usize = 200;
const WARM_UP: usize = 20;

/// Workers in the lane.
const WORKERS: u32 = 5;

/// A handler that takes this long, and records when each job started and ended, by holder.
pub(super) struct Diary {
    takes: Duration,
    entries: Mutex<HashMap<Uuid, Vec<(Instant, Instant)>>>,
}

#[async_trait]
impl Handler for Diary {
    async fn reserve(&self, _holder: Holder, _args: &Map<String, Value>) -> Result<i64, Refusal> {
        Ok(1)
    }

    async fn work(&self, attempt: Attempt) -> Result<Worked, HandlerError> {
        let begun = Instant::now();
        tokio::time::sleep(self.takes).await;
        if let Some(holder) = attempt.holder {
            let mut diary = self.entries.lock();
            diary.entry(holder.id).or_default().push((begun, Instant::now()));
        }
        Ok(Outcome {
            output: Value::Null,
            used: None,
        }
        .into())
    }
}

impl Diary {
    pub(super) fn new(takes: Duration) -> Self {
        Self {
            takes,
            entries: Mutex::default(),
        }
    }

    pub(super) fn of(&self, user: Uuid) -> Vec<(Instant, Instant)> {
        let diary = self.entries.lock();
        let mut entries = diary.get(&user).cloned().unwrap_or_default();
        entries.sort_unstable();
        entries
    }
}

/// A handler that runs until it is cancelled.
struct Endless;

#[async_trait]
impl Handler for Endless {
    async fn reserve(&self, _holder: Holder, _args: &Map<String, Value>) -> Result<i64, Refusal> {
        Ok(1)
    }

    async fn work(&self, attempt: Attempt) -> Result<Worked, HandlerError> {
        attempt.cancelled.cancelled().await;
        Err(HandlerError::Cancelled)
    }
}

/// Runs the benchmark.
///
/// # Errors
///
/// When the database cannot be used. The benchmark's database may then be left on the server.
pub(crate) async fn fairness(settings: &Settings, effort: Effort, weir: &Path) -> Result<Report, BenchError> {
    let stage = Stage::new(settings).await?;
    let (rounds, newcomers) = if effort.is_quick {
        (2, NEWCOMERS / 4)
    } else {
        (effort.turns * 6, NEWCOMERS)
    };
    let mut conditions = conditions(&stage.database.connect().await?).await?;
    conditions.push(format!(
        "one lane with {WORKERS} workers, jobs of {} ms, one slot a user; {rounds} turns of {newcomers} newcomers each, \
         one newcomer after the other",
        JOB.as_millis()
    ));
    let mut lines = Vec::new();
    let mut scenes = Vec::new();
    let floods = if effort.is_quick {
        vec![0, effort.history / 50]
    } else {
        vec![0, effort.history / 100, effort.history / 10]
    };
    let largest = floods.len() - 1;
    for flood in floods {
        progress(&format!("filling a database with {flood} waiting jobs"));
        scenes.push(Scene::new(settings, usize::try_from(flood).unwrap_or_default()).await?);
    }
    // The cost of a flood to a user who shares only the machine and the server with it.
    let mut apart = Scene::new(settings, 0).await?;
    // A disk has slow seconds, which would determine the 99th percentile. With many short turns, each side gets its
    // share of them.
    for round in 1..=rounds {
        progress(&format!("newcomers, turn {round} of {rounds}"));
        for scene in &mut scenes {
            scene.turn(settings, WARM_UP, newcomers).await?;
        }
        let flood = scenes[largest].begin(settings, WARM_UP).await?;
        apart.turn(settings, WARM_UP, newcomers).await?;
        scenes[largest].end(flood).await?;
    }
    let quiet = percentile(&mut scenes[0].newcomers, 0.99);
    for scene in &mut scenes[1..] {
        let flood = scene.flood;
        lines.push(Line::at_most(
            format!("newcomer, submit to start, p99, with {flood} jobs of another waiting, against none"),
            percentile(&mut scene.newcomers, 0.99),
            quiet,
            "ms",
            1.1,
        ));
        for (name, of, most) in [("p50", 0.5, 5.0), ("p99", 0.99, 15.0)] {
            let value = percentile(&mut scene.slots, of);
            lines.push(Line {
                target: Some(format!("<= {most} ms")),
                holds: Some(value <= most),
                ..Line::printed(
                    format!("slot freed to the same user's next start, {name}, {flood} parked"),
                    value,
                    "ms",
                )
            });
        }
    }
    lines.push(Line::compared(
        "newcomer, submit to start, p99, with that flood in another database of the server, against none",
        percentile(&mut apart.newcomers, 0.99),
        quiet,
        "ms",
    ));
    scenes.push(apart);
    for scene in scenes {
        scene.stage.end().await?;
    }
    let idle = resting(settings, &stage, effort, 0).await?;
    let waiting = if effort.is_quick {
        effort.history / 50
    } else {
        effort.history / 10
    };
    let busy = resting(settings, &stage, effort, waiting).await?;
    for (name, value, baseline, unit, more) in [
        ("transactions", busy.transactions, idle.transactions, "1/s", 10.0),
        ("WAL", busy.wal, idle.wal, "B/s", 4096.0),
    ] {
        lines.push(Line {
            baseline: Some(baseline),
            ratio: Some(value / baseline),
            target: Some(format!("<= +{more} {unit}")),
            holds: Some(value <= baseline + more),
            ..Line::printed(
                format!("{name} while {waiting} jobs of one user wait for its slot, against none"),
                value,
                unit,
            )
        });
    }
    lines.push(jain(settings, &stage, effort).await?);
    lines.extend(crash::killed(&stage, weir).await?);
    stage.end().await?;
    Ok(Report { conditions, lines })
}

/// A database with this many waiting jobs of one user.
struct Scene {
    stage: Stage,
    hot: Vec<Uuid>,
    flood: usize,
    /// The newcomers' waiting times.
    newcomers: Vec<Duration>,
    /// The times between two jobs of the hot user's slot.
    slots: Vec<Duration>,
}

impl Scene {
    async fn new(settings: &Settings, flood: usize) -> Result<Self, BenchError> {
        let stage = Stage::new(settings).await?;
        let hot = stage.users(1).await?;
        fill(&stage, &hot, flood).await?;
        stage.tidy().await?;
        Ok(Self {
            stage,
            hot,
            flood,
            newcomers: Vec::new(),
            slots: Vec::new(),
        })
    }

    /// Starts workers and submits for this many newcomers, after others that open connections and prepare statements
    /// and plans. Refills the flood afterwards.
    async fn turn(
        &mut self,
        settings: &Settings,
        warm_up: usize,
        newcomers: usize,
    ) -> Result<(), BenchError> {
        let users = self.stage.users((warm_up + newcomers) as i64).await?;
        let play = self.begin(settings, warm_up).await?;
        let reserver = Reserver::start(&self.stage.database);
        let (first, others) = users.split_at(warm_up);
        for user in first {
            newcomer(&reserver, &play.diary, *user).await?;
        }
        let measured = Instant::now();
        for user in others {
            self.newcomers
                .push(newcomer(&reserver, &play.diary, *user).await?);
        }
        let mut entries = play.diary.of(self.hot[0]);
        entries.retain(|(begun, _)| *begun > measured);
        self.slots.extend(
            entries
                .windows(2)
                .map(|pair| pair[1].0.saturating_duration_since(pair[0].1)),
        );
        self.end(play).await
    }

    /// Starts workers, and waits until they work on the flood.
    async fn begin(&self, settings: &Settings, warm_up: usize) -> Result<Play, BenchError> {
        let diary = Arc::new(Diary::new(JOB));
        let context = self
            .stage
            .context(settings, WORKERS)?
            .with_handler(KIND, Arc::clone(&diary) as Arc<dyn Handler>);
        let working = Working::start(&context, Role::Both, &context.settings.services).await?;
        while self.flood > 0 && diary.of(self.hot[0]).len() < warm_up.max(1) {
            tokio::time::sleep(JOB).await;
        }
        Ok(Play { diary, working })
    }

    /// Stops the workers, and refills the flood.
    async fn end(&self, play: Play) -> Result<(), BenchError> {
        play.working.stop().await;
        let worked = play.diary.of(self.hot[0]).len();
        fill(&self.stage, &self.hot, worked).await
    }
}

/// The workers of a scene.
struct Play {
    diary: Arc<Diary>,
    working: Working,
}

/// From submission to start.
pub(super) async fn newcomer(reserver: &Reserver, diary: &Diary, user: Uuid) -> Result<Duration, BenchError> {
    let submitted = Instant::now();
    reserver.submit(submission(user)).await?;
    loop {
        if let Some((begun, _)) = diary.of(user).first() {
            return Ok(begun.duration_since(submitted));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The database's work in a second.
struct Rest {
    transactions: f64,
    wal: f64,
}

/// The database's work while this many jobs of one user wait for a slot that never becomes free. Nothing is submitted,
/// and workers, leader and reconciliation are idle.
async fn resting(
    settings: &Settings,
    stage: &Stage,
    effort: Effort,
    waiting: i64,
) -> Result<Rest, BenchError> {
    progress(&format!("at rest while {waiting} jobs wait"));
    stage.clear().await?;
    let hot = stage.users(1).await?;
    let jobs = usize::try_from(waiting).unwrap_or_default();
    fill(stage, &hot, jobs).await?;
    let client = stage.database.connect().await?;
    client.batch_execute("VACUUM ANALYZE").await?;
    client.batch_execute("CHECKPOINT").await?;
    // The endless job ends when the drain does.
    let mut settings = settings.clone();
    settings.drain_timeout = Duration::from_secs(1);
    let context = stage
        .context(&settings, WORKERS)?
        .with_handler(KIND, Arc::new(Endless));
    let working = Working::start(&context, Role::Both, &context.settings.services).await?;
    let stopped = CancellationToken::new();
    let reconciling = tokio::spawn(reconcile::run(context.clone(), stopped.clone()));
    tokio::time::sleep(Duration::from_secs(2)).await;
    // Long enough for a slow round, except in a quick run. Takes the median of several: all databases of the server
    // share its log, and it vacuums any of them at any time.
    let span = if effort.is_quick {
        effort.span / 2
    } else {
        effort.span * 4
    };
    let (mut transactions, mut wal) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let before = done_so_far(&client).await?;
        tokio::time::sleep(span).await;
        let after = done_so_far(&client).await?;
        transactions.push((after.transactions - before.transactions) / span.as_secs_f64());
        wal.push((after.wal - before.wal) / span.as_secs_f64());
    }
    stopped.cancel();
    reconciling.await?;
    working.stop().await;
    Ok(Rest {
        transactions: median(transactions),
        wal: median(wal),
    })
}

async fn done_so_far(client: &tokio_postgres::Client) -> Result<Rest, BenchError> {
    let row = client
        .query_one(
            "SELECT xact_commit::float8, (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8 \
             FROM pg_stat_database WHERE datname = current_database()",
            &[],
        )
        .await?;
    Ok(Rest {
        transactions: row.get(0),
        wal: row.get(1),
    })
}

/// Jain's index of the throughput of 50 users on one plan, with 20 to 1 000 waiting jobs each: 1 when all got the same.
async fn jain(settings: &Settings, stage: &Stage, effort: Effort) -> Result<Line, BenchError> {
    progress("50 users with unequal backlogs");
    stage.clear().await?;
    let users = stage.users(50).await?;
    let (least, step) = if effort.is_quick { (40, 2) } else { (60, 10) };
    for (place, user) in users.iter().enumerate() {
        fill(stage, &[*user], least + place * step).await?;
    }
    let diary = Arc::new(Diary::new(JOB));
    let context = stage
        .context(settings, WORKERS)?
        .with_handler(KIND, Arc::clone(&diary) as Arc<dyn Handler>);
    let working = Working::start(&context, Role::Both, &context.settings.services).await?;
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
    let index = jains_index(&got);
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

/// 1 when all got the same, and 1/n when one got everything.
pub(super) fn jains_index(got: &[f64]) -> f64 {
    let sum: f64 = got.iter().sum();
    let squares: f64 = got.iter().map(|got| got * got).sum();
    sum * sum / (got.len() as f64 * squares)
}
