//! Attempts with a handler that answers later: a Weir process starts them, and a caller with the attempt's token ends
//! them.
//!
//! While the answer is outstanding, the job is in River's state `pending`, "waits for something external". No River
//! client claims it, rescues it or overwrites its outcome, even if Weir's process ends. The job keeps its slot and its
//! quota. The transaction that ends the attempt first makes it run again, and uses the functions for other languages.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;
use tokio_postgres::{Client, Error, GenericClient, IsolationLevel, Row, Transaction};

use crate::database::{ConnectionPool, DatabaseError, FromDatabase, PreparedClient, unstorable};

/// The maximum number of silent attempts that one query returns.
const MAX_SILENT: i64 = 200;

/// The maximum duration of one round, because the next maintenance task waits for it. The next round continues.
const MAX_ROUND: Duration = Duration::from_millis(500);

/// The lock timeout of a transaction that fails a silent attempt. The next round tries again.
const LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '20ms'";

/// One attempt at a job, and no other one.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// River's job id.
    pub job_id: i64,
    /// The claim, as returned by `claim_of()`: the attempt's number and how often the job was claimed. The number alone is
    /// not enough: after a process dies, its attempt starts again under the same number.
    pub claim: &'a str,
    /// When the job was created. After a failover, its id may belong to another job.
    pub created_at: Timestamp,
}

/// The result of [`await_answer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AwaitOutcome {
    /// The answer is outstanding.
    Outstanding,
    /// The attempt has ended already.
    AttemptEnded,
    /// The job's cancellation was requested. The job still runs.
    CancelRequested,
    /// The job's unique key does not count while the job is pending, so the job still runs.
    CannotBePending,
}

/// Why an attempt receives no further updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The job was cancelled.
    JobCancelled,
    /// The job has ended in another way, or was deleted.
    JobEnded,
    /// Another process took the job over, or the attempt failed, and the job is retried.
    Retried,
}

/// Why a report of an attempt is rejected.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// The attempt is over.
    #[error("the attempt is over")]
    Ended(AttemptEnd),
    /// The report is invalid. The text describes a valid one.
    #[error("{0}")]
    Invalid(String),
    /// The database could not be used.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl FromDatabase for AttemptError {
    fn database(&self) -> Option<&DatabaseError> {
        match self {
            Self::Database(error) => Some(error),
            Self::Ended(_) | Self::Invalid(_) => None,
        }
    }
}

impl From<Error> for AttemptError {
    fn from(error: Error) -> Self {
        match unstorable(&error) {
            Some(reason) => Self::Invalid(reason),
            None => Self::Database(error.into()),
        }
    }
}

/// The progress of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// From 0 to 1.
    pub fraction: f64,
    /// The message for people.
    pub message: Option<String>,
}

impl Progress {
    /// The longest message, in bytes.
    pub const MAX_MESSAGE: usize = 1000;

    /// Checks the progress.
    ///
    /// # Errors
    ///
    /// A description of valid progress.
    pub fn check(&self) -> Result<(), AttemptError> {
        let fits = |message: &String| message.len() <= Self::MAX_MESSAGE;
        if (0.0..=1.0).contains(&self.fraction) && self.message.as_ref().is_none_or(fits) {
            return Ok(());
        }
        Err(AttemptError::Invalid(format!(
            "progress needs a fraction from 0 to 1 and a message of at most {} bytes",
            Self::MAX_MESSAGE
        )))
    }
}

/// The failure of an attempt.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The error message for the job's owner.
    pub error: String,
    /// The time of the next attempt; `None` uses the service's policy.
    pub retry_at: Option<Timestamp>,
    /// Whether a retry is useless.
    pub is_permanent: bool,
}

/// The quota that an attempt asks for.
#[derive(Clone, Copy, Debug)]
pub enum ExtraQuota {
    /// An additional amount.
    More(i64),
    /// A total amount. A caller that lost the answer can repeat the request, and the amount is reserved once.
    Total(i64),
}

/// The result of a request for more quota.
#[derive(Clone, Debug)]
pub struct Extended {
    /// Whether there was room.
    pub is_extended: bool,
    /// The current quota of the billing period.
    pub quota: Option<Value>,
}

/// Marks a running attempt as one with a handler that answers later. The handler must report at least once per
/// `patience`.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn await_answer(
    client: &Client,
    claim: Claim<'_>,
    patience: Duration,
) -> Result<AwaitOutcome, Error> {
    let row = client
        .query_opt(
            include_str!("sql/await_answer.sql"),
            &[
                &claim.job_id,
                &claim.claim,
                &patience.as_secs_f64(),
                &claim.created_at,
            ],
        )
        .await?;
    Ok(match row {
        None => AwaitOutcome::AttemptEnded,
        Some(row) if row.get("is_outstanding") => AwaitOutcome::Outstanding,
        Some(row) if row.get("is_cancelled") => AwaitOutcome::CancelRequested,
        Some(_) => AwaitOutcome::CannotBePending,
    })
}

