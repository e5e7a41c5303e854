//! Attempts with a handler that answers later: a Weir process starts them, and a caller with the attempt's token ends
//! them.
//!
//! While the answer is outstanding, the job is in River's state `pending`, "waits for something external". No River
//! client claims it, rescues it or overwrites its outcome, even if a process ends meanwhile. The job keeps its slot and
//! its quota. The transaction that ends the attempt first makes it run again, and uses the functions for other
//! languages.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, GenericClient, IsolationLevel, Row, Transaction};

use crate::database::{ConnectionPool, DatabaseError, FromDatabase, PreparedClient, unstorable};

/// The maximum number of silent attempts that one query returns.
const MAX_SILENT: i64 = 200;

/// How long one round takes attempts back. The next maintenance task waits meanwhile, and the next round continues.
const MAX_LOOK: Duration = Duration::from_millis(500);

/// How long a takeover waits for the lock of the holder. The next round tries again.
const TAKE_BACK_PATIENCE: &str = "SET LOCAL lock_timeout = '20ms'";

/// One attempt at a job, and no other one.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// River's job id.
    pub job_id: i64,
    /// The claim, as returned by `claim_of()` in the database and by [`claim_of`] here.
    pub claim: &'a str,
    /// When the job was created. After a failover, its id may belong to another job.
    pub created_at: Timestamp,
}

/// Identifies an attempt at a job by its number and by how often the job was claimed. The number alone is not enough:
/// after a process dies, its attempt starts again under the same number.
#[must_use]
pub fn claim_of(attempt: i32, claims: usize) -> String {
    format!("{attempt}.{claims}")
}

/// The result of a request to answer later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandedOver {
    /// The answer is outstanding.
    Outstanding,
    /// The attempt has ended already.
    Over,
    /// The job's cancellation was requested. The job still runs.
    Cancelled,
    /// The job's unique key does not count while the job is pending, so the job still runs.
    CannotWait,
}

/// Why an attempt receives no further updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The job was cancelled.
    Cancelled,
    /// The job has ended in another way, or was deleted.
    Ended,
    /// The attempt was taken back, and the job is retried.
    TakenBack,
}

/// Why a report of an attempt is rejected.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// The attempt is not under way.
    #[error("the attempt is over")]
    Over(Over),
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
            Self::Over(_) | Self::Invalid(_) => None,
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
            "a progress has a fraction from 0 to 1, and a message of at most {} bytes",
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
pub enum Needs {
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
pub async fn hand_over(client: &Client, claim: Claim<'_>, patience: Duration) -> Result<HandedOver, Error> {
    let row = client
        .query_opt(
            include_str!("sql/hand_over.sql"),
            &[
                &claim.job_id,
                &claim.claim,
                &patience.as_secs_f64(),
                &claim.created_at,
            ],
        )
        .await?;
    Ok(match row {
        None => HandedOver::Over,
        Some(row) if row.get("handed_over") => HandedOver::Outstanding,
        Some(row) if row.get("is_cancelled") => HandedOver::Cancelled,
        Some(_) => HandedOver::CannotWait,
    })
}

/// Records a sign of life and the progress of an attempt. Returns the deadline of the next report; `None` while a
/// process waits for the handler.
///
/// # Errors
///
/// When the attempt is not under way, the progress is invalid, or the database cannot be used.
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
        None => Err(AttemptError::Over(over(client, claim).await?.0)),
    }
}

/// Completes the job for this attempt, and returns the charge: `used`, or everything that was reserved. A repeated call
/// changes nothing and returns the same.
///
/// # Errors
///
/// When the attempt is not under way, the output cannot be stored, or the database cannot be used.
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
    match over(client, claim).await? {
        (_, Some(charged)) => Ok(charged),
        (over, None) => Err(AttemptError::Over(over)),
    }
}

/// Records that the attempt has failed. Returns the outcome for the job: `retry`, `discarded` or `cancelled`.
///
/// # Errors
///
/// When the attempt is not under way, or the database cannot be used.
pub async fn fail(client: &mut Client, claim: Claim<'_>, failure: &Failure) -> Result<String, AttemptError> {
    let transaction = begin(client).await?;
    let Some(attempt) = resume(&transaction, claim, false).await? else {
        transaction.commit().await?;
        return Err(AttemptError::Over(over(client, claim).await?.0));
    };
    let outcome = record(&transaction, claim.job_id, attempt, failure).await?;
    transaction.commit().await?;
    Ok(outcome)
}

