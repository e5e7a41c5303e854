//! `path`: the whole path of a job, over HTTP and in separate processes, to its settlement.

mod connection;
mod edge;
pub(crate) mod light;
mod load;
mod open_loop;
mod parts;
pub(crate) mod snapshot;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::Client;
use uuid::Uuid;
use weir_policy::assertion::AssertionKey;

use super::cost::{Cost, Cpu, Written};
use super::process::{Process, Services};
use super::progress::progress;
use super::proxy::Proxy;
use super::report::{BenchError, Effort, Line, Report, conditions, median, percentile};
use super::reserve;
use super::stage::Stage;
use edge::Edge;
use load::{CONNECTIONS, Credential, Target, User, submit};
use parts::WORKERS;
use weir::config::Settings;

const USERS: i64 = 1000;

/// Signs assertions within this benchmark.
const EDGE_SECRET: &str = "only between the two ends of this benchmark";

/// Signs the tokens that the edge verifies.
const JWT_SECRET: &str = "the secret that signs this benchmark's tokens";

/// A process that does not serve within this time has failed.
const START: Duration = Duration::from_secs(30);

/// All jobs must be done within this time after the last submission. Taken literally, the decisions snooze a job without a
/// slot for half a minute, several times if many come back at once.
const DRAIN: Duration = Duration::from_secs(300);

/// A process that the benchmark starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Weir's workers.
    Workers,
    /// A route over bare River.
    BareOrigin,
    /// Bare River's workers.
    BareWorkers,
    /// A route over River, with the decisions taken literally.
    LiteralOrigin,
    /// Workers over River, with the decisions taken literally.
    LiteralWorkers,
}

/// Runs one of the benchmark's processes, until it is killed.
///
/// # Errors
///
/// When it cannot start.
pub(crate) async fn part(settings: Settings, part: Part) -> Result<(), BenchError> {
    match part {
        Part::Workers => parts::workers(settings).await,
        Part::BareOrigin => parts::bare_origin(&settings).await,
        Part::BareWorkers => parts::bare_workers(&settings).await,
        Part::LiteralOrigin => parts::literal_origin(&settings).await,
        Part::LiteralWorkers => parts::literal_workers(&settings).await,
    }
}

/// The measured side.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Weir,
    /// Weir, through the edge.
    Edge,
    /// River without quotas and slots. Its inserting client notifies a queue at most once in this time.
    Bare(Duration),
    /// River with the decisions taken literally, with the same.
    Literal(Duration),
}

/// River's default.
const NOTIFIED: Duration = riverqueue::FETCH_COOLDOWN_DEFAULT;

/// Whether jobs run while others are submitted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Left,
    Done,
}

/// The results of a turn.
struct Turn {
    submitted: usize,
    latencies: Vec<Duration>,
    /// Submissions a second during the submission time.
    accepted: f64,
    /// Jobs a second from the first submission to the last settlement.
    settled: f64,
    cost: Vec<Cost>,
}

/// The parts that all turns share.
struct Scene {
    weir: PathBuf,
    /// This program, which also serves as the other processes.
    own: PathBuf,
    services: Services,
    users: Arc<Vec<User>>,
    key: AssertionKey,
    span: Duration,
}

impl Scene {
    fn new(weir: &Path, users: &[Uuid], span: Duration) -> Result<Self, BenchError> {
        Self::waking(weir, users, span, "now")
    }

