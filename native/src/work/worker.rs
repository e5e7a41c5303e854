//! The one River worker behind every kind: it finds the handler, runs it, and settles.

use std::any::Any;
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
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::attempt_error::{AttemptError, asked_for};
use super::attempt_holder::{self, user_id};
use super::attempt_log::AttemptLog;
use super::cancellation;
use super::fenced;
use super::internal::{Internal, not_started};
use super::pool::{Pools, SettlePermit, WorkerPermit};
use super::progress;
use super::retry;
use crate::config::fairness::FairnessScope;
use crate::config::retry::Retry;
use crate::context::Context;
use crate::handler::{Attempt, Handler, HandlerError, MAX_OUTPUT, Outcome, Reporter, Worked};
use weir_ledger::attempts::{self, AwaitOutcome, Claim};
use weir_ledger::database::DatabaseError;
use weir_ledger::holder::Holder;
use weir_ledger::job_metadata::{REASON, REASON_ATTEMPT};
use weir_ledger::json::check_numbers;
use weir_ledger::settlement::{self, Ended, SettleError, Settled, Success};

/// The number of retries of a settlement during an outage of the database, and their interval.
const SETTLE_TRIES: u32 = 30;
const SETTLE_PAUSE: Duration = Duration::from_millis(500);

/// A handler that does not stop at its time limit is aborted this long after it.
const BACKSTOP: Duration = Duration::from_secs(30);

/// Any job's arguments. River ties a Rust type to one kind; this type covers all configured kinds through its aliases.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct AnyArgs(pub(super) Map<String, Value>);

thread_local! {
    /// The kinds being registered. River queries a type for them only during registration.
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
    pools: Pools,
    kinds: HashMap<String, Kind>,
}

/// Registers every configured kind. Their names are never freed, because River keeps them permanently.
pub(super) fn register(workers: &mut Workers, context: &Context, pools: &Pools) -> Result<(), DatabaseError> {
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
        pools: pools.clone(),
        kinds,
    })?;
    Ok(())
}

/// The job's key outside of `database`. After a failover or a restore, several jobs may have the same id. They differ
/// in their creation time, and those of two users in their arguments.
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

/// The pause after a failure that River does not record: at least `least`.
pub(super) fn pause(policy: Option<Retry>, errors: usize, error: &WorkError, least: Duration) -> Duration {
    let after = asked_for(error).map_or(least, |after| after.max(least));
    retry::pause(policy, errors, Some(after), rand::random()).unwrap_or(after)
}

impl Worker<AnyArgs> for AnyWorker {
    type Error = AttemptError;

    /// `work` enforces the time limit.
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
        let Some(kind) = self.kinds.get(&job.row.kind) else {
            return Err(AttemptError::NoHandler(job.row.kind));
        };
        let cancelled = &cancellation::current_attempt();
        let mut permits = match (self.pools.of(&job.row.queue), context.client()) {
            (Some(pool), Some(client)) => match pool.worker(client, cancelled).await {
                // An attempt that was cancelled while it waited must not start. River knows why it was cancelled.
                Some(permit) if !cancelled.is_cancelled() => Permits::Works(permit),
                _ => return Ok(WorkOutcome::Snooze(Duration::ZERO)),
            },
            // The queue was added with River's own tools.
            _ => Permits::None,
        };
        let started = match self.start(&job.row).await {
            Ok(started) => started,
            Err(error) => return Ok(not_started(job.row.id, error)?),
        };
        let handled = self.handle(kind, &started, job.args.0, cancelled).await;
        let end = self.conclude(kind, &started, handled, &mut permits).await;
        let Started { number, log, .. } = started;
        match end {
            End::Completed { charged } => {
                log.end("completed", Some(charged), None);
                // A slot in memory belongs to this attempt until it returns, and must not outlast the job.
                if self.context.settings.fairness.scope == FairnessScope::Cluster {
                    permits.leave(cancelled).await;
                }
                Ok(WorkOutcome::Complete)
            }
            End::Outstanding { is_over } => {
                log.end("outstanding", None, None);
                if is_over {
                    permits.settle();
                    fenced::wait_until_over(&self.context.pool, job.row.id, cancelled).await;
                }
                Err(AttemptError::Outstanding)
            }
            End::FencedOut => {
                log.end("fenced_out", None, None);
                // River needs room to claim another job, because this attempt may wait for that one.
                permits.settle();
                fenced::wait_out(&self.context.pool, job.row.id, cancelled).await;
                Ok(WorkOutcome::Complete)
            }
            End::Failed(AttemptError::Permanent(reason)) => {
                log.end("discarded", None, Some(&reason));
                // River's own text for a discarded job gives no reason.
                let _ = context.metadata_set(REASON, reason);
                let _ = context.metadata_set(REASON_ATTEMPT, number);
                Ok(WorkOutcome::Discard)
            }
            End::Failed(error) => {
                log.end(error.outcome(), None, Some(&error.to_string()));
                Err(error)
            }
        }
    }
}

