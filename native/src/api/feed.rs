//! Finds changed jobs: one look at the database serves all event streams of a process.
//!
//! River's tables have no Weir triggers, and River does not notify of every change. So a look reads the unfinished jobs
//! that streams watch by primary key, and each holder's newest jobs from an index. It returns only ids. Each stream
//! then reads its jobs, so that no stream sends an older state after a newer one.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::ClientWrapper;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::holder_limiter::{HolderLimiter, Permit};
use weir_ledger::database::{ConnectionPool, DatabaseError};
use weir_ledger::read::feed as read;

/// The pause between two looks while a watched job is unfinished.
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// The pause between two looks while the only possible change is a submission through another process.
const IDLE_PAUSE: Duration = Duration::from_secs(1);

/// The minimum pause between two queries, also under heavy load.
const MIN_PAUSE: Duration = Duration::from_millis(25);

/// The number of a holder's newest jobs that one query reads. Older ones are read only if they were followed before.
pub(super) const NEWEST: i64 = 100;

/// The maximum number of a holder's unfinished jobs to follow. Newer ones follow when these have finished.
const MAX_FOLLOWED: usize = 1000;

/// Looks take at most a fifth of the time: the pause is this many times as long as the look was.
const PAUSE_FACTOR: u32 = 4;

/// The maximum number of open streams of a process.
const MAX_STREAMS: usize = 10_000;

/// The maximum number of open streams of a holder.
const MAX_STREAMS_OF_HOLDER: usize = 32;

/// Notifies streams of jobs to read. Cheap to clone.
#[derive(Clone)]
pub struct Feed(Arc<Shared>);

struct Shared {
    streams: HolderLimiter,
    watched: Mutex<HashMap<Uuid, Watched>>,
    hurry: Notify,
}

impl Shared {
    fn watched(&self) -> MutexGuard<'_, HashMap<Uuid, Watched>> {
        self.watched.lock()
    }
}

/// A holder with at least one open stream.
#[derive(Default)]
struct Watched {
    jobs: BTreeMap<i64, JobVersion>,
    streams: Vec<Arc<Inbox>>,
}

/// A job as it was at the last look.
#[derive(Debug, PartialEq, Eq)]
enum JobVersion {
    Never,
    Version(String),
    Ended,
}

/// The changes that a stream has not read yet.
#[derive(Default)]
struct Inbox {
    /// If set, only this job.
    only: Option<i64>,
    changed: Mutex<BTreeSet<i64>>,
    rung: Notify,
}

impl Inbox {
    fn changed(&self) -> MutexGuard<'_, BTreeSet<i64>> {
        self.changed.lock()
    }
}

/// A stream's entry in the feed, until it is dropped.
pub(super) struct Watch {
    shared: Arc<Shared>,
    holder: Uuid,
    inbox: Arc<Inbox>,
    _permit: Permit,
}

impl Feed {
    /// Starts to look. Without streams, it sends no query.
    #[must_use]
    pub fn start(pool: ConnectionPool, stopping: CancellationToken) -> Self {
        let shared = Arc::new(Shared {
            streams: HolderLimiter::new(MAX_STREAMS, MAX_STREAMS_OF_HOLDER),
            watched: Mutex::default(),
            hurry: Notify::new(),
        });
        let watcher = Arc::clone(&shared);
        tokio::spawn(async move {
            let watching = async {
                loop {
                    let began = Instant::now();
                    let (pause, took) = match look(&watcher, &pool).await {
                        Ok(None) => {
                            watcher.hurry.notified().await;
                            continue;
                        }
                        Ok(Some(pause)) => (pause, began.elapsed()),
                        Err(error) => {
                            tracing::warn!(%error, "event streams wait for the database");
                            (IDLE_PAUSE, Duration::ZERO)
                        }
                    };
                    let rest = rest_after(took);
                    tokio::time::sleep(rest).await;
                    // Wakes after the pause, or earlier if hurried.
                    let _ = tokio::time::timeout(pause.saturating_sub(rest), watcher.hurry.notified()).await;
                }
            };
            tokio::select! {
                () = watching => {}
                () = stopping.cancelled() => {}
            }
        });
        Self(shared)
    }

    /// Asks for a look now, because something has just changed.
    pub(super) fn hurry(&self) {
        self.0.hurry.notify_one();
    }

    /// Watches a holder's jobs, or one of them; `None` if too many streams are open.
    pub(super) fn watch(&self, holder: Uuid, only: Option<i64>) -> Option<Watch> {
        let permit = self.0.streams.take(holder)?;
        let inbox = Arc::new(Inbox {
            only,
            ..Inbox::default()
        });
        let mut watched = self.0.watched();
        let of_holder = watched.entry(holder).or_default();
        of_holder.streams.push(Arc::clone(&inbox));
        if let Some(id) = only {
            of_holder.jobs.entry(id).or_insert(JobVersion::Never);
        }
        drop(watched);
        self.hurry();
        Some(Watch {
            shared: Arc::clone(&self.0),
            holder,
            inbox,
            _permit: permit,
        })
    }
}

