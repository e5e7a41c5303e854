//! One attempt at a job: it gets a slot, runs the handler, and settles.
//!
//! Jobs submitted through Weir already have their slot when a worker can claim them. The attempt guard (ADR-10) handles
//! the other jobs: those that another River client inserted, retries, and those that were made available by hand. No
//! attempt of a user's job runs without one of that user's slots.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use parking_lot::Mutex;
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::json;
use weir_ledger::attempts::{self, AwaitOutcome, ClaimedJob, End, Holds};
use weir_ledger::control::DELIVERY_KIND;
use weir_ledger::database::{ConnectionPool, DatabaseError};
use weir_ledger::hold_off::HoldOff;
use weir_ledger::holder::Holder;
use weir_ledger::job_metadata::{REASON, REASON_ATTEMPT};
use weir_ledger::json::check_numbers;
use weir_ledger::meter::Meter;
use weir_ledger::reservation::{LateAdmission, LateJob, admit_late};
use weir_ledger::settlement::{self, Ended, SettleError, Settled, Success};
use weir_policy::subject::Subject;

use super::attempt_error::AttemptError;
use super::attempt_log::AttemptLog;
use super::deliveries::Deliverer;
use super::internal::{Internal, not_started, snoozed};
use super::lanes::{Lanes, Permit};
use super::progress;
use super::retry;
use super::under_way::{Stop, UnderWay};
use crate::config::fairness::Fairness;
use crate::config::service::Service;
use crate::context::Context;
use crate::handler::{Attempt, Handler, HandlerError, MAX_OUTPUT, Outcome, Reporter, Worked};

/// The number of retries of a settlement during an outage of the database, and their interval.
const SETTLE_TRIES: u32 = 30;
const SETTLE_PAUSE: Duration = Duration::from_millis(500);

/// A handler that does not stop at its time limit is aborted this long after it.
const BACKSTOP: Duration = Duration::from_secs(30);

/// An attempt that still runs this long after its stop is aborted. Programs get less time than that to stop.
const STOP_GRACE: Duration = Duration::from_secs(15);

/// The time during which no attempt retries a lock that another transaction holds. Then one attempt asks.
const BLOCKED_RETRY_DELAY: Duration = Duration::from_millis(200);

/// The maximum time that a job waits for such a lock, without a connection, before it returns to its queue.
const BLOCKED_PATIENCE: Duration = Duration::from_secs(5);

/// What all attempts of a process share.
pub(super) struct Worker {
    pub(super) context: Context,
    /// The name of this process in River's table.
    pub(super) id: String,
    pub(super) lanes: Arc<Lanes>,
    /// Connections for claims and for the ends of attempts, which requests to the API do not use up.
    pub(super) pool: ConnectionPool,
    /// Jobs of other kinds are left to other clients, in every queue.
    pub(super) known_kinds: Vec<String>,
    pub(super) under_way: UnderWay,
    deliverer: Option<Deliverer>,
    /// Holders locked by another transaction.
    blocked: Mutex<HoldOff>,
}

/// How an attempt has ended.
enum Done {
    /// Its end is written already.
    Completed {
        charged: i64,
    },
    /// The handler answers later.
    Outstanding,
    /// Another attempt has the job.
    FencedOut,
    Failed(AttemptError),
}

/// The handler's result; `Err` when it panicked.
type Handled = Result<Result<Worked, HandlerError>, Box<dyn Any + Send>>;

impl Worker {
    pub(super) fn new(context: &Context, id: String, lanes: Arc<Lanes>, pool: ConnectionPool) -> Self {
        let services = context.settings.services.iter();
        let delivers = context.settings.webhook_workers > 0;
        Self {
            context: context.clone(),
            id,
            lanes,
            pool,
            known_kinds: services
                .filter(|service| !service.is_external())
                .map(|service| service.kind.clone())
                .filter(|kind| context.handlers.contains_key(kind))
                .chain(delivers.then(|| DELIVERY_KIND.to_owned()))
                .collect(),
            under_way: UnderWay::default(),
            deliverer: delivers.then(|| Deliverer::new(context)),
            blocked: Mutex::new(HoldOff::new(BLOCKED_RETRY_DELAY)),
        }
    }

