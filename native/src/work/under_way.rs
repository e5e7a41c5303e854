//! The attempts that run in this process. Keeps a leader from treating them as stuck, cancels those that have lost their
//! job, and finds jobs that were claimed for this process without its knowledge.
//!
//! River's leader may be a client in another program. Its rescuer knows neither these jobs nor how long they take. Any
//! client may be elected at any time, so this runs whichever client leads. A long attempt costs one small update and one
//! look-up per heartbeat, and a short one costs nothing.
//!
//! If the connection fails before the response to a claim arrives, the database lists the jobs as running here, but no
//! worker has them. This process is alive, so no other process takes them over. It therefore returns them to their queues
//! itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use weir_ledger::attempts::{self, ClaimedJob, End, EndedAttempt};
use weir_ledger::database::DatabaseError;

use super::step::Pause;
use crate::context::Context;

/// Shorter attempts are left alone. Together with the heartbeat interval, a leader sees no attempt older than three
/// seconds.
const LONG: Duration = Duration::from_secs(1);

/// The interval between two checks of the attempts. An attempt that is taken over stops within two seconds.
const CHECK_INTERVAL: Duration = Duration::from_millis(1500);

/// Interval between checks whether attempts have ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Why an attempt has to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The job's cancellation was requested.
    Cancelled,
    /// Another attempt has the job, or the job is gone.
    TakenOver,
    /// The process stops.
    Stopping,
}

/// Tells an attempt to stop. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Stop {
    pub(super) token: CancellationToken,
    cause: Arc<Mutex<Option<Cause>>>,
}

impl Stop {
    fn stop(&self, cause: Cause) {
        self.cause.lock().get_or_insert(cause);
        self.token.cancel();
    }

    fn cause(&self) -> Option<Cause> {
        *self.cause.lock()
    }

    /// How a stopped attempt ends that did not succeed, as River's client ends it. `None` for one that ends by its own
    /// result. `is_cut_off`: it has no result, because it was stopped.
    pub(super) fn end(&self, is_cut_off: bool) -> Option<End> {
        match self.cause()? {
            Cause::Cancelled => Some(End::Cancelled(
                "JobCancelError: job cancelled remotely".to_owned(),
            )),
            Cause::Stopping if is_cut_off => Some(End::Interrupted),
            Cause::Stopping | Cause::TakenOver => None,
        }
    }
}

struct Running {
    attempt: i16,
    since: Instant,
    stop: Stop,
    /// Whether only its end remains to be written.
    is_over: bool,
}

/// A job and a claim of it.
type Key = (i64, String);

/// A job and the number of an attempt at it.
type Attempt = (i64, i16);

#[derive(Default)]
struct Attempts {
    running: HashMap<Key, Running>,
    /// Whether all attempts have to stop, also those that start later.
    is_stopping: bool,
}

/// Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct UnderWay(Arc<Mutex<Attempts>>);

impl UnderWay {
    /// Remembers an attempt until the result is dropped.
    pub(super) fn enter(&self, job: &ClaimedJob) -> Entered {
        let (key, stop) = ((job.id, job.claim.clone()), Stop::default());
        let running = Running {
            attempt: job.attempt,
            since: Instant::now(),
            stop: stop.clone(),
            is_over: false,
        };
        let mut attempts = self.0.lock();
        if attempts.is_stopping {
            stop.stop(Cause::Stopping);
        }
        attempts.running.insert(key.clone(), running);
        drop(attempts);
        Entered {
            under_way: self.clone(),
            key,
            stop,
        }
    }