impl Watch {
    /// Waits until jobs have changed since the last call, and returns their ids, oldest first.
    pub(super) async fn changed(&self) -> Vec<i64> {
        loop {
            let changed = std::mem::take(&mut *self.inbox.changed());
            if !changed.is_empty() {
                return changed.into_iter().collect();
            }
            self.inbox.rung.notified().await;
        }
    }

    /// Marks these jobs as changed again, because they could not be read.
    pub(super) fn mark_changed(&self, ids: &[i64]) {
        self.inbox.changed().extend(ids);
        self.inbox.rung.notify_one();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watched = self.shared.watched();
        if let Some(of_holder) = watched.get_mut(&self.holder) {
            of_holder.streams.retain(|inbox| !Arc::ptr_eq(inbox, &self.inbox));
            if of_holder.streams.is_empty() {
                watched.remove(&self.holder);
            }
        }
    }
}

/// The minimum pause after a query that took this long.
fn rest_after(took: Duration) -> Duration {
    (took * PAUSE_FACTOR).max(MIN_PAUSE)
}

/// Looks once, notifies the streams, and returns the pause until the next look; `None` without streams.
async fn look(shared: &Shared, pool: &ConnectionPool) -> Result<Option<Duration>, DatabaseError> {
    let (holders, followed) = {
        let watched = shared.watched();
        let holders: Vec<Uuid> = watched.keys().copied().collect();
        let followed: Vec<i64> = watched.values().flat_map(Watched::followed).collect();
        (holders, followed)
    };
    if holders.is_empty() {
        return Ok(None);
    }
    let (mut newest_of, arrived, versions) = pool
        .with(async |client| -> Result<_, DatabaseError> {
            let client: &ClientWrapper = client;
            let (newest, mut versions) = tokio::try_join!(
                read::newest(client, &holders, NEWEST),
                read::versions(client, &followed)
            )?;
            let mut newest_of: HashMap<Uuid, BTreeSet<i64>> = HashMap::new();
            for job in newest {
                newest_of.entry(job.holder).or_default().insert(job.job_id);
            }
            let arrived: Vec<i64> = {
                let watched = shared.watched();
                let of_one = |(holder, newest): (&Uuid, &BTreeSet<i64>)| {
                    let of_holder = watched.get(holder);
                    of_holder.map_or_else(Vec::new, |of_holder| of_holder.arrived(newest))
                };
                newest_of.iter().flat_map(of_one).collect()
            };
            if !arrived.is_empty() {
                versions.extend(read::versions(client, &arrived).await?);
            }
            Ok((newest_of, arrived, versions))
        })
        .await?;
    let now: HashMap<i64, JobVersion> = versions
        .into_iter()
        .map(|job| {
            let seen = if job.over {
                JobVersion::Ended
            } else {
                JobVersion::Version(job.version)
            };
            (job.id, seen)
        })
        .collect();
    let asked: BTreeSet<i64> = followed.into_iter().chain(arrived).collect();
    let mut is_busy = false;
    for (holder, of_holder) in &mut *shared.watched() {
        let newest = newest_of.remove(holder).unwrap_or_default();
        let changed = of_holder.take(&asked, &now, &newest);
        is_busy |= of_holder.followed().next().is_some();
        for inbox in &of_holder.streams {
            let before = inbox.changed().len();
            let wanted = changed
                .iter()
                .filter(|id| inbox.only.is_none_or(|only| only == **id));
            inbox.changed().extend(wanted);
            if inbox.changed().len() > before {
                inbox.rung.notify_one();
            }
        }
    }
    Ok(Some(if is_busy { BUSY_PAUSE } else { IDLE_PAUSE }))
}

