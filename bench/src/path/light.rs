//! `light`: the cost of a job at a tenth of the machine's capacity, and the cost of an installation without jobs.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::super::cost::{Cpu, wal};
use super::super::literal;
use super::super::progress::progress;
use super::super::proxy::Proxy;
use super::super::report::{BenchError, Effort, Line, Report, conditions, median, percentile};
use super::super::stage::Stage;
use super::open_loop::{OpenLoop, SHARE_OF_ONE, USERS, last_job, starts};
use super::parts::WORKERS;
use super::{NOTIFIED, Running, Scene, Side, Work, finished};
use weir::config::Settings;

/// Jobs a second.
const RATES: [usize; 4] = [20, 100, 200, 400];

/// The warm-up time of each rate.
const WARM_UP: Duration = Duration::from_secs(1);

/// The time without submissions before an idle installation is measured. After ten seconds, Weir asks more rarely.
const REST: Duration = Duration::from_secs(12);

/// The minimum time that an idle installation is measured, because the system counts CPU time in steps of 10 ms.
const MIN_IDLE: Duration = Duration::from_secs(10);

/// The maximum number of statements per job.
const MAX_STATEMENTS: f64 = 6.0;

/// The maximum of PostgreSQL's processor time against bare River, in general and at 20 jobs a second.
const MAX_CPU: f64 = 1.5;
const MAX_CPU_AT_20: f64 = 2.0;

/// The maximum against River with the decisions taken literally, whose jobs start later, and with notifications at once.
const MAX_CPU_TO_LITERAL: f64 = 1.35;
const MAX_CPU_TO_SOON_LITERAL: f64 = 0.75;

/// With this time between two notifications of a queue, River starts jobs as soon as Weir does.
const AT_ONCE: Duration = riverqueue::FETCH_COOLDOWN_MIN;

/// The maximum load of an idle installation, in percent of a core.
const MAX_IDLE: f64 = 0.5;

/// The cost of a job at one rate.
#[derive(Clone, Default)]
struct Cost {
    /// PostgreSQL, the origin and the workers, in milliseconds.
    cpu: [f64; 3],
    statements: f64,
    wal: f64,
    /// p50 and p99, in milliseconds.
    submitted: [f64; 2],
    started: [f64; 2],
    /// The fraction of the rate that was reached.
    kept_up: f64,
}

/// The cost of an installation without submissions.
#[derive(Clone, Default)]
struct Idle {
    /// Percent of a core: PostgreSQL, the origin and the workers.
    cpu: [f64; 3],
    statements: f64,
}

/// One side's turn: an idle stretch, then the rates.
struct Turn {
    idle: Idle,
    rates: Vec<Cost>,
}

/// Counts statements with pg_stat_statements, which costs the least, or in a proxy.
enum Counter {
    Server,
    Proxy(Proxy),
}

impl Counter {
    async fn new(client: &Client, stage: &Stage) -> Result<Self, BenchError> {
        // Only a superuser may do this, and only if the server has loaded it.
        let _ = client
            .batch_execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
            .await;
        if client.query(STATEMENTS, &[]).await.is_ok() {
            return Ok(Self::Server);
        }
        Ok(Self::Proxy(Proxy::start(stage.address()?, Duration::ZERO)?))
    }

    fn url(&self, stage: &Stage) -> Result<String, BenchError> {
        match self {
            Self::Server => Ok(stage.url.clone()),
            Self::Proxy(proxy) => stage.through(proxy),
        }
    }

    async fn read(&self, client: &Client) -> Result<f64, BenchError> {
        match self {
            Self::Server => Ok(client.query_one(STATEMENTS, &[]).await?.get(0)),
            Self::Proxy(proxy) => Ok(proxy.traffic.read()[0] as f64),
        }
    }
}

/// The statements that clients sent, without those of this benchmark.
const STATEMENTS: &str = "SELECT coalesce(sum(calls), 0)::float8 FROM pg_stat_statements \
                          WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) \
                            AND query NOT LIKE '%pg_stat_statements%' AND query NOT LIKE '%pg_current_wal%' \
                            AND query NOT LIKE '%postmaster.pid%' AND query NOT LIKE 'SELECT count(*) FROM river_job%'";