/// An attempt that has a worker.
struct Started<'a> {
    job: &'a JobRow,
    number: i16,
    claim: String,
    /// The holder of the job's reservation.
    reserved_by: Option<Uuid>,
    /// The same holder; without a reservation, the user in the job's arguments.
    holder: Option<Holder>,
    key: Uuid,
    token: Option<SecretString>,
    log: AttemptLog<'a>,
}

impl Started<'_> {
    fn claim(&self) -> Claim<'_> {
        Claim {
            job_id: self.job.id,
            claim: &self.claim,
            created_at: self.job.created_at,
        }
    }
}

/// The handler's result; `Err` when it panicked.
type Handled = Result<Result<Worked, HandlerError>, Box<dyn Any + Send>>;

/// How an attempt ended.
enum End {
    Completed {
        charged: i64,
    },
    /// The handler answers later. `is_over`: the job no longer waits for that answer.
    Outstanding {
        is_over: bool,
    },
    /// Another attempt has the job.
    FencedOut,
    Failed(AttemptError),
}

/// The permits of an attempt in its pool: a worker, then the right to settle.
enum Permits {
    /// Its queue has no pool.
    None,
    Works(WorkerPermit),
    Settles(SettlePermit),
}

impl Permits {
    /// Frees the worker for the next job.
    fn settle(&mut self) {
        *self = match std::mem::replace(self, Self::None) {
            Self::Works(permit) => Self::Settles(permit.done()),
            other => other,
        };
    }

    /// Returns when River may claim another job in this one's place.
    async fn leave(self, cancelled: &CancellationToken) {
        if let Self::Settles(permit) = self {
            permit.leave(cancelled).await;
        }
    }
}