    /// Runs a claimed job until its end is written.
    pub(super) async fn run(&self, job: ClaimedJob, mut permit: Permit) {
        let entered = self.under_way.enter(&job);
        let stop = entered.stop.clone();
        let aborted = async {
            stop.token.cancelled().await;
            tokio::time::sleep(STOP_GRACE).await;
        };
        let over = || entered.is_over();
        let end = tokio::select! {
            biased;
            end = self.attempt(&job, &stop, &over, &mut permit) => end,
            () = aborted => Some(end_of_failure(&AttemptError::NotStopped, &stop, Duration::ZERO, &job)),
        };
        over();
        if let Some(end) = end {
            self.write(&job, &end).await;
        }
    }

    /// Returns the end that is still to be written.
    async fn attempt(
        &self,
        job: &ClaimedJob,
        stop: &Stop,
        over: &(dyn Fn() + Sync),
        permit: &mut Permit,
    ) -> Option<End> {
        let Some(service) = self.context.settings.service_of_kind(&job.kind) else {
            let deliverer = self.deliverer.as_ref()?;
            return Some(deliverer.work(job, stop).await);
        };
        match self.entry(job, service.meter).await {
            Ok(Entry::Runs) => {}
            Ok(Entry::Waits(end)) => return Some(end),
            Ok(Entry::FencedOut) => {
                fenced_out(job);
                return None;
            }
            Err(error) => return Some(self.end_of_start(service, job, stop, error)),
        }
        let handler = self.context.handlers.get(&job.kind)?;
        let started = match self.start(job).await {
            Ok(started) => started,
            Err(error) => return Some(self.end_of_start(service, job, stop, error)),
        };
        if stop.token.is_cancelled() {
            // A stop came while it waited for a slot.
            let error = AttemptError::Cancelled;
            started.log.end(error.outcome(), None, None);
            return Some(end_of_failure(&error, stop, Duration::ZERO, job));
        }
        let handled = self.handle(service, &**handler, &started, stop).await;
        over();
        permit.settle();
        match self.conclude(service, &started, handled).await {
            Done::Completed { charged } => started.log.end("completed", Some(charged), None),
            Done::Outstanding => started.log.end("outstanding", None, None),
            Done::FencedOut => {
                started.log.end("fenced_out", None, None);
                fenced_out(job);
            }
            Done::Failed(error) => {
                let pause = self.pause(service, job, error.asked_for());
                let end = end_of_failure(&error, stop, pause, job);
                let (outcome, reason) = match self.write(job, &end).await {
                    true => (error.outcome(), error.to_string()),
                    false => ("fenced_out", String::new()),
                };
                started.log.end(outcome, None, Some(&reason));
            }
        }
        None
    }

    /// The end of an attempt that the database keeps from starting.
    fn end_of_start(&self, service: &Service, job: &ClaimedJob, stop: &Stop, error: DatabaseError) -> End {
        not_started(job.id, error)
            .unwrap_or_else(|error| end_of_failure(&error.into(), stop, self.pause(service, job, None), job))
    }

    fn pause(&self, service: &Service, job: &ClaimedJob, asked_for: Option<Duration>) -> Duration {
        let errors = usize::try_from(job.errors).unwrap_or(0);
        retry::pause(service.retry, errors, asked_for, rand::random())
    }

    /// Writes the end of an attempt, and waits for that during an outage of the database. Returns whether the attempt
    /// still had its job.
    async fn write(&self, job: &ClaimedJob, end: &End) -> bool {
        loop {
            match attempts::end(&self.pool, job.claim(), end).await {
                Ok(true) => break,
                Ok(false) => {
                    fenced_out(job);
                    return false;
                }
                Err(error) if error.is_refusal() => {
                    // The job counts as a lost claim, and another attempt follows.
                    tracing::error!(job = job.id, %error, "PostgreSQL refuses the end of an attempt");
                    return true;
                }
                Err(error) => {
                    tracing::warn!(job = job.id, %error, "waiting for the database to record an attempt");
                    tokio::time::sleep(SETTLE_PAUSE).await;
                }
            }
        }
        if job.kind != DELIVERY_KIND {
            // Also for a job that waits again: a slot freed before this write has passed it over.
            self.context.settler.notice(job.id, None);
        }
        if matches!(end, End::Interrupted) {
            self.context.database.notify([job.queue.clone()]);
        }
        true
    }
}

fn fenced_out(job: &ClaimedJob) {
    metrics::counter!("weir_fenced_attempts_total").increment(1);
    tracing::warn!(
        job = job.id,
        "the job was taken over; the result of this attempt is dropped"
    );
}