/// Runs the benchmark.
///
/// # Errors
///
/// When the database cannot be used. The benchmark's databases may then be left on the server.
pub(crate) async fn light(settings: &Settings, effort: Effort, weir: &Path) -> Result<Report, BenchError> {
    let effort = effort.with_long_turns();
    let span = effort.span * 5 / 2;
    let (ours, bare) = (Stage::new(settings).await?, Stage::new(settings).await?);
    let ids = ours.users(USERS).await?;
    let decided = Stage::new(settings).await?;
    let decided_ids = decided.users(USERS).await?;
    let client = ours.database.connect().await?;
    let mut conditions = conditions(&client).await?;
    let counted = match Counter::new(&client, &ours).await? {
        Counter::Server => "counted by pg_stat_statements",
        Counter::Proxy(_) => "counted by a proxy",
    };
    conditions.push(format!(
        "open loop, {USERS} users of which one submits {} % of the jobs, {WORKERS} workers of no-op jobs; the client is a \
         process on the same cores; {} turns of {} s each rate; statements {counted}",
        100 / SHARE_OF_ONE,
        effort.turns,
        span.as_secs_f64()
    ));
    conditions.push(
        "\"the decisions literally\" is riverqueue with ADR-21's reservation and ADR-10's limiter in memory; its users have \
         5 slots"
            .to_owned(),
    );
    let scene = Scene::new(weir, &ids, span)?;
    let later_scene = Scene::waking(weir, &ids, span, "100ms")?;
    let decided_scene = Scene::new(weir, &decided_ids, span)?;
    literal::prepare(&decided.database.connect().await?).await?;
    let mut sides = [const { Vec::new() }; 6];
    for number in 1..=effort.turns {
        let turns = [
            ("Weir", &scene, &ours, Side::Weir),
            ("Weir, wake = \"100ms\"", &later_scene, &ours, Side::Weir),
            ("bare River", &scene, &bare, Side::Bare(NOTIFIED)),
            ("bare River, notified at once", &scene, &bare, Side::Bare(AT_ONCE)),
            (
                "the decisions literally",
                &decided_scene,
                &decided,
                Side::Literal(NOTIFIED),
            ),
            (
                "the decisions literally, notified at once",
                &decided_scene,
                &decided,
                Side::Literal(AT_ONCE),
            ),
        ];
        for (side, (name, scene, stage, which)) in sides.iter_mut().zip(turns) {
            progress(&format!("{name}, turn {number} of {}", effort.turns));
            side.push(turn(scene, stage, which).await?);
        }
    }
    drop(client);
    ours.end().await?;
    bare.end().await?;
    decided.end().await?;
    let [weir, later, river, soon_river, literal, soon_literal] = sides;
    let mut lines = lines(&weir, &river);
    lines.extend(against(
        "the decisions literally",
        &weir,
        &literal,
        Some(MAX_CPU_TO_LITERAL),
    ));
    lines.extend(against(
        "the decisions literally, notified at once",
        &weir,
        &soon_literal,
        Some(MAX_CPU_TO_SOON_LITERAL),
    ));
    lines.extend(against("bare River, notified at once", &weir, &soon_river, None));
    lines.extend(against("itself with wake = \"100ms\"", &weir, &later, None));
    Ok(Report { conditions, lines })
}

/// The cost of a job at each rate against another side. `most` is the target for PostgreSQL's processor time.
fn against(other: &str, ours: &[Turn], theirs: &[Turn], most: Option<f64>) -> Vec<Line> {
    let mut lines = Vec::new();
    for (index, rate) in RATES.into_iter().enumerate() {
        let named = |what: &str| format!("{rate} jobs/s, against {other}: {what}");
        let both = |number: &dyn Fn(&Cost) -> f64| {
            [ours, theirs].map(|turns| median(turns.iter().map(|turn| number(&turn.rates[index])).collect()))
        };
        let [value, baseline] = both(&|cost| cost.cpu[0]);
        let name = named("PostgreSQL CPU a job");
        lines.push(match most {
            Some(most) => Line::at_most(name, value, baseline, "ms", most),
            None => Line::compared(name, value, baseline, "ms"),
        });
        let mut compared = |what: &str, unit, number: &dyn Fn(&Cost) -> f64| {
            let [value, baseline] = both(number);
            lines.push(Line::compared(named(what), value, baseline, unit));
        };
        compared("worker CPU a job", "ms", &|cost| cost.cpu[2]);
        compared("statements a job", "", &|cost| cost.statements);
        compared("submission, p50", "ms", &|cost| cost.submitted[0]);
        compared("start, p50", "ms", &|cost| cost.started[0]);
    }
    lines
}

