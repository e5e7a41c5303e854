//! Attempts whose handler answers later: begun by a process of Weir's, and ended by whoever has the attempt's token.
//!
//! While the answer is outstanding the job is River's `pending`, "waits for something outside": no River client claims it,
//! rescues it, or writes an outcome over it, whichever process ends meanwhile. It keeps its slot and its quota. What ends
//! the attempt makes it run again in the transaction that ends it, by the functions that other languages have.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, GenericClient, IsolationLevel, Row, Transaction};

use crate::database::{ConnectionPool, DatabaseError, FromDatabase, PreparedClient, unstorable};

/// How many attempts one look for silent ones returns.
const MAX_SILENT: i64 = 200;

/// How long one look takes attempts back. The maintenance that comes after it waits meanwhile, and the next look goes on.
const MAX_LOOK: Duration = Duration::from_millis(500);

/// How long taking back an attempt waits for the lock of its holder. The next round looks again.
const TAKE_BACK_PATIENCE: &str = "SET LOCAL lock_timeout = '20ms'";

/// One attempt at a job, and no other one.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// River's job id.
    pub job_id: i64,
    /// As `claim_of()` has it in the database, and [`claim_of`] here.
    pub claim: &'a str,
    /// When the job was created. After a failover, its id may belong to another job.
    pub created_at: Timestamp,
}

/// Which attempt at a job it is: its number, and how often the job was claimed. The number alone does not tell, since an
/// attempt that its process's end broke off is begun again under the same one.
#[must_use]
pub fn claim_of(attempt: i32, claims: usize) -> String {
    format!("{attempt}.{claims}")
}

/// What became of a wish to answer later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandedOver {
    /// The answer is outstanding.
    Outstanding,
    /// The handler, or somebody else, has ended the attempt before.
    Over,
    /// Somebody wants the job to be cancelled, and it still runs.
    Cancelled,
    /// Its unique key does not count while it is pending, and it still runs.
    CannotWait,
}

/// Why an attempt is told nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The job was cancelled.
    Cancelled,
    /// The job has ended otherwise, or is gone.
    Ended,
    /// The attempt was taken back, and the job is tried again.
    TakenBack,
}

/// Why what an attempt says is not taken.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// It is not under way.
    #[error("the attempt is over")]
    Over(Over),
    /// It cannot be right. The text says what is wanted.
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

/// How far an attempt is.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// From 0 to 1.
    pub fraction: f64,
    /// For people.
    pub message: Option<String>,
}

impl Progress {
    /// The longest message, in bytes.
    pub const MAX_MESSAGE: usize = 1000;

    /// Whether it is one.
    ///
    /// # Errors
    ///
    /// What is wanted.
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

/// How an attempt has failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What went wrong, for the job's owner.
    pub error: String,
    /// When it is to be tried again; `None` leaves it to the service.
    pub retry_at: Option<Timestamp>,
    /// Whether trying again will not help.
    pub is_permanent: bool,
}

/// How much quota an attempt asks for.
#[derive(Clone, Copy, Debug)]
pub enum Needs {
    /// So much more than it has.
    More(i64),
    /// So much in all. Whoever does not know whether an answer was lost says it again, and it is reserved once.
    Total(i64),
}

/// What more quota an attempt got.
#[derive(Clone, Debug)]
pub struct Extended {
    /// Whether there was room.
    pub is_extended: bool,
    /// The billing period's quota now.
    pub quota: Option<Value>,
}

/// Makes a running attempt one whose handler answers later, and may say nothing for that long.
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

/// An attempt says that it is alive, and how far it is. Returns until when it must say something again; `None` while its
/// process waits for the handler.
///
/// # Errors
///
/// When it is not under way, the progress is none, or the database cannot be used.
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

/// Completes the job as this attempt's, charges `used` or all that was reserved, and returns what was charged. Saying so
/// again changes nothing and returns the same.
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

/// Records that the attempt has failed. Returns what becomes of the job: `retry`, `discarded` or `cancelled`.
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
/// When the attempt is not under way, the amount is none, or the database cannot be used.
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
        // A job of nobody's has nothing that could be extended.
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
    /// What becomes of the job: `retry`, `discarded` or `cancelled`.
    pub outcome: String,
}

/// Takes back the attempts whose handler has reported nothing for too long, each in a transaction of its own: a holder that
/// somebody has locked keeps no other's from being taken back, and is looked at again. `each` is told of every one, and of
/// what could not be done.
///
/// # Errors
///
/// When the database cannot be asked which there are.
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
    // The functions update the counters, and a sign of life changes none.
    transaction
        .batch_execute("SET LOCAL weir.counters = 'kept'")
        .await?;
    Ok(transaction)
}

/// As a settlement has it: first the holder, then the job.
async fn lock_holder(transaction: &Transaction<'_>, job_id: i64) -> Result<(), Error> {
    transaction
        .execute("SELECT lock_holder_of_job($1)", &[&job_id])
        .await?;
    Ok(())
}

/// The number of the attempt, which runs again; `None` when it is not under way.
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
        // No attempt is left for a moment, so that the job is at its end.
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

/// Hears an attempt: its number, and until when it must say something again. `None` when it is not under way.
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

/// What became of the job, and what was charged if this attempt has completed it.
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
