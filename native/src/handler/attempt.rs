//! The input and the result of a handler.

use std::time::Duration;

use async_trait::async_trait;
use secrecy::SecretString;
use serde_json::{Map, Number, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use weir_ledger::attempts::Progress;
use weir_ledger::database::DatabaseError;
use weir_ledger::holder::Holder;

/// Maximum size of an output as JSON, in bytes. A larger one fails the job.
pub const MAX_OUTPUT: usize = 4 * 1024 * 1024;

/// One attempt at one job.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// River's job id.
    pub job_id: i64,
    /// The attempt's number, from 1.
    pub attempt: i16,
    /// The holder that it counts against; `None` for a job without an owner.
    pub holder: Option<Holder>,
    /// The job's key outside of the database. All attempts of the job share it, and no other job has it in any copy of
    /// the database. After a failover, `job_id` may belong to another job.
    pub key: Uuid,
    /// The job's arguments.
    pub args: Map<String, Value>,
    /// The token that authenticates an endpoint that answers later; `None` when no secret is set.
    pub token: Option<SecretString>,
    /// Receives progress reports.
    pub progress: Reporter,
    /// The attempt's position in its trace (W3C Trace Context), for requests that it makes; `None` when traces are not
    /// exported.
    pub traceparent: Option<String>,
    /// Cancelled when the attempt should stop: a timeout, a cancellation, or the process's end.
    pub cancelled: CancellationToken,
}

/// Receives progress reports for the job's owner. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Reporter(Option<watch::Sender<Option<Progress>>>);

impl Reporter {
    /// A reporter with a channel that a task records. Of several pending reports, only the last is kept.
    #[must_use]
    pub fn new() -> (Self, watch::Receiver<Option<Progress>>) {
        let (sender, receiver) = watch::channel(None);
        (Self(Some(sender)), receiver)
    }

    /// Reports the attempt's progress.
    pub fn report(&self, progress: Progress) {
        if let Some(sender) = &self.0 {
            sender.send_replace(Some(progress));
        }
    }
}

/// The result of a successful attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The job's output.
    pub output: Value,
    /// The used part of its reservation, in the meter's unit; `None` means all of it.
    pub used: Option<i64>,
}

impl Outcome {
    /// The outcome with this output. A number `used` in it states the amount that the attempt used.
    ///
    /// # Errors
    ///
    /// [`HandlerError::Permanent`] when `used` is not an integer of at least 0. Charging the whole reservation or
    /// nothing would be an unnoticed guess.
    pub fn from_output(output: Value) -> Result<Self, HandlerError> {
        let used = match output.get("used") {
            Some(Value::Number(number)) => Some(whole(number).ok_or_else(|| {
                HandlerError::Permanent(format!(
                    "\"used\" in the output is {number}, but must be a whole number of 0 or more"
                ))
            })?),
            _ => None,
        };
        Ok(Self { output, used })
    }

    /// Whether the output is within [`MAX_OUTPUT`].
    #[must_use]
    pub fn fits(&self) -> bool {
        let mut left = Left(MAX_OUTPUT);
        serde_json::to_writer(&mut left, &self.output).is_ok()
    }
}

/// An integer in any notation, because many languages write 3 as 3.0.
fn whole(number: &Number) -> Option<i64> {
    match number.as_i64() {
        Some(whole) => Some(whole),
        // A number above the maximum that can be reserved counts as the maximum.
        None => number
            .as_f64()
            .filter(|float| float.fract() == 0.0)
            .map(|float| float as i64),
    }
    .filter(|whole| *whole >= 0)
}

/// Counts down the bytes written, and fails when there are too many. Stores none of them.
struct Left(usize);

impl std::io::Write for Left {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self
            .0
            .checked_sub(bytes.len())
            .ok_or(std::io::ErrorKind::FileTooLarge)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The result of an attempt that did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Worked {
    /// The work is done.
    Done(Outcome),
    /// The owner of the attempt's token reports the result later.
    Later,
}

impl From<Outcome> for Worked {
    fn from(outcome: Outcome) -> Self {
        Self::Done(outcome)
    }
}

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
pub enum HandlerError {
    /// A retry may succeed.
    #[error("{0}")]
    Failed(String),
    /// A retry may succeed, but not before that time has passed.
    #[error("{message}")]
    RetryAfter {
        /// The reason.
        message: String,
        /// The minimum wait.
        after: Duration,
    },
    /// No retry can succeed; the job is over.
    #[error("{0}")]
    Permanent(String),
    /// It stopped because its token was cancelled.
    #[error("cancelled")]
    Cancelled,
}

/// The job's owner reads which step failed, and the log contains the reason.
impl From<DatabaseError> for HandlerError {
    fn from(error: DatabaseError) -> Self {
        tracing::warn!(%error, "a handler could not use the database");
        Self::Failed("the database was unavailable".to_owned())
    }
}

/// Why a submission was rejected.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The service cannot use the arguments. The text states what it expects.
    #[error("{0}")]
    Arguments(String),
    /// The arguments could not be checked, because the database was unavailable.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// Does the work of one job kind.
#[async_trait]
pub trait Handler: Send + Sync {
    /// Checks a submission's arguments and returns the maximum amount that the job may use.
    async fn reserve(&self, holder: Holder, args: &Map<String, Value>) -> Result<i64, Refusal>;

    /// Works one attempt. May run more than once for a job, possibly on another machine.
    async fn work(&self, attempt: Attempt) -> Result<Worked, HandlerError>;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn used(output: Value) -> Result<Option<i64>, String> {
        match Outcome::from_output(output) {
            Ok(outcome) => Ok(outcome.used),
            Err(HandlerError::Permanent(message)) => Err(message),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_used_amount_is_an_integer_in_any_notation() {
        for (number, wanted) in [
            (json!({ "used": 3 }), Some(3)),
            (json!({ "used": 3.0 }), Some(3)),
            (json!({ "used": 0 }), Some(0)),
            (json!({ "used": -0.0 }), Some(0)),
            (json!({ "used": 1e30 }), Some(i64::MAX)),
            (json!({ "used": u64::MAX }), Some(i64::MAX)),
            (json!({ "used": null }), None),
            (json!({ "used": "2" }), None),
            (json!([3]), None),
            (json!(3), None),
        ] {
            assert_eq!(used(number.clone()), Ok(wanted), "{number}");
        }
    }

    #[test]
    fn an_invalid_used_amount_is_an_error() {
        for number in [json!(2.5), json!(-1), json!(-3.0), json!(-1e30)] {
            let refused = used(json!({ "used": number })).unwrap_err();
            assert!(
                refused.contains("must be a whole number of 0 or more"),
                "{refused}"
            );
        }
    }
}
