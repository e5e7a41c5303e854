//! Which cancellations an attempt obeys.
//!
//! River cancels an attempt when a notification names its job, and any database role can send that notification. A
//! genuine cancellation also leaves a mark in the job's metadata. So each attempt has a separate token, which is
//! cancelled when the database has the mark or the process stops. River's token only triggers that check.
//!
//! Once its token is cancelled, River records every outcome except success as a cancellation. After a forged
//! cancellation, Weir records those outcomes itself.

use std::time::Duration;

use jiff::Timestamp;
use riverqueue::{JobRow, WorkCancelled, WorkError, WorkOutcome};
use tokio_util::sync::CancellationToken;
use weir_ledger::attempts::{self, AttemptError, Claim, Failure};
use weir_ledger::database::DatabaseError;

use crate::context::Context;

/// After a forged cancellation, River does not report a genuine one. The attempt checks for it at this interval.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// An attempt that is still running this long after its cancellation is aborted. Longer than the time that programs get
/// to stop.
const CANCEL_GRACE: Duration = Duration::from_secs(15);

/// Pause between retries while the database is unavailable.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// River's client still reports the attempt's outcome by job id alone, so the next attempt must not start earlier.
/// River's scheduler makes a job available up to 5 s before it is due.
const NEXT_ATTEMPT_AFTER: Duration = Duration::from_secs(10);

tokio::task_local! {
    static CURRENT_ATTEMPT: CancellationToken;
}

/// The token of the current task's attempt.
pub(super) fn current_attempt() -> CancellationToken {
    CURRENT_ATTEMPT
        .try_with(CancellationToken::clone)
        .unwrap_or_default()
}

/// The attempt was cancelled and continued.
#[derive(Debug, thiserror::Error)]
#[error("the attempt was cancelled and did not stop")]
struct Aborted;

/// Decides which cancellations are obeyed.
pub(super) struct Cancellations {
    context: Context,
    /// Cancelled when attempts have to stop because the process stops, before River's tokens are.
    stopping: CancellationToken,
}

impl Cancellations {
    pub(super) fn new(context: Context, stopping: CancellationToken) -> Self {
        Self { context, stopping }
    }

    /// Runs an attempt with a separate token. `river` is River's token. `retry_in` returns the pause after a failure,
    /// which is at least its second argument.
    pub(super) async fn run(
        &self,
        river: &CancellationToken,
        job: &Attempted,
        attempt: impl Future<Output = Result<WorkOutcome, WorkError>>,
        retry_in: impl FnOnce(&WorkError, Duration) -> Duration,
    ) -> Result<WorkOutcome, WorkError> {
        let token = CancellationToken::new();
        let mut was_forged = false;
        let outcome = tokio::select! {
            biased;
            outcome = CURRENT_ATTEMPT.scope(token.clone(), attempt) => outcome,
            () = self.cancel(river, job.id, &token, &mut was_forged) => Err(WorkError::new(Aborted)),
        };
        let river_cancels =
            river.is_cancelled() && !matches!(outcome, Ok(WorkOutcome::Complete | WorkOutcome::Cancel));
        let is_unclear = was_forged || !token.is_cancelled() && !self.stopping.is_cancelled();
        if !river_cancels || !is_unclear || self.is_cancelled_with_retries(job.id).await {
            return outcome;
        }
        self.record(job, outcome, retry_in).await
    }

    /// Cancels the attempt's token when River's token is cancelled and the cancellation is genuine. Returns when the
    /// attempt has had time to stop.
    async fn cancel(
        &self,
        river: &CancellationToken,
        job_id: i64,
        token: &CancellationToken,
        was_forged: &mut bool,
    ) {
        river.cancelled().await;
        while !self.stopping.is_cancelled() {
            match self.is_cancelled(job_id).await {
                Ok(true) => break,
                Ok(false) if !*was_forged => {
                    *was_forged = true;
                    tracing::warn!(
                        job = job_id,
                        "ignored a cancellation that no River client requested"
                    );
                }
                Ok(false) => {}
                Err(error) => tracing::warn!(job = job_id, %error, "could not check a cancellation"),
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
                () = self.stopping.cancelled() => {}
            }
        }
        token.cancel();
        tokio::time::sleep(CANCEL_GRACE).await;
    }

    /// Whether the database has recorded the cancellation. A job that no longer runs can be cancelled safely.
    async fn is_cancelled(&self, job_id: i64) -> Result<bool, DatabaseError> {
        weir_ledger::read::attempts::is_cancelled(&self.context.pool, job_id).await
    }

    async fn is_cancelled_with_retries(&self, job_id: i64) -> bool {
        loop {
            match self.is_cancelled(job_id).await {
                Ok(is_cancelled) => return is_cancelled,
                Err(error) => tracing::warn!(job = job_id, %error, "could not check a cancellation"),
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Records the outcome instead of River. River then sees a success of a job that is not running.
    async fn record(
        &self,
        job: &Attempted,
        outcome: Result<WorkOutcome, WorkError>,
        retry_in: impl FnOnce(&WorkError, Duration) -> Duration,
    ) -> Result<WorkOutcome, WorkError> {
        let claim = Claim {
            job_id: job.id,
            claim: &job.claim,
            created_at: job.created_at,
        };
        let pause = match &outcome {
            Ok(WorkOutcome::Snooze(pause)) => Some(*pause),
            Err(error) if was_stopped(error) => Some(Duration::ZERO),
            _ => None,
        };
        let failure = match &outcome {
            Ok(_) => Failure {
                error: "the worker discarded the job".to_owned(),
                retry_at: None,
                is_permanent: true,
            },
            Err(error) => Failure {
                error: error.to_string(),
                retry_at: Some(Timestamp::now() + retry_in(error, NEXT_ATTEMPT_AFTER)),
                is_permanent: false,
            },
        };
        loop {
            let recorded = self.context.pool.with(async |client| match pause {
                Some(pause) => Ok(attempts::snooze(client, claim, pause.max(NEXT_ATTEMPT_AFTER)).await?),
                None => attempts::fail(client, claim, &failure).await.map(|_| ()),
            });
            match recorded.await {
                Ok(()) | Err(AttemptError::Ended(_)) => {
                    self.context.settler.notice(job.id, None);
                    return Ok(WorkOutcome::Complete);
                }
                Err(AttemptError::Invalid(error)) => {
                    tracing::warn!(job = job.id, error, "the outcome of an attempt cannot be stored");
                    return outcome;
                }
                Err(AttemptError::Database(error)) => {
                    tracing::warn!(job = job.id, %error, "waiting for the database to record an attempt");
                }
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }
}

/// Whether the attempt ended because its token was cancelled.
fn was_stopped(error: &WorkError) -> bool {
    let error: &(dyn std::error::Error + 'static) = error.get_ref();
    std::iter::successors(Some(error), |error| error.source()).any(|error| error.is::<WorkCancelled>())
}

/// An attempt at a job.
pub(super) struct Attempted {
    id: i64,
    claim: String,
    created_at: Timestamp,
}

impl Attempted {
    pub(super) fn of(job: &JobRow) -> Self {
        Self {
            id: job.id,
            claim: attempts::claim_of(job.attempt, job.attempted_by.len()),
            created_at: job.created_at,
        }
    }
}