/// How a failed attempt ends. River's fields are those that River's client writes.
fn end_of_failure(error: &AttemptError, stop: &Stop, pause: Duration, job: &ClaimedJob) -> End {
    let is_cut_off = matches!(error, AttemptError::Cancelled | AttemptError::NotStopped);
    stop.end(is_cut_off).unwrap_or_else(|| match error {
        // River's own text gives no reason.
        AttemptError::Permanent(reason) => End::Discarded(
            "job discarded by worker".to_owned(),
            json!({ REASON: reason, REASON_ATTEMPT: job.attempt }),
        ),
        _ => End::Failed(error.to_string(), pause),
    })
}

/// The decision on an attempt that arrived without a slot.
enum Entry {
    /// It runs.
    Runs,
    /// The job returns to its queue.
    Waits(End),
    /// Another process has taken over the job.
    FencedOut,
}

impl Worker {
    /// Whether an attempt may run.
    async fn entry(&self, job: &ClaimedJob, meter: Meter) -> Result<Entry, DatabaseError> {
        let fairness = &self.context.settings.fairness;
        let holds = job.found.map(|found| found.holds);
        if fairness.enabled && holds == Some(Holds::Slot) {
            record_start(job);
            return Ok(Entry::Runs);
        }
        let meter = match holds {
            Some(Holds::Quota(meter) | Holds::Nothing(meter)) => meter,
            Some(Holds::Slot) | None => meter,
        };
        // Without slots, the only purpose of admission is to charge a settled job again when it runs again.
        if fairness.enabled || matches!(holds, Some(Holds::Nothing(_))) {
            match self.admit_with_retries(job, meter).await? {
                LateAdmission::Admitted => {}
                LateAdmission::Parked(plan) => return Ok(Entry::Waits(snooze(fairness, job, plan))),
                LateAdmission::Blocked => {
                    weir_ledger::access_log!(
                        false,
                        job = job.id,
                        "snoozed: another transaction holds its holder's lock"
                    );
                    return Ok(Entry::Waits(snoozed()));
                }
                LateAdmission::FencedOut => return Ok(Entry::FencedOut),
            }
        }
        Ok(Entry::Runs)
    }

    /// Requests a slot, and repeats the request while another transaction holds the holder's lock.
    async fn admit_with_retries(
        &self,
        job: &ClaimedJob,
        meter: Meter,
    ) -> Result<LateAdmission, DatabaseError> {
        let until = Instant::now() + BLOCKED_PATIENCE;
        loop {
            let admission = self.admit(job, meter).await?;
            if admission != LateAdmission::Blocked || Instant::now() >= until {
                return Ok(admission);
            }
            tokio::time::sleep(BLOCKED_RETRY_DELAY).await;
        }
    }

    /// Requests a slot from the ledger. A job without an owner needs none.
    async fn admit(&self, job: &ClaimedJob, meter: Meter) -> Result<LateAdmission, DatabaseError> {
        let context = &self.context;
        let (found, user) = (job.found, user_id(job));
        let holder = match (found, &user) {
            (Some(found), _) => found.holder,
            (None, Some(user)) => context.holders().await?.user_id(user),
            (None, None) => return Ok(LateAdmission::Admitted),
        };
        // The submission has already recorded the job's owner.
        let subject: Option<Subject> = match (found, &user) {
            (None, Some(user)) => user.parse().ok(),
            _ => None,
        };
        if holder.user_id.is_none() && found.is_none() {
            tracing::warn!(
                job = job.id,
                "the job's user_id is not a valid subject; it is limited like an anonymous client"
            );
        }
        // Of the attempts that found the lock held, one asks again and the others wait for its result. Each request
        // uses a connection of the shared pool.
        if !self.blocked.lock().may_try(&holder.id) {
            return Ok(LateAdmission::Blocked);
        }
        let services = context.settings.services.iter();
        let kinds: Vec<&str> = services
            .filter(|service| service.meter == meter)
            .map(|service| service.kind.as_str())
            .collect();
        let admission = context
            .pool
            .with(async |client| {
                let late = LateJob {
                    id: job.id,
                    attempt: Some(job.attempt),
                    holder,
                    subject: subject.as_ref(),
                    meter,
                    backlog: user.as_deref().map(|user| (user, &*kinds)),
                };
                admit_late(client, late).await
            })
            .await?;
        let mut blocked = self.blocked.lock();
        if admission == LateAdmission::Blocked {
            blocked.start(holder.id);
        } else {
            blocked.end(&holder.id);
        }
        Ok(admission)
    }
}

