//! The one River worker behind every kind: finds the handler, runs it, settles.

use std::cell::Cell;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use riverqueue::{
    Job, JobArgs, JobRow, WorkCancelled, WorkContext, WorkError, WorkOutcome, Worker, WorkerTimeout, Workers,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::attempt_log::AttemptLog;
use super::cancellation;
use super::current_holders::{CurrentHolders, user_id};
use super::fenced;
use super::internal::{Internal, not_begun};
use super::pool::{self, Pools};
use super::retry;
use super::telling;
use crate::config::fairness::FairnessScope;
use crate::config::retry::Retry;
use crate::context::Context;
use crate::handler::{Attempt, Handler, HandlerError, MAX_OUTPUT, Reporter, Worked};
use weir_ledger::attempts::{self, Claim, HandedOver};
use weir_ledger::database::DatabaseError;
use weir_ledger::job_metadata::{REASON, REASON_ATTEMPT};
use weir_ledger::settlement::{self, Ended, SettleError, Settled, Success};

/// How often a settlement is tried while the database is away, and how long apart.
const SETTLE_TRIES: u32 = 30;
const SETTLE_PAUSE: Duration = Duration::from_millis(500);

/// A handler that does not stop at its time limit is broken off this long after it.
const BACKSTOP: Duration = Duration::from_secs(30);

/// Any job's arguments. River ties a Rust type to one kind; this type stands for all configured kinds by way of its
/// aliases.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct AnyArgs(pub(super) Map<String, Value>);

thread_local! {
    /// The kinds that are being registered. River asks a type for them, and only then.
    static KINDS: Cell<&'static [&'static str]> = const { Cell::new(&[]) };
}

impl JobArgs for AnyArgs {
    const KIND: &'static str = "weir:any";

    fn kind_aliases() -> &'static [&'static str] {
        KINDS.get()
    }
}

struct Kind {
    handler: Arc<dyn Handler>,
    timeout: Duration,
    retry: Option<Retry>,
}

struct AnyWorker {
    context: Context,
    current: CurrentHolders,
    pools: Pools,
    kinds: HashMap<String, Kind>,
}

/// Registers every configured kind. Their names are never freed, since River keeps them for ever.
pub(super) fn register(
    workers: &mut Workers,
    context: &Context,
    current: &CurrentHolders,
    pools: &Pools,
) -> Result<(), DatabaseError> {
    let services = &context.settings.services;
    let names: Vec<&'static str> = services
        .iter()
        .map(|service| &*service.kind.clone().leak())
        .collect();
    KINDS.set(names.leak());
    let kinds = services
        .iter()
        .filter_map(|service| {
            let handler = Arc::clone(context.handlers.get(&service.kind)?);
            Some((
                service.kind.clone(),
                Kind {
                    handler,
                    timeout: service.timeout,
                    retry: service.retry,
                },
            ))
        })
        .collect();
    workers.add::<AnyArgs, _>(AnyWorker {
        context: context.clone(),
        current: current.clone(),
        pools: pools.clone(),
        kinds,
    })?;
    Ok(())
}

/// Without the letter that PostgreSQL does not have. River writes how many attempts ended in one statement, and repeats it
/// until it succeeds: one text that cannot be stored would keep all others from being written.
pub(super) fn storable(text: String) -> String {
    if text.contains('\0') {
        text.replace('\0', "")
    } else {
        text
    }
}

/// The job's key for the world outside of `database`. The id alone belongs to several jobs after a failover or a restore.
/// Two jobs with the same id differ in when they were created, and those of two users in the arguments.
fn key_of(job: &JobRow, database: Uuid) -> Uuid {
    let created = job.created_at.as_microsecond();
    let parts: [&[u8]; 5] = [
        &job.id.to_be_bytes(),
        &created.to_be_bytes(),
        job.kind.as_bytes(),
        b"\0",
        job.encoded_args.get().as_bytes(),
    ];
    Uuid::new_v5(&database, &parts.concat())
}

/// The pause that a failed attempt asks for.
fn asked_for(error: &WorkError) -> Option<Duration> {
    match error.downcast_ref() {
        Some(AttemptError::Failed { after, .. }) => *after,
        _ => None,
    }
}

