//! The reservation transaction: one call of `submit_many()`, which decides and writes, in one round trip.

use std::collections::HashSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use postgres_types::ToSql;
use serde_json::Value;
use tokio_postgres::{Client, Row, Transaction};
use uuid::Uuid;

use super::submission::{Answer, NewJob, Quotas, ReserveError, Submission};
use crate::committer::{GroupFailure, Locking, Transact};
use crate::database::session::{BOUND_LOCKS, Connection, statements};
use crate::database::{DatabaseError, Failure, Notifier, Phase};
use crate::holder::kept_text;
use crate::job_metadata::{EXPIRES_IN, REQUEST_ID};
use crate::json::json_bytes;
use crate::meter::{Meter, interned};

const SUBMIT: &str = "SELECT * FROM submit_many($1, $2, $3)";

statements! {
    pub(super) struct ReservationStatements {
        submit: SUBMIT,
    }
}

/// Admits groups of submissions.
pub(super) struct Admit {
    pub(super) notifier: Notifier,
}

impl Transact for Admit {
    type Item = Submission;
    type Output = Answer;
    type Statements = ReservationStatements;

    const MAX_GROUP: usize = 256;
    const MAX_QUEUE: usize = 20_000;
    const MAX_QUEUE_BYTES: usize = 64 * 1024 * 1024;
    const BLOCKED_TIMEOUT: Duration = Duration::from_secs(5);

    fn holder(one: &Submission) -> Option<Uuid> {
        Some(one.holder.id)
    }

    fn id(one: &Submission) -> Uuid {
        one.holder.id
    }

    fn bytes(one: &Submission) -> usize {
        512 + json_bytes(&one.args) + json_bytes(&one.metadata)
    }

    async fn run(
        &self,
        connection: &Connection<ReservationStatements>,
        group: &[&Submission],
        locking: &Locking,
    ) -> Result<Vec<Answer>, GroupFailure> {
        metrics::histogram!("weir_admission_group_size")
            .record(u32::try_from(group.len()).unwrap_or(u32::MAX));
        let rows: Vec<SubmissionRow<'_>> = group.iter().map(|one| SubmissionRow::new(one)).collect();
        let locking = match locking {
            Locking::Wait(_) => "wait",
            Locking::Skip => "skip",
        };
        let params: [&(dyn ToSql + Sync); 3] = [&rows, &locking, &false];
        let ((), rows, ()) = tokio::try_join!(
            biased;
            connection.begin(),
            connection.client.query(&connection.statements.submit, &params),
            connection.commit(),
        )
        .map_err(|error| Failure::of(error, Phase::Committing))?;
        let answers = answers(group, &rows)?;
        record(group, &answers);
        self.notifier
            .notify(answers.iter().filter_map(Answer::claimable_in).collect());
        Ok(answers)
    }
}

/// A submission as a parameter of `submit_many()`.
#[derive(Debug, ToSql)]
#[postgres(name = "submission")]
struct SubmissionRow<'a> {
    holder: Uuid,
    user_id: Option<Uuid>,
    subject: Option<&'a str>,
    service: &'a str,
    meter: Meter,
    kind: &'a str,
    max_attempts: i16,
    args: &'a Value,
    metadata: &'a Value,
    priority: i16,
    amount: i64,
    run_at: Option<Timestamp>,
    idempotency_key: Option<&'a str>,
    request_hash: Option<&'a [u8]>,
    unique_key: Option<&'a [u8]>,
    /// Only SQL callers set tags.
    tags: Option<Vec<String>>,
}

impl<'a> SubmissionRow<'a> {
    fn new(one: &'a Submission) -> Self {
        let idempotency = one.idempotency.as_ref();
        Self {
            holder: one.holder.id,
            user_id: one.holder.user_id,
            subject: one.subject.as_ref().and_then(kept_text),
            service: &one.service,
            meter: one.meter,
            kind: &one.kind,
            max_attempts: one.max_attempts,
            args: &one.args,
            metadata: &one.metadata,
            priority: one.priority,
            amount: one.amount,
            run_at: one.run_at,
            idempotency_key: idempotency.map(|idempotency| idempotency.key.as_str()),
            request_hash: idempotency.map(|idempotency| idempotency.request_hash.as_slice()),
            unique_key: one.unique_key.as_deref(),
            tags: None,
        }
    }
}