/// ADR-10's UserJobExtractor: the text `user_id` of the arguments; `None` when it is absent or empty.
fn user_id(job: &ClaimedJob) -> Option<String> {
    #[derive(Deserialize)]
    struct WithUser {
        user_id: Option<String>,
    }
    let args: WithUser = serde_json::from_str(&job.args).ok()?;
    args.user_id.filter(|user| !user.is_empty())
}

/// Counts a start with a slot, and records the time that a freed slot was unused: from the promotion, which makes the job available after it was created, to
/// its claim. Both times are by the database's clock. Later attempts may have kept the slot of the previous one.
fn record_start(job: &ClaimedJob) {
    let slot = if job.is_lent { "lent" } else { "own" };
    metrics::counter!("weir_starts_total", "slot" => slot).increment(1);
    if job.claims <= 1 && !job.is_lent && job.scheduled_at > job.created_at {
        let idle = job.attempted_at.duration_since(job.scheduled_at).as_secs_f64();
        metrics::histogram!("weir_wake_duration_seconds").record(idle.max(0.0));
    }
}

fn snooze(fairness: &Fairness, job: &ClaimedJob, plan: Option<&'static str>) -> End {
    let plan = plan.unwrap_or("anonymous");
    metrics::counter!("weir_snoozes_total", "plan" => plan).increment(1);
    weir_ledger::access_log!(false, job = job.id, plan, "snoozed: no free slot");
    // Spread by jitter, so that jobs refused together do not return together.
    let jitter = fairness.jitter.as_secs_f64() * rand::random::<f64>();
    End::Snoozed(fairness.snooze + Duration::from_secs_f64(jitter))
}

/// An attempt that may run.
struct Started<'a> {
    job: &'a ClaimedJob,
    /// The holder of the job's reservation; without one, the user in the job's arguments.
    holder: Option<Holder>,
    token: Option<SecretString>,
    log: AttemptLog<'a>,
}

