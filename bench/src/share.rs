//! `share`: idle workers that are lent to jobs over their user's slots (W15).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::fairness::{Diary, jains_index, newcomer};
use super::jobs::{Count, counted, fill, fill_bare};
use super::progress::progress;
use super::report::{BenchError, Effort, Line, Report, conditions, median, percentile};
use super::stage::{KIND, Stage};
use super::work::bare_workers;
use weir::config::Settings;
use weir::handler::Handler;
use weir::work::{Role, Working};
use weir_ledger::reservation::Reserver;

/// The duration of a job, except where many workers share two cores.
const JOB: Duration = Duration::from_millis(50);

/// Slow enough that two cores keep 100 workers busy.
const SLOW_JOB: Duration = Duration::from_millis(200);

/// Runs the benchmark.
///
/// # Errors
///
/// When the database cannot be used. The benchmark's databases may then be left on the server.
pub(crate) async fn share(settings: &Settings, effort: Effort) -> Result<Report, BenchError> {
    let (ours, bare) = (Stage::new(settings).await?, Stage::new(settings).await?);
    let mut conditions = conditions(&ours.database.connect().await?).await?;
    conditions.push(format!(
        "jobs of {} ms; burst 10 and one slot a user, unless a line says otherwise; the default headroom",
        JOB.as_millis()
    ));
    let mut lines = alone(settings, (&ours, &bare), effort).await?;
    lines.push(joining(settings, &ours, effort).await?);
    lines.push(weights(settings, &ours, effort, SLOW_JOB).await?);
    lines.push(weights(settings, &ours, effort, JOB).await?);
    lines.extend(many(settings, (&ours, &bare), effort).await?);
    lines.push(floods(settings, &ours, effort).await?);
    ours.end().await?;
    bare.end().await?;
    Ok(Report { conditions, lines })
}

async fn set_burst(stage: &Stage, burst: Option<i32>) -> Result<(), BenchError> {
    let client = stage.database.connect().await?;
    client
        .execute("UPDATE plan_limits SET burst = $1", &[&burst])
        .await?;
    Ok(())
}

async fn start(
    settings: &Settings,
    stage: &Stage,
    workers: u32,
    handler: Arc<dyn Handler>,
) -> Result<Working, BenchError> {
    let context = stage.context(settings, workers)?.with_handler(KIND, handler);
    Ok(Working::start(&context, Role::Both, &context.settings.services).await?)
}