impl Watched {
    /// The jobs that may still change.
    fn followed(&self) -> impl Iterator<Item = i64> + '_ {
        let unfinished = self.jobs.iter().filter(|(_, seen)| **seen != JobVersion::Ended);
        unfinished.map(|(id, _)| *id)
    }

    /// The newest jobs that are not followed yet, up to the maximum.
    fn arrived(&self, newest: &BTreeSet<i64>) -> Vec<i64> {
        let room = MAX_FOLLOWED.saturating_sub(self.followed().count());
        let unseen = newest.iter().filter(|id| !self.jobs.contains_key(id));
        unseen.take(room).copied().collect()
    }

    /// Compares a look's results with the previous ones, and returns the changed jobs.
    fn take(
        &mut self,
        asked: &BTreeSet<i64>,
        now: &HashMap<i64, JobVersion>,
        newest: &BTreeSet<i64>,
    ) -> Vec<i64> {
        for id in newest.intersection(asked) {
            self.jobs.entry(*id).or_insert(JobVersion::Never);
        }
        let mut changed = Vec::new();
        self.jobs.retain(|id, seen| {
            if *seen == JobVersion::Ended || !asked.contains(id) {
                // A finished job is remembered while it is among the newest. Otherwise it would be found as a new job.
                return *seen != JobVersion::Ended || newest.contains(id);
            }
            match now.get(id) {
                Some(latest) if latest == seen => true,
                Some(latest) => {
                    changed.push(*id);
                    *seen = match latest {
                        JobVersion::Version(version) => JobVersion::Version(version.clone()),
                        _ => JobVersion::Ended,
                    };
                    true
                }
                // River has deleted the job. Its submission is kept longer, so it may stay among the newest for days.
                None => {
                    changed.push(*id);
                    *seen = JobVersion::Ended;
                    newest.contains(id)
                }
            }
        });
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> JobVersion {
        JobVersion::Version(text.to_owned())
    }

    fn look(watched: &mut Watched, newest: &[i64], now: &[(i64, &str)]) -> Vec<i64> {
        let newest: BTreeSet<i64> = newest.iter().copied().collect();
        let asked = watched.followed().chain(watched.arrived(&newest)).collect();
        let now = now
            .iter()
            .map(|(id, text)| {
                (
                    *id,
                    if *text == "over" {
                        JobVersion::Ended
                    } else {
                        version(text)
                    },
                )
            })
            .collect();
        watched.take(&asked, &now, &newest)
    }

    #[test]
    fn queries_take_at_most_a_fifth_of_the_time() {
        let rest = |millis| rest_after(Duration::from_millis(millis)).as_millis();
        assert_eq!([0, 6, 25, 500].map(rest), [25, 25, 100, 2000]);
    }

    #[test]
    fn a_job_is_emitted_once_on_arrival_change_and_removal() {
        let mut watched = Watched::default();
        assert_eq!(look(&mut watched, &[1, 2], &[(1, "a"), (2, "over")]), [1, 2]);
        assert_eq!(look(&mut watched, &[1, 2], &[(1, "a")]), [0; 0]);
        assert_eq!(look(&mut watched, &[1, 2], &[(1, "b")]), [1]);
        assert_eq!(look(&mut watched, &[2], &[]), [1], "deleted");
        assert_eq!(look(&mut watched, &[2], &[]), [0; 0]);
    }

    #[test]
    fn newer_jobs_do_not_displace_an_unfinished_one() {
        let mut watched = Watched::default();
        assert_eq!(look(&mut watched, &[1, 2], &[(1, "a"), (2, "over")]), [1, 2]);
        assert_eq!(
            look(&mut watched, &[3, 4], &[(1, "b"), (3, "a"), (4, "a")]),
            [1, 3, 4]
        );
        assert_eq!(
            watched.jobs.keys().copied().collect::<Vec<_>>(),
            [1, 3, 4],
            "2 is over and forgotten"
        );
    }

    #[test]
    fn a_job_that_river_deleted_is_emitted_once() {
        let mut watched = Watched::default();
        assert_eq!(look(&mut watched, &[1, 2], &[(1, "a")]), [1, 2], "2 went before");
        assert_eq!(look(&mut watched, &[1, 2], &[]), [1], "deleted");
        assert_eq!(look(&mut watched, &[1, 2], &[]), [0; 0]);
        assert!(watched.followed().next().is_none(), "nothing of it can change");
        assert_eq!(look(&mut watched, &[3], &[(3, "a")]), [3]);
        assert_eq!(watched.jobs.keys().copied().collect::<Vec<_>>(), [3], "forgotten");
    }

    #[test]
    fn jobs_over_the_limit_are_followed_when_others_end() {
        let mut watched = Watched::default();
        let most = i64::try_from(MAX_FOLLOWED).unwrap();
        for id in 1..=most {
            watched.jobs.insert(id, version("a"));
        }
        let all: Vec<(i64, &str)> = (1..=most).map(|id| (id, "a")).collect();
        assert_eq!(look(&mut watched, &[most + 1], &all), [0; 0]);
        let mut one_over = all.clone();
        one_over[0].1 = "over";
        assert_eq!(look(&mut watched, &[most + 1], &one_over), [1]);
        let mut rest = all;
        rest.push((most + 1, "a"));
        assert_eq!(look(&mut watched, &[most + 1], &rest), [most + 1]);
    }
}