/// The medians of all turns.
fn lines(ours: &[Turn], theirs: &[Turn]) -> Vec<Line> {
    let of = |turns: &[Turn], number: &dyn Fn(&Turn) -> f64| median(turns.iter().map(number).collect());
    let mut lines = Vec::new();
    for (index, rate) in RATES.into_iter().enumerate() {
        let both = |number: &dyn Fn(&Cost) -> f64| {
            let number = |turn: &Turn| number(&turn.rates[index]);
            (of(ours, &number), of(theirs, &number))
        };
        let named = |what: &str| format!("{rate} jobs/s: {what}");
        let compared = |what: &str, unit, number: &dyn Fn(&Cost) -> f64| {
            let (value, baseline) = both(number);
            Line::compared(named(what), value, baseline, unit)
        };
        let (cpu, baseline) = both(&|cost| cost.cpu[0]);
        let most = if index == 0 { MAX_CPU_AT_20 } else { MAX_CPU };
        lines.push(Line::at_most(
            named("PostgreSQL CPU a job"),
            cpu,
            baseline,
            "ms",
            most,
        ));
        lines.push(compared("origin CPU a job", "ms", &|cost| cost.cpu[1]));
        lines.push(compared("worker CPU a job", "ms", &|cost| cost.cpu[2]));
        let (statements, baseline) = both(&|cost| cost.statements);
        lines.push(Line {
            target: Some(format!("{MAX_STATEMENTS} a job at most")),
            holds: Some(statements <= MAX_STATEMENTS),
            ..Line::compared(named("statements a job"), statements, baseline, "")
        });
        lines.push(compared("WAL a job", "bytes", &|cost| cost.wal));
        for (index, which) in ["p50", "p99"].into_iter().enumerate() {
            lines.push(compared(&format!("submission, {which}"), "ms", &|cost| {
                cost.submitted[index]
            }));
            lines.push(compared(&format!("start, {which}"), "ms", &|cost| {
                cost.started[index]
            }));
        }
        lines.push(compared("done", "1/s", &|cost| cost.kept_up));
    }
    let idle = |number: &dyn Fn(&Idle) -> f64| {
        let number = |turn: &Turn| number(&turn.idle);
        (of(ours, &number), of(theirs, &number))
    };
    for (index, process) in ["PostgreSQL", "the origin", "the workers"]
        .into_iter()
        .enumerate()
    {
        let (value, baseline) = idle(&|idle| idle.cpu[index]);
        lines.push(Line::compared(
            format!("idle: CPU of {process}"),
            value,
            baseline,
            "% of a core",
        ));
    }
    let (value, baseline) = idle(&|idle| idle.cpu.iter().sum());
    lines.push(Line {
        target: Some(format!("{MAX_IDLE} at most")),
        holds: Some(value <= MAX_IDLE),
        ..Line::compared("idle: CPU of all", value, baseline, "% of a core")
    });
    let (value, baseline) = idle(&|idle| idle.statements);
    lines.push(Line::compared("idle: statements", value, baseline, "1/s"));
    lines
}

/// One side with its own processes: first idle, then each rate.
async fn turn(scene: &Scene, stage: &Stage, side: Side) -> Result<Turn, BenchError> {
    stage.clear().await?;
    let client = stage.database.connect().await?;
    let counter = Counter::new(&client, stage).await?;
    let running = Running::start(scene, side, Work::Done, &counter.url(stage)?).await?;
    let processes = running.processes();
    // With new connections each time, because the origin closes those that have been idle for long.
    let run = async |rate, span| {
        let load = OpenLoop::open(&running.target, &scene.users).await?;
        load.run(rate, span).await
    };
    let mut jobs = run(RATES[1], WARM_UP).await?.len();
    finished(&client, jobs).await?;
    tokio::time::sleep(REST).await;
    let (cpu, statements) = (Cpu::read(&client, processes).await, counter.read(&client).await?);
    let started = Instant::now();
    tokio::time::sleep(MIN_IDLE.max(scene.span * 3 / 2)).await;
    let statements = counter.read(&client).await? - statements;
    let spent = Cpu::read(&client, processes).await.since(&cpu);
    let seconds = started.elapsed().as_secs_f64();
    let [origin, workers, postgres] = spent.map(|spent| 100.0 * spent.as_secs_f64() / seconds);
    let idle = Idle {
        cpu: [postgres, origin, workers],
        statements: statements / seconds,
    };
    let mut rates = Vec::new();
    for rate in RATES {
        jobs += run(rate, WARM_UP).await?.len();
        finished(&client, jobs).await?;
        let before = last_job(&client).await?;
        let (cpu, statements) = (Cpu::read(&client, processes).await, counter.read(&client).await?);
        let (written, started) = (wal(&client).await?, Instant::now());
        let mut latencies = run(rate, scene.span).await?;
        let submitted = latencies.len();
        jobs += submitted;
        finished(&client, jobs).await?;
        let seconds = started.elapsed().as_secs_f64();
        let each = |sum: f64| sum / submitted.max(1) as f64;
        let spent = Cpu::read(&client, processes).await.since(&cpu);
        let [origin, workers, postgres] = spent.map(|spent| each(spent.as_secs_f64() * 1000.0));
        let statements = counter.read(&client).await? - statements;
        rates.push(Cost {
            cpu: [postgres, origin, workers],
            statements: each(statements),
            wal: each(wal(&client).await? - written),
            submitted: [0.5, 0.99].map(|of| percentile(&mut latencies, of)),
            started: starts(&client, before).await?,
            kept_up: submitted as f64 / seconds,
        });
    }
    drop(running);
    Ok(Turn { idle, rates })
}