/// The pause after a failure that River does not record: at least `least`.
pub(super) fn pause(policy: Option<Retry>, errors: usize, error: &WorkError, least: Duration) -> Duration {
    let after = asked_for(error).map_or(least, |after| after.max(least));
    retry::pause(policy, errors, Some(after), rand::random()).unwrap_or(after)
}

/// Why an attempt failed, as River records it.
#[derive(Debug, thiserror::Error)]
enum AttemptError {
    #[error("no handler is configured for kind {0:?} in this process")]
    NoHandler(String),
    #[error("{message}")]
    Failed {
        message: String,
        /// Not to be tried again before.
        after: Option<Duration>,
    },
    #[error("it took longer than {}, its time limit", humantime::format_duration(*.0))]
    TimedOut(Duration),
    #[error("{0}")]
    Permanent(String),
    #[error("the handler panicked")]
    Panicked,
    /// Nothing has failed: the handler answers later. River finds the job pending, and writes nothing. Were it so late that
    /// the next attempt runs already, then that one is tried again; a success would end the job.
    #[error("an earlier attempt of this job was reported too late")]
    Outstanding,
    #[error(transparent)]
    Internal(#[from] Internal),
    /// Not transparent: River looks for `WorkCancelled` among the sources, and gives the attempt back when it is there.
    #[error("stopped")]
    Cancelled(#[from] WorkCancelled),
}

impl AttemptError {
    /// `timed_out`: the limit, when it was reached, which is then why the handler was told to stop.
    fn from_handler(error: HandlerError, timed_out: Option<Duration>) -> Self {
        match error {
            HandlerError::Failed(message) => Self::Failed {
                message: storable(message),
                after: None,
            },
            HandlerError::RetryAfter { message, after } => Self::Failed {
                message: storable(message),
                after: Some(after),
            },
            HandlerError::Permanent(message) => Self::Permanent(storable(message)),
            HandlerError::Cancelled => timed_out.map_or(Self::Cancelled(WorkCancelled), Self::TimedOut),
        }
    }

    /// As it is counted.
    fn outcome(&self) -> &'static str {
        match self {
            Self::NoHandler(_) | Self::Failed { .. } | Self::Panicked | Self::Internal(_) => "failed",
            Self::Outstanding => "outstanding",
            Self::TimedOut(_) => "timed_out",
            Self::Permanent(_) => "discarded",
            Self::Cancelled(_) => "cancelled",
        }
    }
}

impl Worker<AnyArgs> for AnyWorker {
    type Error = AttemptError;

    /// `work` keeps the time limit.
    fn timeout(&self, _job: &Job<AnyArgs>) -> WorkerTimeout {
        WorkerTimeout::Disabled
    }

    fn next_retry(
        &self,
        job: &Job<AnyArgs>,
        error: &WorkError,
        _now: riverqueue::jiff::Timestamp,
    ) -> Option<Duration> {
        let policy = self.kinds.get(&job.row.kind).and_then(|kind| kind.retry);
        retry::pause(policy, job.row.errors.len(), asked_for(error), rand::random())
    }

