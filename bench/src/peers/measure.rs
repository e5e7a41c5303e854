//! The measurements of each program. Each one has a separate database.

use std::time::{Duration, Instant};

use tokio_postgres::Client;
use uuid::Uuid;

use super::super::cost::Cpu;
use super::super::report::{BenchError, Effort};
use super::arena::{AT_ONCE, Arena, User};
use super::program::{Program, Rescue};
use weir::config::Settings;

/// The duration of a job, if it is not zero.
pub(super) const JOB_MS: u64 = 10;

/// The number of users that share the workers.
const USERS: u128 = 100;

/// The number of consecutive jobs of one user when the reuse of a slot is measured.
const IN_A_ROW: usize = 100;

pub(super) const SECOND: f64 = 1e6;

/// A measured number, or its lower bound if the measurement timed out.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Is(f64),
    Above(f64),
}

impl Number {
    pub(super) fn value(self) -> f64 {
        let (Self::Is(value) | Self::Above(value)) = self;
        value
    }
}

/// The maximum waits. Some programs take minutes or hours.
const MAX_NEWCOMER: Duration = Duration::from_secs(120);
const MAX_SLOT: Duration = Duration::from_secs(60);
pub(super) const MAX_KILLED: Duration = Duration::from_secs(60);
pub(super) const MAX_HURRIED: Duration = Duration::from_secs(120);

/// Every second user has three slots, the others one.
pub(super) fn user(number: u128) -> User {
    (
        Uuid::from_u128(number + 1),
        if number.is_multiple_of(2) { 1 } else { 3 },
    )
}

/// The speed of a program, and its cost.
pub(super) struct Speed {
    pub(super) inserted: f64,
    pub(super) worked: f64,
    /// Seconds of processor time per job, of all processes.
    pub(super) cpu: f64,
}