impl Worker {
    async fn start<'a>(&self, job: &'a ClaimedJob) -> Result<Started<'a>, DatabaseError> {
        let holders = self.context.holders().await?;
        let reserved_by = job.found.map(|found| found.holder);
        let holder = reserved_by.or_else(|| Some(holders.user_id(&user_id(job)?)));
        Ok(Started {
            job,
            holder,
            token: self.context.attempt_tokens().await?.of(job.claim()),
            log: AttemptLog::start(&self.context.settings, job, holder),
        })
    }

    /// Runs the handler up to its time limit. Also returns the limit if the handler had to stop because of it.
    async fn handle(
        &self,
        service: &Service,
        handler: &dyn Handler,
        started: &Started<'_>,
        stop: &Stop,
    ) -> (Handled, Option<Duration>) {
        let job = started.job;
        let args = match job.arguments() {
            Ok(args) => args,
            Err(error) => {
                let message = format!("the job's arguments are not an object: {error}");
                return (Ok(Err(HandlerError::Failed(message))), None);
            }
        };
        let cancelled = stop.token.child_token();
        let (reporter, progress) = Reporter::new();
        let attempt = Attempt {
            job_id: job.id,
            attempt: job.attempt,
            holder: started.holder,
            key: job.key,
            args,
            token: started.token.clone(),
            progress: reporter,
            traceparent: started.log.trace_context().traceparent(),
            cancelled: cancelled.clone(),
        };
        let handling = AssertUnwindSafe(handler.work(attempt)).catch_unwind();
        let mut handling = pin!(async {
            tokio::select! {
                biased;
                handled = handling => handled,
                never = progress::record(&self.context.pool, job.claim(), progress) => match never {},
            }
        });
        let timeout = service.timeout;
        if let Ok(handled) = tokio::time::timeout(timeout, &mut handling).await {
            return (handled, None);
        }
        let timed_out = (!stop.token.is_cancelled()).then_some(timeout);
        cancelled.cancel();
        match tokio::time::timeout(BACKSTOP, handling).await {
            Ok(handled) => (handled, timed_out),
            Err(_) => (Ok(Err(HandlerError::Cancelled)), Some(timeout)),
        }
    }

    /// Settles the handler's result.
    async fn conclude(
        &self,
        service: &Service,
        started: &Started<'_>,
        (handled, timed_out): (Handled, Option<Duration>),
    ) -> Done {
        let done = match handled {
            Ok(Ok(Worked::Later)) => self.await_answer(started.job, service.timeout).await,
            Ok(Ok(Worked::Done(outcome))) if !outcome.fits() => Err(AttemptError::Permanent(format!(
                "the output is larger than {MAX_OUTPUT} bytes"
            ))),
            Ok(Ok(Worked::Done(outcome))) => match check_numbers(&outcome.output) {
                Err(error) => Err(AttemptError::Permanent(format!(
                    "the output cannot be stored: {error}"
                ))),
                Ok(()) => self.settle(started, outcome).await,
            },
            Ok(Err(error)) => Err(AttemptError::from_handler(error, timed_out)),
            // The panic's message is on standard error.
            Err(_) => Err(AttemptError::Panicked),
        };
        done.unwrap_or_else(Done::Failed)
    }

    /// Marks the attempt as answered later. The handler has started its work, so this waits during an outage of the
    /// database.
    async fn await_answer(&self, job: &ClaimedJob, patience: Duration) -> Result<Done, AttemptError> {
        let mut tries = 0;
        let outcome = loop {
            tries += 1;
            let outcome = self.context.pool.with(async |client| {
                Ok::<_, DatabaseError>(attempts::await_answer(client, job.claim(), patience).await?)
            });
            match outcome.await {
                Ok(outcome) => break outcome,
                Err(error) if tries < SETTLE_TRIES => {
                    tracing::warn!(job = job.id, %error, "waiting for the database to record that the handler answers \
                         later");
                    tokio::time::sleep(SETTLE_PAUSE).await;
                }
                Err(error) => {
                    let what = "could not record that the handler answers later";
                    return Err(Internal::new(job.id, what, &error).into());
                }
            }
        };
        match outcome {
            // The endpoint may have answered already, the job was taken over, or the reply to an earlier try was lost.
            AwaitOutcome::Outstanding | AwaitOutcome::AttemptEnded => Ok(Done::Outstanding),
            AwaitOutcome::CancelRequested => Err(AttemptError::Cancelled),
            AwaitOutcome::CannotBePending => Err(AttemptError::Permanent(
                "the endpoint answers later, but the job's unique states lack pending, so it cannot wait"
                    .to_owned(),
            )),
        }
    }

    async fn settle(&self, started: &Started<'_>, outcome: Outcome) -> Result<Done, AttemptError> {
        let job = started.job;
        let success = Success {
            attempt: job.attempt,
            job_created_at: Some(job.created_at),
            output: outcome.output,
            used: outcome.used,
        };
        let _span = started.log.settlement();
        let mut is_unknown = false;
        let mut tries = 0;
        loop {
            tries += 1;
            let ended = Ended {
                job_id: job.id,
                holder: job.found.map(|found| found.holder.id),
                success: Some(success.clone()),
            };
            match self.context.settler.settle(ended).await {
                Ok(Settled::Done { charged }) => return Ok(Done::Completed { charged }),
                // An earlier try with an unknown outcome may have settled this same attempt.
                Ok(Settled::FencedOut) if is_unknown => {
                    return Ok(match self.charged_by(job.id, &success).await {
                        Some(charged) => Done::Completed { charged },
                        None => Done::FencedOut,
                    });
                }
                Ok(Settled::FencedOut) => return Ok(Done::FencedOut),
                // The work is done, so this waits during an outage of the database.
                Err(SettleError::Database(error)) if tries < SETTLE_TRIES => {
                    is_unknown |= matches!(error, DatabaseError::OutcomeUnknown(_));
                    tracing::warn!(job = job.id, %error, "waiting for the database to settle");
                    tokio::time::sleep(SETTLE_PAUSE).await;
                }
                Err(error @ SettleError::Unstorable(_)) => {
                    tracing::warn!(job = job.id, %error, "the output of a job cannot be stored");
                    let what = "the output cannot be stored: it is too large or contains a NUL character";
                    return Err(AttemptError::Permanent(what.to_owned()));
                }
                Err(error) => {
                    return Err(Internal::new(job.id, "the result could not be saved", &error).into());
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