/// The answers in the group's order. Fails if accounts were locked; nothing was written then.
fn answers(group: &[&Submission], rows: &[Row]) -> Result<Vec<Answer>, GroupFailure> {
    let mut answers: Vec<Option<Answer>> = Vec::new();
    answers.resize_with(group.len(), || None);
    let mut locked = HashSet::new();
    for row in rows {
        let index = member(row);
        match row.get("outcome") {
            "locked" => {
                locked.insert(index);
            }
            outcome => answers[index] = Some(answer(group[index], row, outcome)),
        }
    }
    if !locked.is_empty() {
        let locked = locked.into_iter().map(|index| (index, group[index].holder.id));
        return Err(GroupFailure::NotLocked(locked.collect()));
    }
    let answers: Option<Vec<Answer>> = answers.into_iter().collect();
    answers.ok_or_else(|| Failure::Conflict(DatabaseError::Contended).into())
}

/// The index in the group of a row's submission.
fn member(row: &Row) -> usize {
    let member: i32 = row.get("member");
    usize::try_from(member - 1).unwrap_or_default()
}

fn answer(one: &Submission, row: &Row, outcome: &str) -> Answer {
    let quota = Quotas::from_row(row, row.get("added"), row.get("drawn"));
    match (outcome, quota) {
        ("repeated", quota) => Answer::Repeated {
            job_id: row.get("job_id"),
            quota,
        },
        ("folded", quota) => Answer::Folded {
            job_id: row.get("job_id"),
            quota,
        },
        ("key_reused", _) => Answer::KeyReused,
        ("over_quota", Some(quota)) => {
            let spans: Vec<&str> = row.get("full_spans");
            Answer::OverQuota {
                full: quota.full(&spans),
                quota,
            }
        }
        ("too_many_waiting", quota) => Answer::TooManyWaiting {
            most: row.get::<_, i32>("max_waiting").unsigned_abs(),
            quota,
        },
        ("admitted" | "parked" | "scheduled", quota) => {
            let job = NewJob {
                id: row.get("job_id"),
                queue: row.get("queue"),
                plan: row.get::<_, Option<&str>>("tier").map(interned),
                has_slot: outcome == "admitted",
                is_lendable: row.get("is_lendable"),
                run_at: one.run_at,
                reserved: row.get("reserved"),
                created_at: row.get("created_at"),
                expires_at: expires_at(one, row.get("created_at")),
            };
            Answer::Accepted { job, quota }
        }
        // Only an account with a plan is over its quota.
        (_, quota) => Answer::TooLarge { quota },
    }
}

/// When the job of a submission is cancelled if it still waits. SQL: `submit_many`.
fn expires_at(one: &Submission, created_at: Timestamp) -> Option<Timestamp> {
    let seconds = one.metadata.get(EXPIRES_IN).and_then(Value::as_f64)?;
    let after = SignedDuration::try_from_secs_f64(seconds).ok()?;
    one.run_at.unwrap_or(created_at).checked_add(after).ok()
}

/// Admits one submission inside the caller's transaction: the job exists if, and only if, the caller commits. Nothing is
/// counted or logged. Workers find the job within 50 ms of the commit. To wake them sooner, call [`Database::notify`]
/// after it.
///
/// The holder's row stays locked until the transaction ends, so commit soon: submissions of the same holder wait.
///
/// [`Database::notify`]: crate::database::Database::notify
///
/// # Errors
///
/// When the database cannot be used or refuses the arguments. The transaction can then only be rolled back.
///
/// # Examples
///
/// `examples/own_transaction.rs` inserts a row of the product's and submits its job, both or neither:
///
/// ```no_run
#[doc = include_str!("../../examples/own_transaction.rs")]
/// ```
pub async fn reserve(transaction: &Transaction<'_>, submission: &Submission) -> Result<Answer, ReserveError> {
    let mut answers = reserve_all(transaction, &[submission]).await?;
    Ok(answers.remove(0))
}