/// The time until this many jobs are done, from the first one's end on.
async fn until_done(done: impl Fn() -> usize, jobs: usize) -> Duration {
    while done() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let started = Instant::now();
    while done() < jobs {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    started.elapsed()
}

/// The longest time that one of these workers was idle while a job waited. All of them are used, each job has a start and
/// an end, and the earliest idle worker takes the next job.
fn longest_idle(jobs: &[(Instant, Instant)], workers: usize) -> Duration {
    let mut starts: Vec<Instant> = jobs.iter().map(|(start, _)| *start).collect();
    let mut ends: Vec<Instant> = jobs.iter().map(|(_, end)| *end).collect();
    starts.sort_unstable();
    ends.sort_unstable();
    let since = std::iter::repeat_n(starts[0], workers).chain(ends);
    let idle = std::iter::zip(&starts, since).map(|(start, since)| start.saturating_duration_since(since));
    idle.max().unwrap_or_default()
}

/// One user with 200 jobs and ten workers, of which nine may be lent, against bare River with nine.
async fn alone(
    settings: &Settings,
    (ours, bare): (&Stage, &Stage),
    effort: Effort,
) -> Result<Vec<Line>, BenchError> {
    const JOBS: usize = 200;
    const LENDABLE: u32 = 9;
    set_burst(ours, Some(10)).await?;
    let users = ours.users(1).await?;
    let (mut with, mut without, mut idle) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 1..=effort.turns {
        progress(&format!(
            "one user and idle workers, turn {turn} of {}",
            effort.turns
        ));
        ours.clear().await?;
        fill(ours, &users, JOBS).await?;
        let diary = Arc::new(Diary::new(JOB));
        let working = start(
            settings,
            ours,
            LENDABLE + 1,
            Arc::clone(&diary) as Arc<dyn Handler>,
        )
        .await?;
        let done = || diary.of(users[0]).len();
        with.push(until_done(done, JOBS).await.as_secs_f64());
        working.stop().await;
        idle.push(longest_idle(&diary.of(users[0]), LENDABLE as usize));

        bare.clear().await?;
        // Rounded up to a thousand.
        fill_bare(bare, None, JOBS, Duration::MAX).await?;
        let count = Count::new(JOB);
        let workers = bare_workers(bare, LENDABLE, &count).await?;
        let done = || count.done.load(Ordering::Relaxed) as usize;
        without.push(until_done(done, JOBS).await.as_secs_f64());
        workers.stop().await?;
    }
    let idle = idle.into_iter().max().unwrap_or_default().as_secs_f64() * 1000.0;
    Ok(vec![
        Line::at_most(
            format!("{JOBS} jobs of one user through ten workers, against bare riverqueue with nine"),
            median(with),
            median(without),
            "s",
            1.15,
        ),
        Line {
            target: Some("<= 100".to_owned()),
            holds: Some(idle <= 100.0),
            ..Line::printed(
                "longest that one of the nine was idle while these jobs waited",
                idle,
                "ms",
            )
        },
    ])
}

/// The time from a newcomer's submission to the start, one newcomer after the other.
async fn newcomers(
    settings: &Settings,
    stage: &Stage,
    flood: (&[Uuid], usize),
    count: i64,
) -> Result<Vec<Duration>, BenchError> {
    stage.clear().await?;
    if !flood.0.is_empty() {
        fill(stage, flood.0, flood.1).await?;
    }
    stage.tidy().await?;
    let diary = Arc::new(Diary::new(JOB));
    let working = start(settings, stage, 10, Arc::clone(&diary) as Arc<dyn Handler>).await?;
    let reserver = Reserver::start(&stage.database);
    // The first ones open connections and prepare statements.
    for user in stage.users(10).await? {
        newcomer(&reserver, &diary, user).await?;
    }
    let mut times = Vec::new();
    for user in stage.users(count).await? {
        times.push(newcomer(&reserver, &diary, user).await?);
    }
    working.stop().await;
    Ok(times)
}

/// A newcomer while all lendable workers are lent, against an idle installation.
async fn joining(settings: &Settings, stage: &Stage, effort: Effort) -> Result<Line, BenchError> {
    let count = if effort.is_quick { 40 } else { 200 };
    let users = stage.users(1).await?;
    let (mut lent, mut idle) = (Vec::new(), Vec::new());
    for turn in 1..=effort.turns {
        progress(&format!(
            "newcomers while workers are lent, turn {turn} of {}",
            effort.turns
        ));
        lent.extend(newcomers(settings, stage, (&users, count as usize * 40), count).await?);
        idle.extend(newcomers(settings, stage, (&[], 0), count).await?);
    }
    Ok(Line::at_most(
        "newcomer, submit to start, p99, while all lendable workers are lent, against none",
        percentile(&mut lent, 0.99),
        percentile(&mut idle, 0.99),
        "ms",
        1.2,
    ))
}

/// The jobs of a user with three slots, against those of one with one, while both borrow. Jobs have this duration.
async fn weights(
    settings: &Settings,
    stage: &Stage,
    effort: Effort,
    takes: Duration,
) -> Result<Line, BenchError> {
    progress("two users with one slot and three");
    stage.clear().await?;
    set_burst(stage, Some(1000)).await?;
    let users = stage.users(2).await?;
    let client = stage.database.connect().await?;
    let own = "INSERT INTO limit_overrides (user_id, event_type, slots) VALUES ($1, 'analysis', 3)";
    client.execute(own, &[&users[1]]).await?;
    let jobs = (effort.span.as_secs_f64() * 2000.0) as usize;
    fill(stage, &users, jobs).await?;
    let diary = Arc::new(Diary::new(takes));
    let working = start(settings, stage, 45, Arc::clone(&diary) as Arc<dyn Handler>).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let done = || users.iter().map(|user| diary.of(*user).len() as f64);
    let before: Vec<f64> = done().collect();
    tokio::time::sleep(effort.span).await;
    let rates: Vec<f64> = std::iter::zip(done(), before)
        .map(|(now, before)| (now - before) / effort.span.as_secs_f64())
        .collect();
    working.stop().await;
    let ratio = rates[1] / rates[0];
    Ok(Line {
        target: Some("2.7 to 3.3".to_owned()),
        holds: Some((2.7..=3.3).contains(&ratio)),
        ..Line::compared(
            format!(
                "jobs of {} ms of a user with three slots, against those of one with one, 40 lendable workers",
                takes.as_millis()
            ),
            rates[1],
            rates[0],
            "1/s",
        )
    })
}

/// 1 000 users with waiting jobs and 100 workers, against bare River with as many.
async fn many(
    settings: &Settings,
    (ours, bare): (&Stage, &Stage),
    effort: Effort,
) -> Result<Vec<Line>, BenchError> {
    let jobs = (700.0 * (effort.span.as_secs_f64() + 3.0)) as usize;
    set_burst(ours, Some(10)).await?;
    let users = ours.users(1000).await?;
    let (mut with, mut without, mut index) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 1..=effort.turns {
        progress(&format!(
            "1 000 users and 100 workers, turn {turn} of {}",
            effort.turns
        ));
        ours.clear().await?;
        fill(ours, &users, jobs.max(5000)).await?;
        ours.tidy().await?;
        let diary = Arc::new(Diary::new(SLOW_JOB));
        let working = start(settings, ours, 100, Arc::clone(&diary) as Arc<dyn Handler>).await?;
        // Whole turns of all users, so that no user is one job ahead.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let done = || -> Vec<f64> { users.iter().map(|user| diary.of(*user).len() as f64).collect() };
        let (before, began) = (done(), Instant::now());
        let rounds = (effort.span.as_secs_f64() / 2.0).ceil().max(1.0);
        let total = |done: &[f64]| done.iter().sum::<f64>();
        while total(&done()) < total(&before) + rounds * 1000.0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let took = began.elapsed().as_secs_f64();
        let got: Vec<f64> = std::iter::zip(done(), &before)
            .map(|(now, before)| now - before)
            .collect();
        with.push(total(&got) / took);
        index.push(jains_index(&got));
        working.stop().await;

        bare.clear().await?;
        let jobs = fill_bare(bare, None, jobs, Duration::MAX).await?;
        bare.tidy().await?;
        let count = Count::new(SLOW_JOB);
        let workers = bare_workers(bare, 100, &count).await?;
        without.push(counted(&count.done, effort.span, jobs).await?);
        workers.stop().await?;
    }
    let index = median(index);
    Ok(vec![
        Line::at_least(
            "jobs of 200 ms of 1 000 users through 100 workers, against bare riverqueue",
            median(with),
            median(without),
            "1/s",
            0.97,
        ),
        Line {
            target: Some(">= 0.98".to_owned()),
            holds: Some(index >= 0.98),
            ..Line::printed("Jain's index of these users' jobs", index, "")
        },
    ])
}

/// Newcomers while three users flood, with `burst` against without.
async fn floods(settings: &Settings, stage: &Stage, effort: Effort) -> Result<Line, BenchError> {
    let (count, flood) = if effort.is_quick {
        (40, 6000)
    } else {
        (200, 30_000)
    };
    let users = stage.users(3).await?;
    let (mut on, mut off) = (Vec::new(), Vec::new());
    for turn in 1..=effort.turns {
        progress(&format!(
            "newcomers and three floods, turn {turn} of {}",
            effort.turns
        ));
        set_burst(stage, Some(10)).await?;
        on.extend(newcomers(settings, stage, (&users, flood), count).await?);
        set_burst(stage, None).await?;
        off.extend(newcomers(settings, stage, (&users, flood), count).await?);
    }
    Ok(Line::at_most(
        format!(
            "newcomer, submit to start, p99, while three users have {flood} jobs, with burst against without"
        ),
        percentile(&mut on, 0.99),
        percentile(&mut off, 0.99),
        "ms",
        1.1,
    ))
}