    async fn work(&self, context: WorkContext, job: Job<AnyArgs>) -> Result<WorkOutcome, AttemptError> {
        let number = i16::try_from(job.row.attempt).unwrap_or(i16::MAX);
        let Some(kind) = self.kinds.get(&job.row.kind) else {
            return Err(AttemptError::NoHandler(job.row.kind));
        };
        let cancelled = &cancellation::of_attempt();
        let mut worker = match (self.pools.of(&job.row.queue), context.client()) {
            (Some(pool), Some(client)) => match pool.worker(client, cancelled).await {
                // Cancelled while it waited, it must not start. River makes of it what the cancellation was for.
                Some(worker) if !cancelled.is_cancelled() => Some(worker),
                _ => return Ok(WorkOutcome::Snooze(Duration::ZERO)),
            },
            // A queue that was added by hand.
            _ => None,
        };
        let holder = self.current.of(job.row.id);
        // Without a reservation, the arguments say whose it is.
        let holders = match self.context.holders().await {
            Ok(holders) => holders,
            Err(error) => return Ok(not_begun(job.row.id, error)?),
        };
        let holder = holder.or_else(|| Some(holders.user_id(&user_id(&job.row)?)));
        let tokens = match self.context.attempt_tokens().await {
            Ok(tokens) => tokens,
            Err(error) => return Ok(not_begun(job.row.id, error)?),
        };
        let log = AttemptLog::start(&self.context.settings, &job.row, holder);
        let claim = attempts::claim_of(job.row.attempt, job.row.attempted_by.len());
        let claim = Claim {
            job_id: job.row.id,
            claim: &claim,
            created_at: job.row.created_at,
        };
        let token = tokens.of(claim);
        let stop = cancelled.child_token();
        let (progress, said) = Reporter::new();
        let attempt = Attempt {
            job_id: job.row.id,
            attempt: number,
            holder,
            key: key_of(&job.row, holders.namespace()),
            args: job.args.0,
            token,
            progress,
            traceparent: log.trace_context().traceparent(),
            cancelled: stop.clone(),
        };
        let handling = AssertUnwindSafe(kind.handler.work(attempt)).catch_unwind();
        let mut handling = pin!(async {
            tokio::select! {
                biased;
                handled = handling => handled,
                never = telling::tell(&self.context.pool, claim, said) => match never {},
            }
        });
        // The limit is the handler's, and not that of its wait for a worker. Kept here, so that whoever was told to
        // stop is known to have been told because of it.
        let (handled, timed_out) = match tokio::time::timeout(kind.timeout, &mut handling).await {
            Ok(handled) => (handled, None),
            Err(_) => {
                let timed_out = (!cancelled.is_cancelled()).then_some(kind.timeout);
                stop.cancel();
                match tokio::time::timeout(BACKSTOP, handling).await {
                    Ok(handled) => (handled, timed_out),
                    Err(_) => (Ok(Err(HandlerError::Cancelled)), Some(kind.timeout)),
                }
            }
        };
        let error = match handled {
            Ok(Ok(Worked::Later)) => {
                match self.hand_over(claim, kind.timeout).await {
                    Ok(HandedOver::Outstanding) => {
                        log.end("outstanding", None, None);
                        return Err(AttemptError::Outstanding);
                    }
                    // The handler was faster, or the job was taken back, or an answer was lost that said that it waits.
                    Ok(HandedOver::Over) => {
                        log.end("outstanding", None, None);
                        let _permit = worker.take().map(pool::WorkerPermit::done);
                        fenced::wait_until_over(&self.context.pool, job.row.id, cancelled).await;
                        return Err(AttemptError::Outstanding);
                    }
                    Ok(HandedOver::Cancelled) => AttemptError::Cancelled(WorkCancelled),
                    Ok(HandedOver::CannotWait) => AttemptError::Permanent(
                        "the endpoint answers later, which a job cannot wait for whose unique states lack pending"
                            .to_owned(),
                    ),
                    Err(error) => error,
                }
            }
            Ok(Ok(Worked::Done(outcome))) if !outcome.fits() => {
                AttemptError::Permanent(format!("the output is larger than {MAX_OUTPUT} bytes"))
            }
            Ok(Ok(Worked::Done(outcome))) => {
                let success = Success {
                    attempt: number,
                    job_created_at: Some(job.row.created_at),
                    output: outcome.output,
                    used: outcome.used,
                };
                let permit = worker.take().map(pool::WorkerPermit::done);
                let settling = log.settlement();
                let settled = self.settle(job.row.id, success).await;
                drop(settling);
                match settled {
                    Ok(Settled::Done { charged }) => {
                        log.end("completed", Some(charged), None);
                        // A slot in memory is this attempt's until it returns, and must not outlast the job.
                        if let Some(permit) = permit
                            && self.context.settings.fairness.scope == FairnessScope::Cluster
                        {
                            permit.leave(cancelled).await;
                        }
                        return Ok(WorkOutcome::Complete);
                    }
                    Ok(Settled::FencedOut) => {
                        log.end("fenced_out", None, None);
                        fenced::wait_out(&self.context.pool, job.row.id, cancelled).await;
                        return Ok(WorkOutcome::Complete);
                    }
                    Err(error) => error,
                }
            }
            Ok(Err(error)) => AttemptError::from_handler(error, timed_out),
            // What it said is on standard error, as of any panic.
            Err(_) => AttemptError::Panicked,
        };
        if !fenced::still_owns(&self.context.pool, job.row.id, number, job.row.created_at).await {
            log.end("fenced_out", None, None);
            // River may claim another job meanwhile: it may be the very attempt that is waited for.
            let _permit = worker.take().map(pool::WorkerPermit::done);
            fenced::wait_out(&self.context.pool, job.row.id, cancelled).await;
            return Ok(WorkOutcome::Complete);
        }
        log.end(error.outcome(), None, Some(&error.to_string()));
        if let AttemptError::Permanent(reason) = error {
            // River's own text for a discarded job says only that its worker discarded it.
            let _ = context.metadata_set(REASON, reason);
            let _ = context.metadata_set(REASON_ATTEMPT, number);
            return Ok(WorkOutcome::Discard);
        }
        Err(error)
    }
}

impl AnyWorker {
    /// Makes the attempt one that is answered later. While the database is away that is worth some patience: the handler
    /// works already.
    async fn hand_over(&self, claim: Claim<'_>, patience: Duration) -> Result<HandedOver, AttemptError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let handed_over = self.context.pool.with(async |client| {
                Ok::<_, DatabaseError>(attempts::hand_over(client, claim, patience).await?)
            });
            match handed_over.await {
                Ok(handed_over) => return Ok(handed_over),
                Err(error) if tries < SETTLE_TRIES => {
                    tracing::warn!(job = claim.job_id, %error, "waiting for the database to hand the attempt over");
                    tokio::time::sleep(SETTLE_PAUSE).await;
                }
                Err(error) => {
                    return Err(
                        Internal::new(claim.job_id, "the attempt could not be handed over", &error).into(),
                    );
                }
            }
        }
    }

    async fn settle(&self, job_id: i64, success: Success) -> Result<Settled, AttemptError> {
        let mut is_unknown = false;
        let mut tries = 0;
        loop {
            tries += 1;
            let ended = Ended {
                job_id,
                holder: self.current.of(job_id).map(|holder| holder.id),
                success: Some(success.clone()),
            };
            match self.context.settler.settle(ended).await {
                // The try before, whose outcome nobody knew, may have been this attempt's own.
                Ok(Settled::FencedOut) if is_unknown => {
                    return Ok(match self.charged_by(job_id, &success).await {
                        Some(charged) => Settled::Done { charged },
                        None => Settled::FencedOut,
                    });
                }
                Ok(settled) => return Ok(settled),
                // The work is done; only saying so failed. That is worth some patience.
                Err(SettleError::Database(error)) if tries < SETTLE_TRIES => {
                    is_unknown |= matches!(error, DatabaseError::OutcomeUnknown(_));
                    tracing::warn!(job = job_id, %error, "waiting for the database to settle");
                    tokio::time::sleep(SETTLE_PAUSE).await;
                }
                Err(error @ SettleError::Unstorable(_)) => {
                    tracing::warn!(job = job_id, %error, "the output of a job cannot be stored");
                    let what = "the output cannot be stored: it is too large, or holds a NUL character";
                    return Err(AttemptError::Permanent(what.to_owned()));
                }
                Err(error) => {
                    return Err(Internal::new(job_id, "the result could not be saved", &error).into());
                }
            }
        }
    }

    async fn charged_by(&self, job_id: i64, success: &Success) -> Option<i64> {
        let asked = self.context.pool.with(async |client| {
            Ok::<_, DatabaseError>(
                settlement::charged_by(&**client, job_id, success.attempt, success.job_created_at).await?,
            )
        });
        asked.await.unwrap_or_else(|error| {
            tracing::warn!(job = job_id, %error, "could not ask who completed the job");
            None
        })
    }
}