impl AnyWorker {
    async fn start<'a>(&self, job: &'a JobRow) -> Result<Started<'a>, DatabaseError> {
        let holders = self.context.holders().await?;
        let reserved_by = attempt_holder::get();
        let holder = reserved_by.or_else(|| Some(holders.user_id(&user_id(job)?)));
        let claim = attempts::claim_of(job.attempt, job.attempted_by.len());
        let token = self.context.attempt_tokens().await?.of(Claim {
            job_id: job.id,
            claim: &claim,
            created_at: job.created_at,
        });
        Ok(Started {
            job,
            number: i16::try_from(job.attempt).unwrap_or(i16::MAX),
            claim,
            reserved_by: reserved_by.map(|holder| holder.id),
            holder,
            key: key_of(job, holders.namespace()),
            token,
            log: AttemptLog::start(&self.context.settings, job, holder),
        })
    }

    /// Runs the handler up to its time limit, which excludes the wait for a worker. Also returns the limit if the
    /// handler had to stop because of it.
    async fn handle(
        &self,
        kind: &Kind,
        started: &Started<'_>,
        args: Map<String, Value>,
        cancelled: &CancellationToken,
    ) -> (Handled, Option<Duration>) {
        let stop = cancelled.child_token();
        let (reporter, progress) = Reporter::new();
        let attempt = Attempt {
            job_id: started.job.id,
            attempt: started.number,
            holder: started.holder,
            key: started.key,
            args,
            token: started.token.clone(),
            progress: reporter,
            traceparent: started.log.trace_context().traceparent(),
            cancelled: stop.clone(),
        };
        let handling = AssertUnwindSafe(kind.handler.work(attempt)).catch_unwind();
        let mut handling = pin!(async {
            tokio::select! {
                biased;
                handled = handling => handled,
                never = progress::record(&self.context.pool, started.claim(), progress) => match never {},
            }
        });
        if let Ok(handled) = tokio::time::timeout(kind.timeout, &mut handling).await {
            return (handled, None);
        }
        let timed_out = (!cancelled.is_cancelled()).then_some(kind.timeout);
        stop.cancel();
        match tokio::time::timeout(BACKSTOP, handling).await {
            Ok(handled) => (handled, timed_out),
            Err(_) => (Ok(Err(HandlerError::Cancelled)), Some(kind.timeout)),
        }
    }

    /// Settles the handler's result, if the job still belongs to this attempt.
    async fn conclude(
        &self,
        kind: &Kind,
        started: &Started<'_>,
        (handled, timed_out): (Handled, Option<Duration>),
        permits: &mut Permits,
    ) -> End {
        let ended = match handled {
            Ok(Ok(Worked::Later)) => self.await_answer(started.claim(), kind.timeout).await,
            Ok(Ok(Worked::Done(outcome))) if !outcome.fits() => Err(AttemptError::Permanent(format!(
                "the output is larger than {MAX_OUTPUT} bytes"
            ))),
            Ok(Ok(Worked::Done(outcome))) => match check_numbers(&outcome.output) {
                Err(error) => Err(AttemptError::Permanent(format!(
                    "the output cannot be stored: {error}"
                ))),
                Ok(()) => {
                    permits.settle();
                    self.settle(started, outcome).await
                }
            },
            Ok(Err(error)) => Err(AttemptError::from_handler(error, timed_out)),
            // The panic's message is on standard error.
            Err(_) => Err(AttemptError::Panicked),
        };
        match ended {
            Ok(end) => end,
            Err(error) if self.still_owns(started).await => End::Failed(error),
            Err(_) => End::FencedOut,
        }
    }

    async fn still_owns(&self, started: &Started<'_>) -> bool {
        let job = started.job;
        fenced::still_owns(&self.context.pool, job.id, started.number, job.created_at).await
    }

    /// Marks the attempt as answered later. The handler has started its work, so this waits during an outage of the
    /// database.
    async fn await_answer(&self, claim: Claim<'_>, patience: Duration) -> Result<End, AttemptError> {
        let mut tries = 0;
        let outcome = loop {
            tries += 1;
            let outcome = self.context.pool.with(async |client| {
                Ok::<_, DatabaseError>(attempts::await_answer(client, claim, patience).await?)
            });
            match outcome.await {
                Ok(outcome) => break outcome,
                Err(error) if tries < SETTLE_TRIES => {
                    tracing::warn!(job = claim.job_id, %error, "waiting for the database to record that the handler \
                         answers later");
                    tokio::time::sleep(SETTLE_PAUSE).await;
                }
                Err(error) => {
                    return Err(Internal::new(
                        claim.job_id,
                        "could not record that the handler answers later",
                        &error,
                    )
                    .into());
                }
            }
        };
        match outcome {
            AwaitOutcome::Outstanding => Ok(End::Outstanding { is_over: false }),
            // The endpoint has answered already, the job was taken over, or the reply to an earlier try was lost.
            AwaitOutcome::AttemptEnded => Ok(End::Outstanding { is_over: true }),
            AwaitOutcome::CancelRequested => Err(AttemptError::Cancelled(WorkCancelled)),
            AwaitOutcome::CannotBePending => Err(AttemptError::Permanent(
                "the endpoint answers later, but the job's unique states lack pending, so it cannot wait"
                    .to_owned(),
            )),
        }
    }

    async fn settle(&self, started: &Started<'_>, outcome: Outcome) -> Result<End, AttemptError> {
        let job_id = started.job.id;
        let success = Success {
            attempt: started.number,
            job_created_at: Some(started.job.created_at),
            output: outcome.output,
            used: outcome.used,
        };
        let _span = started.log.settlement();
        let mut is_unknown = false;
        let mut tries = 0;
        loop {
            tries += 1;
            let ended = Ended {
                job_id,
                holder: started.reserved_by,
                success: Some(success.clone()),
            };
            match self.context.settler.settle(ended).await {
                Ok(Settled::Done { charged }) => return Ok(End::Completed { charged }),
                // An earlier try with an unknown outcome may have settled this same attempt.
                Ok(Settled::FencedOut) if is_unknown => {
                    return Ok(match self.charged_by(job_id, &success).await {
                        Some(charged) => End::Completed { charged },
                        None => End::FencedOut,
                    });
                }
                Ok(Settled::FencedOut) => return Ok(End::FencedOut),
                // The work is done, so this waits during an outage of the database.
                Err(SettleError::Database(error)) if tries < SETTLE_TRIES => {
                    is_unknown |= matches!(error, DatabaseError::OutcomeUnknown(_));
                    tracing::warn!(job = job_id, %error, "waiting for the database to settle");
                    tokio::time::sleep(SETTLE_PAUSE).await;
                }
                Err(error @ SettleError::Unstorable(_)) => {
                    tracing::warn!(job = job_id, %error, "the output of a job cannot be stored");
                    let what = "the output cannot be stored: it is too large or contains a NUL character";
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
            tracing::warn!(job = job_id, %error, "could not check which client completed the job");
            None
        })
    }
}