/// Admits several submissions in one transaction, all or none, as [`reserve_all`] does, and commits. `read` runs in the
/// same transaction and reads other data for the answer. If it fails, nothing is reserved. It is not called if the
/// submissions are refused.
///
/// # Errors
///
/// As [`reserve`], and the errors of `read`. After [`DatabaseError::OutcomeUnknown`], the jobs may exist.
pub async fn submit_all<T: Default, E: From<ReserveError>>(
    client: &mut Client,
    group: &[&Submission],
    read: impl AsyncFnOnce(&Transaction<'_>, &[Answer]) -> Result<T, E>,
) -> Result<(Vec<Answer>, T), E> {
    let transaction = client.transaction().await.map_err(ReserveError::from)?;
    let bounded = transaction.batch_execute(BOUND_LOCKS).await;
    bounded.map_err(ReserveError::from)?;
    let answers = reserve_all(&transaction, group).await?;
    if answers.iter().any(Answer::is_refusal) {
        transaction.rollback().await.map_err(ReserveError::from)?;
        return Ok((answers, T::default()));
    }
    let read = read(&transaction, &answers).await?;
    let committed = transaction.commit().await;
    committed.map_err(|error| refusal(Failure::of(error, Phase::Committing).into_error()))?;
    Ok((answers, read))
}

/// Admits several submissions inside the caller's transaction, all or none. If one is over the quota, or reuses an
/// `Idempotency-Key` with another request, its refusal is the only answer, and the caller rolls back. The quota is then
/// the one before all of them. `full` lists the windows without room for all submissions of the refused one's account.
///
/// # Errors
///
/// As [`reserve`].
pub async fn reserve_all(
    transaction: &Transaction<'_>,
    group: &[&Submission],
) -> Result<Vec<Answer>, ReserveError> {
    let rows: Vec<SubmissionRow<'_>> = group.iter().map(|one| SubmissionRow::new(one)).collect();
    let answered = transaction.query(SUBMIT, &[&rows, &"wait", &true]).await;
    let rows = answered.map_err(|error| refusal(Failure::of(error, Phase::Open).into_error()))?;
    if let Some(last) = rows.last() {
        let answer = answer(group[member(last)], last, last.get("outcome"));
        if answer.is_refusal() {
            return Ok(vec![answer]);
        }
    }
    answers(group, &rows).map_err(|_| DatabaseError::Locked.into())
}

/// If PostgreSQL cannot store a value, the caller must change it. Every other error is internal.
pub(super) fn refusal(error: DatabaseError) -> ReserveError {
    match error.unstorable() {
        Some(reason) => ReserveError::Unstorable(reason),
        None => error.into(),
    }
}

/// Logs and counts the committed answers.
fn record(group: &[&Submission], answers: &[Answer]) {
    for (one, answer) in group.iter().zip(answers) {
        let (meter, amount) = (one.meter.as_str(), one.amount);
        let user = one.holder.user_id.map(tracing::field::display);
        let request_id = one.metadata.get(REQUEST_ID).and_then(serde_json::Value::as_str);
        let rejected = |reason: &'static str| {
            metrics::counter!("weir_rejections_total", "meter" => meter, "reason" => reason).increment(1);
        };
        match answer {
            Answer::Accepted { job, .. } => {
                let parked = !job.has_slot && job.run_at.is_none();
                let decision = match (job.has_slot, job.run_at) {
                    (true, _) => "admitted",
                    (false, None) => "parked",
                    (false, Some(_)) => "scheduled",
                };
                metrics::counter!("weir_reservations_total", "meter" => meter, "decision" => decision)
                    .increment(1);
                crate::access_log!(
                    false,
                    job = job.id,
                    user,
                    request_id,
                    meter,
                    amount,
                    parked,
                    "reserved"
                );
            }
            Answer::OverQuota { .. } => {
                rejected("over_quota");
                crate::access_log!(false, user, request_id, meter, amount, "rejected: over quota");
            }
            Answer::TooLarge { .. } => {
                rejected("too_large");
                crate::access_log!(
                    false,
                    user,
                    request_id,
                    meter,
                    amount,
                    "rejected: the amount is too large"
                );
            }
            Answer::TooManyWaiting { .. } => {
                rejected("too_many_waiting");
                crate::access_log!(false, user, request_id, meter, "rejected: too many jobs wait");
            }
            Answer::KeyReused => {
                rejected("key_reused");
                crate::access_log!(
                    false,
                    user,
                    request_id,
                    meter,
                    "rejected: the Idempotency-Key was used with another request"
                );
            }
            // The job was reserved under another request id. This line names it.
            Answer::Repeated { job_id, .. } | Answer::Folded { job_id, .. } => {
                crate::access_log!(
                    false,
                    job = job_id,
                    user,
                    request_id,
                    meter,
                    "answered with an earlier job"
                );
            }
        }
    }
}