/// Records a heartbeat and the progress of an attempt. Returns the deadline of the next report; `None` while a
/// process waits for the handler.
///
/// # Errors
///
/// When the attempt is over, the progress is invalid, or the database cannot be used.
pub async fn record_progress(
    client: &mut Client,
    claim: Claim<'_>,
    progress: Option<&Progress>,
) -> Result<Option<Timestamp>, AttemptError> {
    if let Some(progress) = progress {
        progress.check()?;
    }
    let transaction = begin(client).await?;
    let recorded = write_progress(&transaction, claim, progress).await?;
    transaction.commit().await?;
    match recorded {
        Some((_, deadline)) => Ok(deadline),
        None => Err(AttemptError::Ended(attempt_end(client, claim).await?.0)),
    }
}

/// Completes the job for this attempt, and returns the charge: `used`, or everything that was reserved. A repeated call
/// changes nothing and returns the same.
///
/// # Errors
///
/// When the attempt is over, the output cannot be stored, or the database cannot be used.
pub async fn complete(
    client: &mut Client,
    claim: Claim<'_>,
    output: &Value,
    used: Option<i64>,
) -> Result<i64, AttemptError> {
    let transaction = begin(client).await?;
    if let Some(attempt) = resume(&transaction, claim, false).await? {
        let row = transaction
            .query_one(
                "SELECT charged FROM weir_complete($1, $2, $3, $4)",
                &[&claim.job_id, &attempt, output, &used],
            )
            .await?;
        transaction.commit().await?;
        return Ok(row.get("charged"));
    }
    transaction.commit().await?;
    match attempt_end(client, claim).await? {
        (_, Some(charged)) => Ok(charged),
        (end, None) => Err(AttemptError::Ended(end)),
    }
}

/// Records that the attempt has failed. Returns the outcome for the job: `retry`, `discarded` or `cancelled`.
///
/// # Errors
///
/// When the attempt is over, or the database cannot be used.
pub async fn fail(client: &mut Client, claim: Claim<'_>, failure: &Failure) -> Result<String, AttemptError> {
    let transaction = begin(client).await?;
    let Some(attempt) = resume(&transaction, claim, false).await? else {
        transaction.commit().await?;
        return Err(AttemptError::Ended(attempt_end(client, claim).await?.0));
    };
    let outcome = record(&transaction, claim.job_id, attempt, failure).await?;
    transaction.commit().await?;
    Ok(outcome)
}

/// Asks for more quota for a current attempt, which counts as a heartbeat.
///
/// # Errors
///
/// When the attempt is over, the amount is invalid, or the database cannot be used.
pub async fn extend(
    client: &mut Client,
    claim: Claim<'_>,
    extra: ExtraQuota,
) -> Result<Extended, AttemptError> {
    let transaction = begin(client).await?;
    lock_holder(&transaction, claim.job_id).await?;
    if let Some((attempt, _)) = write_progress(&transaction, claim, None).await? {
        let mut more = match extra {
            ExtraQuota::More(more) | ExtraQuota::Total(more) => more,
        };
        let reserved = include_str!("sql/reserved.sql");
        if let ExtraQuota::Total(total @ 1..) = extra
            && let Some(row) = transaction.query_opt(reserved, &[&claim.job_id]).await?
        {
            more = total.saturating_sub(row.get("reserved_amount"));
            if more <= 0 {
                transaction.commit().await?;
                return Ok(Extended {
                    is_extended: true,
                    quota: row.get("quota"),
                });
            }
        }
        let row = transaction
            .query_one(
                "SELECT outcome, quota FROM weir_extend($1, $2, $3)",
                &[&claim.job_id, &attempt, &more],
            )
            .await?;
        if row.get::<_, &str>("outcome") == "cancelled" {
            return Err(AttemptError::Ended(AttemptEnd::JobCancelled));
        }
        // A job without an owner has no quota to extend.
        let extended = Extended {
            is_extended: row.get::<_, &str>("outcome") == "extended",
            quota: row.get("quota"),
        };
        transaction.commit().await?;
        return Ok(extended);
    }
    drop(transaction);
    Err(AttemptError::Ended(attempt_end(client, claim).await?.0))
}

/// An attempt that failed because its handler did not report in time.
#[derive(Clone, Debug)]
pub struct SilentAttempt {
    /// River's job id.
    pub job_id: i64,
    /// The outcome for the job: `retry`, `discarded` or `cancelled`.
    pub outcome: String,
}

/// Fails the attempts with handlers that did not report in time, each in a separate transaction. A locked holder does
/// not delay others, and the next round tries it again. Calls `each` for every attempt and every failure.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn fail_silent_attempts(
    look: &PreparedClient,
    pool: &ConnectionPool,
    mut each: impl FnMut(Result<SilentAttempt, (i64, AttemptError)>),
) -> Result<(), DatabaseError> {
    let silent = look.query(include_str!("sql/silent.sql"), &[&MAX_SILENT]).await?;
    if silent.is_empty() {
        return Ok(());
    }
    pool.with(async |client| {
        fail_each(client, silent, &mut each).await;
        Ok(())
    })
    .await
}

