//! `snapshot`: the cost of a snapshot held by another session, such as that of a report or of `pg_dump`.
//!
//! While it is held, PostgreSQL keeps each version of a row that is newer than it. Statements that find rows by an
//! index walk over the dead versions, so the cost of a job grows with the age of the snapshot.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::super::cost::Cpu;
use super::super::progress::progress;
use super::super::report::{BenchError, Effort, Line, Report, conditions, percentile};
use super::super::stage::Stage;
use super::open_loop::{OpenLoop, SHARE_OF_ONE, USERS, last_job, starts};
use super::parts::WORKERS;
use super::{NOTIFIED, Running, Scene, Side, Work, finished};
use weir::config::Settings;

/// The maximum latency, and the maximum processor time, relative to those without the snapshot.
const MAX_LATENCY: f64 = 3.0;
const MAX_CPU: f64 = 1.3;

/// The warm-up time of each rate.
const WARM_UP: Duration = Duration::from_secs(2);

/// Jobs a second, and how long each part of a turn lasts.
pub(crate) struct Plan {
    rates: &'static [usize],
    pub(crate) free: Duration,
    slice: Duration,
    pub(crate) slices: u32,
}

impl Plan {
    pub(crate) fn of(effort: Effort) -> Self {
        if effort.is_quick {
            Self {
                rates: &[500],
                free: Duration::from_secs(3),
                slice: Duration::from_secs(3),
                slices: 3,
            }
        } else {
            Self {
                rates: &[200, 500],
                free: Duration::from_secs(30),
                slice: Duration::from_secs(30),
                slices: 20,
            }
        }
    }

    /// Starts a slice of the load, and returns its length. The first one runs without the snapshot, and the second one
    /// begins it.
    pub(crate) async fn start(&self, number: u32, holder: &Client) -> Result<Duration, BenchError> {
        if number == 0 {
            return Ok(self.free);
        }
        if number == 1 {
            holder
                .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
                .await?;
        }
        Ok(self.slice)
    }

    /// For how many seconds the snapshot has been held after a slice.
    pub(crate) fn held(&self, number: u32) -> u64 {
        (self.slice * number).as_secs()
    }
}

/// One interval of the load.
struct Slice {
    done: f64,
    /// p50 and p99, in milliseconds.
    submitted: [f64; 2],
    started: [f64; 2],
    /// The number of cores that PostgreSQL used.
    cores: f64,
}

/// Runs the benchmark.
///
/// # Errors
///
/// When the database cannot be used. The benchmark's databases may then be left on the server.
pub(crate) async fn snapshot(settings: &Settings, effort: Effort, weir: &Path) -> Result<Report, BenchError> {
    let plan = Plan::of(effort);
    let (ours, bare) = (Stage::new(settings).await?, Stage::new(settings).await?);
    let ids = ours.users(USERS).await?;
    let mut conditions = conditions(&ours.database.connect().await?).await?;
    conditions.push(format!(
        "open loop, {USERS} users of which one submits {} % of the jobs, {WORKERS} workers of no-op jobs; the client is a \
         process on the same cores; one turn of each side at each rate, {} s without the snapshot and {} s with it",
        100 / SHARE_OF_ONE,
        plan.free.as_secs(),
        plan.held(plan.slices),
    ));
    let scene = Scene::new(weir, &ids, plan.slice)?;
    let mut lines = Vec::new();
    for &rate in plan.rates {
        let our_slices = turn(&scene, &ours, Side::Weir, &plan, rate).await?;
        let their_slices = turn(&scene, &bare, Side::Bare(NOTIFIED), &plan, rate).await?;
        lines.extend(compared(rate, "Weir", &our_slices));
        lines.extend(compared(rate, "bare River", &their_slices));
    }
    ours.end().await?;
    bare.end().await?;
    Ok(Report { conditions, lines })
}

/// The last slice with the snapshot against the one without.
fn compared(rate: usize, side: &str, slices: &[Slice]) -> Vec<Line> {
    let (Some(free), Some(held)) = (slices.first(), slices.last()) else {
        return Vec::new();
    };
    let named = |what: &str| format!("{rate} jobs/s, {side}: {what}");
    let mut lines = vec![
        Line::at_least(named("done"), held.done, free.done, "1/s", 0.95),
        Line::at_most(named("PostgreSQL's cores"), held.cores, free.cores, "", MAX_CPU),
    ];
    for (index, which) in ["p50", "p99"].into_iter().enumerate() {
        let latencies = [
            ("submission", free.submitted[index], held.submitted[index]),
            ("start", free.started[index], held.started[index]),
        ];
        for (what, free, held) in latencies {
            let name = named(&format!("{what}, {which}"));
            lines.push(match which {
                "p99" => Line::at_most(name, held, free, "ms", MAX_LATENCY),
                _ => Line::compared(name, held, free, "ms"),
            });
        }
    }
    lines
}

/// One side at one rate, first without the snapshot.
async fn turn(
    scene: &Scene,
    stage: &Stage,
    side: Side,
    plan: &Plan,
    rate: usize,
) -> Result<Vec<Slice>, BenchError> {
    stage.clear().await?;
    let client = stage.database.connect().await?;
    let running = Running::start(scene, side, Work::Done, &stage.url).await?;
    let load = OpenLoop::open(&running.target, &scene.users).await?;
    let mut jobs = load.run(rate, WARM_UP).await?.len();
    finished(&client, jobs).await?;
    let mut slices = Vec::new();
    let holder = stage.database.connect().await?;
    for number in 0..=plan.slices {
        let span = plan.start(number, &holder).await?;
        let (slice, submitted) = measure(&client, &running, &load, rate, span).await?;
        jobs += submitted;
        progress(&format!(
            "{}, {rate} jobs/s, snapshot held for {} s: {:.0} jobs/s, submission {:.1} and {:.0} ms, start {:.1} and \
             {:.0} ms (p50 and p99), PostgreSQL {:.2} cores",
            match side {
                Side::Bare(_) => "bare River",
                Side::Literal(_) => "the decisions literally",
                Side::Weir | Side::Edge => "Weir",
            },
            plan.held(number),
            slice.done,
            slice.submitted[0],
            slice.submitted[1],
            slice.started[0],
            slice.started[1],
            slice.cores,
        ));
        slices.push(slice);
    }
    holder.batch_execute("ROLLBACK").await?;
    finished(&client, jobs).await?;
    drop(running);
    Ok(slices)
}

/// Runs the load for this long. Returns its cost and the number of jobs.
async fn measure(
    client: &Client,
    running: &Running,
    load: &OpenLoop,
    rate: usize,
    span: Duration,
) -> Result<(Slice, usize), BenchError> {
    let before = last_job(client).await?;
    let (cpu, started) = (Cpu::read(client, running.processes()).await, Instant::now());
    let mut latencies = load.run(rate, span).await?;
    let seconds = started.elapsed().as_secs_f64();
    let [_, _, postgres] = Cpu::read(client, running.processes()).await.since(&cpu);
    let done: i64 = client
        .query_one(
            "SELECT count(*) FROM river_job WHERE id > $1 AND state = 'completed'",
            &[&before],
        )
        .await?
        .get(0);
    let slice = Slice {
        done: done as f64 / seconds,
        submitted: [0.5, 0.99].map(|of| percentile(&mut latencies, of)),
        started: starts(client, before).await?,
        cores: postgres.as_secs_f64() / seconds,
    };
    Ok((slice, latencies.len()))
}