/// Jobs of a hundred users in mixed order, which are all inserted before they run.
pub(super) async fn speed(
    settings: &Settings,
    program: &Program,
    effort: Effort,
    job_ms: u64,
) -> Result<Speed, BenchError> {
    let users: Vec<User> = (0..USERS).map(user).collect();
    let arena = Arena::new(settings, program, &users, Rescue::Default).await?;
    let client = arena.connect().await?;
    let mut producer = arena.producer()?;
    // The first jobs open connections and prepare plans.
    producer.insert(in_no_order(&users, 0, 200)).await?;
    let spend = async |process, client: &Client| Cpu::read(client, [None, process]).await;
    let before = spend(producer.id(), &client).await;
    let (jobs, started) = (enough(effort.span), Instant::now());
    let (mut inserted, mut inserting) = (0, 0);
    while inserted < jobs && started.elapsed() < effort.span * 3 {
        let (begun, ended) = producer.insert(in_no_order(&users, inserted, 500)).await?;
        inserted += 500;
        inserting += ended - begun;
    }
    let total = |times: [Duration; 3]| times.iter().sum::<Duration>().as_secs_f64();
    let submitting = total(spend(producer.id(), &client).await.since(&before)) / inserted as f64;
    let worker = arena.worker(job_ms).await?;
    while worker.ended() < AT_ONCE {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (before, first) = (spend(worker.id(), &client).await, worker.events().len());
    let started = Instant::now();
    while started.elapsed() < effort.span && worker.ended() < inserted + 200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let spent = total(spend(worker.id(), &client).await.since(&before));
    let events = worker.events();
    let ended: Vec<i64> = events[first..]
        .iter()
        .filter(|event| !event.began)
        .map(|event| event.at)
        .collect();
    let took = ended
        .last()
        .zip(ended.first())
        .map_or(0, |(last, first)| last - first);
    worker.stop().await?;
    drop(producer);
    arena.end().await?;
    Ok(Speed {
        inserted: inserted as f64 / (inserting as f64 / SECOND),
        worked: (ended.len().saturating_sub(1)) as f64 / (took as f64 / SECOND),
        cpu: submitting + spent / ended.len().max(1) as f64,
    })
}

fn enough(span: Duration) -> usize {
    (5_000.0 * (span.as_secs_f64() + 1.0)) as usize
}

/// A mixed order that is the same in every run (a linear congruential generator).
pub(super) fn in_no_order(users: &[User], from: usize, count: usize) -> impl Iterator<Item = User> {
    (from..from + count).map(|number| {
        let mixed = (number as u64)
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        users[(mixed >> 33) as usize % users.len()]
    })
}

/// The waits of newcomers, in milliseconds: the first one, and the median and a high percentile of the later ones.
pub(super) struct Newcomers {
    pub(super) first: Number,
    pub(super) half: Number,
    pub(super) nearly_all: Number,
}

/// Newcomers, one at a time, behind many waiting jobs of one other user.
pub(super) async fn newcomers(
    settings: &Settings,
    program: &Program,
    effort: Effort,
) -> Result<Newcomers, BenchError> {
    let patience = MAX_NEWCOMER;
    let count = effort.turns * 20;
    let users: Vec<User> = (0..=count as u128).map(|number| (user(number).0, 1)).collect();
    let (flood, newcomers) = (users[0], &users[1..]);
    let arena = Arena::new(settings, program, &users, Rescue::Default).await?;
    let mut producer = arena.producer()?;
    producer
        .insert(std::iter::repeat_n(flood, flood_of(effort)))
        .await?;
    let worker = arena.worker(JOB_MS).await?;
    worker.begins(flood.0, patience).await;
    let started = Instant::now();
    let mut waits = Vec::new();
    for newcomer in newcomers {
        let left = patience.saturating_sub(started.elapsed());
        if left.is_zero() && !waits.is_empty() {
            break;
        }
        let (submitted, _) = producer.insert(std::iter::once(*newcomer)).await?;
        waits.push(match worker.begins(newcomer.0, left).await {
            Some(begun) => Number::Is((begun - submitted) as f64 / 1000.0),
            None => Number::Above(left.as_secs_f64() * 1000.0),
        });
    }
    worker.stop().await?;
    drop(producer);
    arena.end().await?;
    let first = waits.remove(0);
    // If the first newcomer times out, the others would too.
    let mut rest = if waits.is_empty() { vec![first] } else { waits };
    Ok(Newcomers {
        first,
        half: quantile(&mut rest, 0.5),
        nearly_all: quantile(&mut rest, 0.99),
    })
}

/// The number of waiting jobs of one user in front of newcomers.
pub(super) fn flood_of(effort: Effort) -> usize {
    usize::try_from(effort.history / 100).unwrap_or_default()
}

/// The time that a user's only slot stays free before the next job starts, in milliseconds: median and a high
/// percentile.
pub(super) async fn slots(settings: &Settings, program: &Program) -> Result<[Number; 2], BenchError> {
    let patience = MAX_SLOT;
    let only = user(0);
    let arena = Arena::new(settings, program, &[only], Rescue::Default).await?;
    let mut producer = arena.producer()?;
    producer.insert(std::iter::repeat_n(only, IN_A_ROW)).await?;
    let worker = arena.worker(JOB_MS).await?;
    let started = Instant::now();
    while worker.ended() < IN_A_ROW && started.elapsed() < patience {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let events = worker.events();
    worker.stop().await?;
    drop(producer);
    arena.end().await?;
    let mut gaps: Vec<Number> = events
        .windows(2)
        .filter(|pair| !pair[0].began && pair[1].began)
        .map(|pair| Number::Is((pair[1].at - pair[0].at) as f64 / 1000.0))
        .collect();
    if let Some(last) = events.last().filter(|_| started.elapsed() >= patience) {
        let free = jiff::Timestamp::now().as_microsecond() - last.at;
        gaps.push(Number::Above(free as f64 / 1000.0));
    }
    Ok([0.5, 0.99].map(|of| quantile(&mut gaps, of)))
}

fn quantile(numbers: &mut [Number], of: f64) -> Number {
    numbers.sort_by(|one, other| one.value().total_cmp(&other.value()));
    let place = ((numbers.len() as f64 * of) as usize).min(numbers.len().saturating_sub(1));
    numbers.get(place).copied().unwrap_or(Number::Above(0.0))
}
