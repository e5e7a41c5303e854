//! The cost of a worker's death.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::super::report::BenchError;
use super::arena::{AT_ONCE, Arena, Event, User, Worker};
use super::measure::{MAX_HURRIED, MAX_KILLED, Number, SECOND, user};
use super::program::{Program, Rescue};
use weir::config::Settings;

/// The duration of a job that will be killed while it runs.
const KILLED_JOB_MS: u64 = 500;

/// The cost of a `kill -9` of one of two workers, in seconds.
pub(super) struct Killed {
    /// Until all its jobs have started again.
    pub(super) jobs: Number,
    /// Until all users of those jobs have another job that starts.
    pub(super) users: Number,
    /// The most concurrent jobs of a user with one slot, before the kill.
    pub(super) most: usize,
}

/// Two workers, the first of which is killed while it runs jobs.
pub(super) async fn killed(
    settings: &Settings,
    program: &Program,
    rescue: Rescue,
) -> Result<Killed, BenchError> {
    let patience = match rescue {
        Rescue::Default => MAX_KILLED,
        Rescue::Shortest => MAX_HURRIED,
    };
    let users: Vec<User> = (0..AT_ONCE as u128).map(|number| (user(number).0, 1)).collect();
    let arena = Arena::new(settings, program, &users, rescue).await?;
    let mut producer = arena.producer()?;
    let jobs = users.iter().copied().cycle().take(AT_ONCE * 20);
    let doomed = arena.worker(KILLED_JOB_MS).await?;
    let survivor = arena.worker(KILLED_JOB_MS).await?;
    producer.insert(jobs).await?;
    let started = Instant::now();
    let both_work = |doomed: &Worker| !unended(&doomed.events()).is_empty() && !survivor.events().is_empty();
    while !both_work(&doomed) && started.elapsed() < patience {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let at = jiff::Timestamp::now().as_microsecond();
    let before = doomed.kill().await?;
    let orphans = unended(&before);
    let most = most_at_once(&before, &survivor.events(), at);
    let started = Instant::now();
    let all_since = |of: fn(&Event) -> String| {
        let wanted: HashSet<String> = orphans.iter().map(of).collect();
        let mut begun = HashMap::new();
        for event in survivor
            .events()
            .iter()
            .filter(|event| event.began && event.at > at)
        {
            begun.entry(of(event)).or_insert(event.at);
        }
        let times: Option<Vec<i64>> = wanted.iter().map(|key| begun.get(key).copied()).collect();
        times.and_then(|times| times.into_iter().max())
    };
    let job = |event: &Event| event.job.clone();
    let holder = |event: &Event| event.user.to_string();
    while all_since(job).is_none() && started.elapsed() < patience {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let number = |begun: Option<i64>| {
        begun.map_or(Number::Above(patience.as_secs_f64()), |begun| {
            Number::Is((begun - at) as f64 / SECOND)
        })
    };
    let killed = Killed {
        jobs: number(all_since(job)),
        users: number(all_since(holder)),
        most,
    };
    survivor.stop().await?;
    drop(producer);
    arena.end().await?;
    Ok(killed)
}

/// The starts of jobs that have not ended.
fn unended(events: &[Event]) -> Vec<Event> {
    let ended: HashSet<&str> = events
        .iter()
        .filter(|event| !event.began)
        .map(|event| &*event.job)
        .collect();
    let begun = events
        .iter()
        .filter(|event| event.began && !ended.contains(&*event.job));
    begun.cloned().collect()
}

fn most_at_once(one: &[Event], other: &[Event], until: i64) -> usize {
    let mut all: Vec<&Event> = one
        .iter()
        .chain(other)
        .filter(|event| event.at <= until)
        .collect();
    all.sort_by_key(|event| (event.at, event.began));
    let (mut running, mut most) = (HashMap::<Uuid, usize>::new(), 0);
    for event in all {
        let count = running.entry(event.user).or_default();
        *count = if event.began {
            *count + 1
        } else {
            count.saturating_sub(1)
        };
        most = most.max(*count);
    }
    most
}