    /// With this `wake` of the service.
    fn waking(weir: &Path, users: &[Uuid], span: Duration, wake: &str) -> Result<Self, BenchError> {
        Ok(Self {
            weir: weir.to_owned(),
            own: std::env::current_exe()?,
            services: Services::waking(WORKERS, r#"["true"]"#, wake)?,
            users: Arc::new(users.iter().copied().map(User::new).collect()),
            key: AssertionKey::new(EDGE_SECRET.as_bytes()).map_err(std::io::Error::other)?,
            span,
        })
    }
}

/// Runs the benchmark.
///
/// # Errors
///
/// When the database cannot be used. The benchmark's databases may then be left on the server.
pub(crate) async fn path(settings: &Settings, effort: Effort, weir: &Path) -> Result<Report, BenchError> {
    let effort = effort.with_long_turns();
    let (ours, bare) = (Stage::new(settings).await?, Stage::new(settings).await?);
    let ids = ours.users(USERS).await?;
    let mut conditions = conditions(&ours.database.connect().await?).await?;
    conditions.push(format!(
        "{USERS} users, {CONNECTIONS} connections, {WORKERS} workers of no-op jobs; the client is a process on the same \
         cores; {} turns of {} s each side",
        effort.turns,
        effort.span.as_secs_f64()
    ));
    if !Edge::is_here() {
        conditions.push("without the edge, which needs a clone of Weir and Node".to_owned());
    }
    let scene = Scene::new(weir, &ids, effort.span)?;
    let mut lines = Vec::new();
    lines.extend(submitted(&scene, &ours, &ids, effort).await?);
    lines.extend(whole(&scene, &ours, &bare, effort).await?);
    if Edge::is_here() {
        lines.extend(through_the_edge(&scene, &ours, effort).await?);
    }
    lines.extend(conversation(&scene, &ours).await?);
    ours.end().await?;
    bare.end().await?;
    Ok(Report { conditions, lines })
}

/// Submissions alone, against the same reservations without HTTP.
async fn submitted(
    scene: &Scene,
    ours: &Stage,
    ids: &[Uuid],
    effort: Effort,
) -> Result<Vec<Line>, BenchError> {
    let (mut http, mut direct, mut latencies) = (Vec::new(), Vec::new(), Vec::new());
    let mut cost = Vec::new();
    for number in 1..=effort.turns {
        progress(&format!("submissions, turn {number} of {}", effort.turns));
        let turn = turn(scene, ours, Side::Weir, Work::Left, &ours.url).await?;
        http.push(turn.accepted);
        latencies.extend(turn.latencies);
        cost = turn.cost;
        ours.clear().await?;
        direct.push(reserve::direct(ours, ids, effort.span).await?);
    }
    let name = "submissions over HTTP at the origin, against `bench reserve`";
    let mut lines = vec![Line::at_least(name, median(http), median(direct), "1/s", 0.7)];
    for (which, of) in [("p50", 0.5), ("p99", 0.99)] {
        let name = format!("a submission over HTTP, {which}");
        lines.push(Line::printed(name, percentile(&mut latencies, of), "ms"));
    }
    lines.extend(cost.iter().map(|cost| cost.line("a submission")));
    Ok(lines)
}

/// From the submission to the settlement, against the same over bare River.
async fn whole(scene: &Scene, ours: &Stage, bare: &Stage, effort: Effort) -> Result<Vec<Line>, BenchError> {
    let (mut our_rates, mut their_rates) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    let mut cost = Vec::new();
    for number in 1..=effort.turns {
        progress(&format!(
            "submitted, worked and settled, turn {number} of {}",
            effort.turns
        ));
        let turns = [
            turn(scene, ours, Side::Weir, Work::Done, &ours.url).await?,
            turn(scene, bare, Side::Bare(NOTIFIED), Work::Done, &bare.url).await?,
        ];
        our_rates.0.push(turns[0].settled);
        our_rates.1.push(turns[0].accepted);
        their_rates.0.push(turns[1].settled);
        their_rates.1.push(turns[1].accepted);
        cost = [
            (&turns[0], "a job, whole"),
            (&turns[1], "a job of bare River, whole"),
        ]
        .into_iter()
        .flat_map(|(turn, what)| turn.cost.iter().map(|cost| cost.line(what)))
        .collect();
    }
    let mut lines = vec![
        Line::at_least(
            "submitted, worked and settled over HTTP, against bare riverqueue",
            median(our_rates.0),
            median(their_rates.0),
            "1/s",
            1.0,
        ),
        Line::compared(
            "accepted while others are worked, against bare riverqueue",
            median(our_rates.1),
            median(their_rates.1),
            "1/s",
        ),
    ];
    lines.extend(cost);
    Ok(lines)
}

/// The same through the edge, against the origin alone. One workerd process uses one core, whereas Cloudflare scales it
/// as necessary.
async fn through_the_edge(scene: &Scene, ours: &Stage, effort: Effort) -> Result<Vec<Line>, BenchError> {
    let mut lines = Vec::new();
    for (work, what, each) in [
        (Work::Left, "submissions over HTTP", "a submission"),
        (Work::Done, "submitted, worked and settled", "a job, whole,"),
    ] {
        let rate = |turn: &Turn| match work {
            Work::Left => turn.accepted,
            Work::Done => turn.settled,
        };
        let (mut through, mut alone, mut latencies) = (Vec::new(), Vec::new(), Vec::new());
        let mut cost = Vec::new();
        for number in 1..=effort.turns {
            progress(&format!(
                "{what} through the edge, turn {number} of {}",
                effort.turns
            ));
            let direct = turn(scene, ours, Side::Weir, work, &ours.url).await?;
            alone.push(rate(&direct));
            let turn = turn(scene, ours, Side::Edge, work, &ours.url).await?;
            through.push(rate(&turn));
            latencies.extend(turn.latencies);
            cost = turn.cost;
        }
        let name = format!("{what} through edge and origin, against the origin alone");
        lines.push(Line::compared(name, median(through), median(alone), "1/s"));
        for (which, of) in [("p50", 0.5), ("p99", 0.99)] {
            let name = format!("{each} through the edge, accepted after, {which}");
            lines.push(Line::printed(name, percentile(&mut latencies, of), "ms"));
        }
        let of = format!("{each} through the edge");
        lines.extend(cost.iter().map(|cost| cost.line(&of)));
    }
    Ok(lines)
}

/// The statements of a job from all processes. Measured separately, because it runs through a counting proxy.
async fn conversation(scene: &Scene, ours: &Stage) -> Result<Vec<Line>, BenchError> {
    let mut lines = Vec::new();
    for (work, what) in [(Work::Left, "a submission"), (Work::Done, "a job, whole")] {
        progress(&format!("statements of {what}"));
        let proxy = Proxy::start(ours.address()?, Duration::ZERO)?;
        let turn = turn(scene, ours, Side::Weir, work, &ours.through(&proxy)?).await?;
        for (name, count) in ["statements", "round trips"]
            .into_iter()
            .zip(proxy.traffic.read())
        {
            let each = count as f64 / turn.submitted.max(1) as f64;
            lines.push(Line::printed(
                format!("{what}: {name}, with {CONNECTIONS} callers"),
                each,
                "",
            ));
        }
    }
    Ok(lines)
}

/// The processes of one side, and the address for submissions.
struct Running {
    origin: Process,
    workers: Option<Process>,
    edge: Option<Edge>,
    target: Arc<Target>,
}

impl Running {
    /// Starts them, and waits until the origin serves. They reach the database by `url`.
    async fn start(scene: &Scene, side: Side, work: Work, url: &str) -> Result<Self, BenchError> {
        // A port that is free now. The system does not assign it again for a while.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut variables = vec![
            ("EDGE_SECRET", EDGE_SECRET.to_owned()),
            ("WEIR_ORIGIN_PORT", address.port().to_string()),
        ];
        if let Side::Bare(notified) | Side::Literal(notified) = side {
            variables.push((parts::NOTIFIED_MS, notified.as_millis().to_string()));
        }
        let (program, origin, workers) = match side {
            Side::Weir | Side::Edge => (&scene.weir, "serve", "path-workers"),
            Side::Bare(_) => (&scene.own, "path-bare-origin", "path-bare-workers"),
            Side::Literal(_) => (&scene.own, "path-literal-origin", "path-literal-workers"),
        };
        let services = &scene.services;
        let mut origin = Process::start(program, url, services, &[origin], &variables)?;
        let workers = match work {
            Work::Done => Some(Process::start(&scene.own, url, services, &[workers], &variables)?),
            Work::Left => None,
        };
        let begun = Instant::now();
        while !parts::listens(address).await {
            if origin.has_ended() || begun.elapsed() > START {
                return Err(
                    std::io::Error::other("the origin does not serve; run `weir serve` to see why").into(),
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let edge = match side {
            Side::Edge => Some(Edge::start(address, EDGE_SECRET, JWT_SECRET).await?),
            Side::Weir | Side::Bare(_) | Side::Literal(_) => None,
        };
        let target = Arc::new(Target {
            address: edge.as_ref().map_or(address, Edge::address),
            path: match side {
                Side::Weir | Side::Edge => "/api/jobs/analysis",
                Side::Bare(_) | Side::Literal(_) => "/jobs",
            },
            credential: match side {
                Side::Weir => Credential::Assertion(scene.key.clone()),
                Side::Edge => Credential::Token(JWT_SECRET),
                Side::Bare(_) | Side::Literal(_) => Credential::None,
            },
        });
        Ok(Self {
            origin,
            workers,
            edge,
            target,
        })
    }

    /// The origin's and the workers' ids.
    fn processes(&self) -> [Option<u32>; 2] {
        [Some(self.origin.id()), self.workers.as_ref().map(Process::id)]
    }
}

/// One turn with separate processes. They reach the database by `url`.
async fn turn(scene: &Scene, stage: &Stage, side: Side, work: Work, url: &str) -> Result<Turn, BenchError> {
    stage.clear().await?;
    let client = stage.database.connect().await?;
    let written = Written::read(&client).await?;
    let running = Running::start(scene, side, work, url).await?;
    let target = &running.target;
    // Opens connections and prepares statements.
    let warm = submit(target, &scene.users, Duration::from_millis(500))
        .await?
        .len();
    if work == Work::Done {
        finished(&client, warm).await?;
    }
    let processes = running.processes();
    let cpu = Cpu::read(&client, processes).await;
    let of_edge = running.edge.as_ref().map(Edge::time);
    let started = Instant::now();
    let latencies = submit(target, &scene.users, scene.span).await?;
    let submitting = started.elapsed().as_secs_f64();
    let submitted = latencies.len();
    if work == Work::Done {
        finished(&client, warm + submitted).await?;
    }
    let settling = started.elapsed().as_secs_f64();
    let mut cost = Cpu::read(&client, processes).await.each(&cpu, submitted);
    if let (Some(edge), Some(before)) = (&running.edge, of_edge) {
        let spent = edge.time().saturating_sub(before);
        cost.push(Cost::of_time("the edge", spent, submitted));
    }
    drop(running);
    cost.extend(Written::read(&client).await?.each(&written, warm + submitted));
    Ok(Turn {
        submitted,
        latencies,
        accepted: submitted as f64 / submitting,
        settled: submitted as f64 / settling,
        cost,
    })
}

/// Waits until this many jobs are completed.
async fn finished(client: &Client, jobs: usize) -> Result<(), BenchError> {
    let started = Instant::now();
    let count = client
        .prepare("SELECT count(*) FROM river_job WHERE state = 'completed'")
        .await?;
    loop {
        let completed: i64 = client.query_one(&count, &[]).await?.get(0);
        if usize::try_from(completed).is_ok_and(|completed| completed >= jobs) {
            return Ok(());
        }
        if started.elapsed() > DRAIN {
            let left = format!(
                "{completed} of {jobs} jobs were completed after {} s",
                DRAIN.as_secs()
            );
            return Err(std::io::Error::other(left).into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