/// Schedules the job again after a pause, as if the attempt had not started. Does nothing when the attempt is over.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn send_back(client: &Client, claim: Claim<'_>, pause: Duration) -> Result<(), Error> {
    let params: [&(dyn ToSql + Sync); 4] = [
        &claim.job_id,
        &claim.claim,
        &pause.as_secs_f64(),
        &claim.created_at,
    ];
    client.execute(include_str!("sql/send_back.sql"), &params).await?;
    Ok(())
}

/// Asks for more quota for an attempt that is under way, which counts as a sign of life.
///
/// # Errors
///
/// When the attempt is not under way, the amount is invalid, or the database cannot be used.
pub async fn extend(client: &mut Client, claim: Claim<'_>, needs: Needs) -> Result<Extended, AttemptError> {
    let transaction = begin(client).await?;
    lock_holder(&transaction, claim.job_id).await?;
    if let Some((attempt, _)) = write_progress(&transaction, claim, None).await? {
        let mut more = match needs {
            Needs::More(more) | Needs::Total(more) => more,
        };
        let reserved = include_str!("sql/reserved.sql");
        if let Needs::Total(total @ 1..) = needs
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
        // A job without an owner has no quota to extend.
        let extended = Extended {
            is_extended: row.get::<_, &str>("outcome") == "extended",
            quota: row.get("quota"),
        };
        transaction.commit().await?;
        return Ok(extended);
    }
    drop(transaction);
    Err(AttemptError::Over(over(client, claim).await?.0))
}

/// An attempt that was taken back, because its handler reported nothing for too long.
#[derive(Clone, Debug)]
pub struct Silent {
    /// River's job id.
    pub job_id: i64,
    /// The outcome for the job: `retry`, `discarded` or `cancelled`.
    pub outcome: String,
}

/// Takes back the attempts without a report for too long, each in a separate transaction. A locked holder does not
/// delay others, and the next round tries it again. Calls `each` for every attempt and every failure.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn take_back_silent(
    look: &PreparedClient,
    pool: &ConnectionPool,
    mut each: impl FnMut(Result<Silent, (i64, AttemptError)>),
) -> Result<(), DatabaseError> {
    let silent = look.query(include_str!("sql/silent.sql"), &[&MAX_SILENT]).await?;
    if silent.is_empty() {
        return Ok(());
    }
    pool.with(async |client| {
        take_back_all(client, silent, &mut each).await;
        Ok(())
    })
    .await
}

async fn take_back_all(
    client: &mut Client,
    silent: Vec<Row>,
    each: &mut impl FnMut(Result<Silent, (i64, AttemptError)>),
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
        match take_back(client, claim, patience).await {
            Ok(None) => {}
            Ok(Some(outcome)) => each(Ok(Silent { job_id, outcome })),
            Err(error) => each(Err((job_id, error))),
        }
        if began.elapsed() >= MAX_LOOK {
            break;
        }
    }
}

async fn take_back(
    client: &mut Client,
    claim: Claim<'_>,
    patience: Duration,
) -> Result<Option<String>, AttemptError> {
    let transaction = begin(client).await?;
    transaction.batch_execute(TAKE_BACK_PATIENCE).await?;
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
    let transaction = client
        .build_transaction()
        .isolation_level(IsolationLevel::ReadCommitted)
        .start()
        .await?;
    // The functions update the counters. A sign of life changes none.
    transaction
        .batch_execute("SET LOCAL weir.counters = 'kept'")
        .await?;
    Ok(transaction)
}

/// Locks the holder first and then the job, as a settlement does.
async fn lock_holder(transaction: &Transaction<'_>, job_id: i64) -> Result<(), Error> {
    transaction
        .execute("SELECT lock_holder_of_job($1)", &[&job_id])
        .await?;
    Ok(())
}

/// Makes the attempt run again, and returns its number; `None` when it is not under way.
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

/// Records a sign of life. Returns the attempt's number and the deadline of the next report; `None` when it is not
/// under way.
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
async fn over<C: GenericClient>(client: &C, claim: Claim<'_>) -> Result<(Over, Option<i64>), Error> {
    let row = client
        .query_opt(
            include_str!("sql/over.sql"),
            &[&claim.job_id, &claim.claim, &claim.created_at],
        )
        .await?;
    let Some(row) = row else {
        return Ok((Over::Ended, None));
    };
    let is_latest: bool = row.get("is_latest");
    Ok(match row.get("state") {
        "cancelled" => (Over::Cancelled, None),
        "completed" => (Over::Ended, is_latest.then(|| row.get("charged"))),
        "discarded" => (Over::Ended, None),
        _ => (Over::TakenBack, None),
    })
}