async fn fail_each(
    client: &mut Client,
    silent: Vec<Row>,
    each: &mut impl FnMut(Result<SilentAttempt, (i64, AttemptError)>),
) {
    let began = Instant::now();
    for row in silent {
        let (job_id, claim): (i64, String) = (row.get("job_id"), row.get("claim"));
        let patience = Duration::from_secs_f64(row.get::<_, f64>("patience").max(0.0));
        let claim = Claim {
            job_id,
            claim: &claim,
            created_at: row.get("created_at"),
        };
        match fail_if_silent(client, claim, patience).await {
            Ok(None) => {}
            Ok(Some(outcome)) => each(Ok(SilentAttempt { job_id, outcome })),
            Err(error) => each(Err((job_id, error))),
        }
        if began.elapsed() >= MAX_ROUND {
            break;
        }
    }
}

async fn fail_if_silent(
    client: &mut Client,
    claim: Claim<'_>,
    patience: Duration,
) -> Result<Option<String>, AttemptError> {
    let transaction = begin(client).await?;
    transaction.batch_execute(LOCK_TIMEOUT).await?;
    let Some(attempt) = resume(&transaction, claim, true).await? else {
        transaction.commit().await?;
        return Ok(None);
    };
    let failure = Failure {
        error: format!("the handler reported nothing for {} s", patience.as_secs().max(1)),
        retry_at: None,
        is_permanent: false,
    };
    let outcome = record(&transaction, claim.job_id, attempt, &failure).await?;
    transaction.commit().await?;
    Ok(Some(outcome))
}

async fn begin(client: &mut Client) -> Result<Transaction<'_>, Error> {
    let builder = client.build_transaction();
    builder
        .isolation_level(IsolationLevel::ReadCommitted)
        .start()
        .await
}

/// Locks the holder first and then the job, as a settlement does.
async fn lock_holder(transaction: &Transaction<'_>, job_id: i64) -> Result<(), Error> {
    transaction
        .execute("SELECT lock_holder_of_job($1)", &[&job_id])
        .await?;
    Ok(())
}

/// Makes the attempt run again, and returns its number; `None` when it is over.
async fn resume(
    transaction: &Transaction<'_>,
    claim: Claim<'_>,
    if_silent: bool,
) -> Result<Option<i32>, Error> {
    lock_holder(transaction, claim.job_id).await?;
    let row = transaction
        .query_opt(
            include_str!("sql/resume.sql"),
            &[&claim.job_id, &claim.claim, &if_silent, &claim.created_at],
        )
        .await?;
    Ok(row.map(|row| row.get("attempt")))
}

async fn record(
    transaction: &Transaction<'_>,
    job_id: i64,
    attempt: i32,
    failure: &Failure,
) -> Result<String, Error> {
    let most: Option<i16> = if failure.is_permanent {
        // Sets the job's attempts to the maximum for a moment, so that the failure ends it.
        let sql = "UPDATE river_job j SET max_attempts = j.attempt FROM river_job o \
                   WHERE j.id = $1 AND o.id = j.id RETURNING o.max_attempts";
        Some(transaction.query_one(sql, &[&job_id]).await?.get(0))
    } else {
        None
    };
    let row = transaction
        .query_one(
            "SELECT fail_attempt($1, $2, $3, $4) AS outcome",
            &[&job_id, &attempt, &failure.error, &failure.retry_at],
        )
        .await?;
    if let Some(most) = most {
        let sql = "UPDATE river_job SET max_attempts = $2 WHERE id = $1";
        transaction.execute(sql, &[&job_id, &most]).await?;
    }
    Ok(row.get("outcome"))
}

/// Records a heartbeat. Returns the attempt's number and the deadline of the next report; `None` when it is over.
async fn write_progress(
    transaction: &Transaction<'_>,
    claim: Claim<'_>,
    progress: Option<&Progress>,
) -> Result<Option<(i32, Option<Timestamp>)>, Error> {
    let fraction = progress.map(|progress| progress.fraction);
    let message = progress.and_then(|progress| progress.message.as_deref());
    let row = transaction
        .query_opt(
            include_str!("sql/record_progress.sql"),
            &[
                &claim.job_id,
                &claim.claim,
                &fraction,
                &message,
                &claim.created_at,
            ],
        )
        .await?;
    Ok(row.map(|row| (row.get("attempt"), row.get("deadline_at"))))
}

/// The outcome of the job, and the charge if this attempt has completed it.
async fn attempt_end<C: GenericClient>(
    client: &C,
    claim: Claim<'_>,
) -> Result<(AttemptEnd, Option<i64>), Error> {
    let row = client
        .query_opt(
            include_str!("sql/end_of_attempt.sql"),
            &[&claim.job_id, &claim.claim, &claim.created_at],
        )
        .await?;
    let Some(row) = row else {
        return Ok((AttemptEnd::JobEnded, None));
    };
    let is_latest: bool = row.get("is_latest");
    Ok(match row.get("state") {
        "cancelled" => (AttemptEnd::JobCancelled, None),
        "completed" => (AttemptEnd::JobEnded, is_latest.then(|| row.get("charged"))),
        "discarded" => (AttemptEnd::JobEnded, None),
        _ => (AttemptEnd::Retried, None),
    })
}