    /// Completes once no handler is running.
    pub(super) async fn over(&self) {
        while self.0.lock().running.values().any(|running| !running.is_over) {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Stops all attempts.
    pub(super) fn stop_all(&self) {
        let mut attempts = self.0.lock();
        attempts.is_stopping = true;
        for running in attempts.running.values() {
            running.stop.stop(Cause::Stopping);
        }
    }

    /// Whether an attempt at this job runs here.
    pub(super) fn has(&self, job_id: i64) -> bool {
        self.0.lock().running.keys().any(|(id, _)| *id == job_id)
    }

    /// The attempts that have run for this long.
    fn running_for(&self, time: Duration) -> Vec<Attempt> {
        let attempts = self.0.lock();
        let running = attempts.running.iter();
        let running = running.filter(|(_, running)| running.since.elapsed() >= time);
        running
            .map(|((job_id, _), running)| (*job_id, running.attempt))
            .collect()
    }

    /// Stops the ended attempts, by an answer to a question of this time.
    fn stop_ended(&self, asked: Instant, ended: &[EndedAttempt]) {
        for ((job_id, _), running) in &self.0.lock().running {
            let of_this = |ended: &&EndedAttempt| (ended.job_id, ended.attempt) == (*job_id, running.attempt);
            let Some(ended) = ended.iter().find(of_this) else {
                continue;
            };
            // The answer may be older than an attempt that started since.
            if running.is_over || running.since >= asked {
                continue;
            }
            let cause = match ended.is_taken_over {
                true => Cause::TakenOver,
                false => Cause::Cancelled,
            };
            if running.stop.cause().is_none() {
                tracing::info!(job = job_id, ?cause, "stopping an attempt");
            }
            running.stop.stop(cause);
        }
    }

    /// Checks in the database whether the attempt at this job is still current.
    pub(super) async fn check(&self, context: &Context, worker: &str, job: i64) -> Result<(), DatabaseError> {
        let asked = Instant::now();
        let mut attempts = self.running_for(Duration::ZERO);
        attempts.retain(|(job_id, _)| *job_id == job);
        let ended = attempts::check(&context.pool, worker, &attempts, false).await?;
        self.stop_ended(asked, &ended);
        Ok(())
    }
}

pub(super) struct Entered {
    under_way: UnderWay,
    key: Key,
    pub(super) stop: Stop,
}

impl Entered {
    /// The handler is done.
    pub(super) fn is_over(&self) {
        if let Some(running) = self.under_way.0.lock().running.get_mut(&self.key) {
            running.is_over = true;
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.under_way.0.lock().running.remove(&self.key);
    }
}

/// Protects and checks long attempts, and returns lost claims to their queues, until it is stopped. Separate from the
/// heartbeats, which must not wait for it.
pub(super) async fn watch(
    context: Context,
    client_id: String,
    under_way: UnderWay,
    stopped: CancellationToken,
) {
    // Until the next look for lost claims, which may read many dead entries.
    let mut pause = Pause::none();
    loop {
        tokio::select! {
            () = tokio::time::sleep(CHECK_INTERVAL) => {}
            () = stopped.cancelled() => return,
        }
        let (asked, finds_lost) = (Instant::now(), pause.is_over());
        let attempts = under_way.running_for(if finds_lost { Duration::ZERO } else { LONG });
        if attempts.is_empty() && !finds_lost {
            continue;
        }
        match attempts::check(&context.pool, &client_id, &attempts, finds_lost).await {
            Ok(ended) => {
                if finds_lost {
                    pause.after(asked.elapsed());
                }
                under_way.stop_ended(asked, &ended);
                report_lost(&attempts, &ended);
            }
            Err(error) => tracing::warn!(%error, "could not check the running attempts"),
        }
    }
}

fn report_lost(known: &[Attempt], ended: &[EndedAttempt]) {
    for lost in ended
        .iter()
        .filter(|ended| !known.contains(&(ended.job_id, ended.attempt)))
    {
        metrics::counter!("weir_reclaimed_total").increment(1);
        tracing::warn!(
            job = lost.job_id,
            "took over a job that was claimed but never started"
        );
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn job(claim: &str) -> ClaimedJob {
        ClaimedJob {
            id: 7,
            attempt: 1,
            max_attempts: 3,
            claim: claim.to_owned(),
            claims: 1,
            errors: 0,
            last_error_at: None,
            kind: String::new(),
            queue: String::new(),
            priority: 1,
            args: "{}".to_owned(),
            request_id: None,
            traceparent: None,
            created_at: Timestamp::UNIX_EPOCH,
            scheduled_at: Timestamp::UNIX_EPOCH,
            attempted_at: Timestamp::UNIX_EPOCH,
            key: uuid::Uuid::nil(),
            found: None,
            is_lent: false,
        }
    }

    /// Why attempt 1 at job 7 stops after an answer to a question that was asked after its start, or before.
    fn cause(ended: (i64, i16, bool), is_asked_after: bool) -> Option<Cause> {
        let under_way = UnderWay::default();
        let before = Instant::now();
        let entered = under_way.enter(&job("1.1"));
        let asked = match is_asked_after {
            true => Instant::now() + Duration::from_millis(1),
            false => before,
        };
        let (job_id, attempt, is_taken_over) = ended;
        let ended = EndedAttempt {
            job_id,
            attempt,
            is_taken_over,
        };
        under_way.stop_ended(asked, &[ended]);
        assert_eq!(entered.stop.token.is_cancelled(), entered.stop.cause().is_some());
        entered.stop.cause()
    }

    #[test]
    fn an_attempt_stops_when_it_lost_its_job() {
        assert_eq!(cause((7, 2, true), true), None);
        assert_eq!(cause((8, 1, true), true), None);
        assert_eq!(cause((7, 1, false), true), Some(Cause::Cancelled));
        assert_eq!(cause((7, 1, true), true), Some(Cause::TakenOver));
    }

    #[test]
    fn an_answer_older_than_the_attempt_does_not_stop_it() {
        assert_eq!(cause((7, 1, true), false), None);
    }

    #[test]
    fn an_attempt_that_starts_during_a_stop_stops() {
        let under_way = UnderWay::default();
        let before = under_way.enter(&job("1.1"));
        under_way.stop_all();
        let after = under_way.enter(&job("1.2"));
        assert_eq!(
            [before.stop.cause(), after.stop.cause()],
            [Some(Cause::Stopping); 2]
        );
        assert!(after.stop.token.is_cancelled());
    }

    #[test]
    fn an_attempt_is_known_until_its_end_is_written() {
        let under_way = UnderWay::default();
        let entered = under_way.enter(&job("1.1"));
        entered.is_over();
        assert_eq!(under_way.running_for(Duration::ZERO), [(7, 1)]);
        drop(entered);
        assert_eq!(under_way.running_for(Duration::ZERO), []);
    }
}
