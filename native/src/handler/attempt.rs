//! What a handler is given, and what it gives back.

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

/// The most bytes of an output, as JSON. A larger one ends the job.
pub const MAX_OUTPUT: usize = 4 * 1024 * 1024;

/// One attempt at one job.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// River's job id.
    pub job_id: i64,
    /// Which attempt it is, from 1.
    pub attempt: i16,
    /// Whom it is counted against; `None` for a job that belongs to nobody.
    pub holder: Option<Holder>,
    /// The job's key for the world outside of the database: the same for all its attempts, and no other job's in any
    /// copy of the database. After a failover, `job_id` may belong to another job.
    pub key: Uuid,
    /// The job's arguments.
    pub args: Map<String, Value>,
    /// What an endpoint that answers later proves itself with; `None` where no secret is set.
    pub token: Option<SecretString>,
    /// Takes how far it is.
    pub progress: Reporter,
    /// The attempt's place in its trace (W3C Trace Context), for what it calls; `None` when traces are not exported.
    pub traceparent: Option<String>,
    /// Cancelled when the attempt should stop: a timeout, a cancellation, or the process's end.
    pub cancelled: CancellationToken,
}

/// Takes how far an attempt is, for the job's owner. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Reporter(Option<watch::Sender<Option<Progress>>>);

impl Reporter {
    /// One whose words somebody writes down; of many, only the last.
    #[must_use]
    pub fn new() -> (Self, watch::Receiver<Option<Progress>>) {
        let (sender, receiver) = watch::channel(None);
        (Self(Some(sender)), receiver)
    }

    /// Says how far the attempt is.
    pub fn report(&self, progress: Progress) {
        if let Some(sender) = &self.0 {
            sender.send_replace(Some(progress));
        }
    }
}

/// What a successful attempt made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The job's output.
    pub output: Value,
    /// What it used of its reservation, in the meter's unit; `None` means all of it.
    pub used: Option<i64>,
}

impl Outcome {
    /// Of an output in which a number `used` says what the attempt used.
    ///
    /// # Errors
    ///
    /// [`HandlerError::Permanent`] when that is no whole number of 0 or more. To charge all of the reservation, or
    /// nothing, would be a guess that nobody notices.
    pub fn of_output(output: Value) -> Result<Self, HandlerError> {
        let used = match output.get("used") {
            Some(Value::Number(said)) => Some(whole(said).ok_or_else(|| {
                HandlerError::Permanent(format!(
                    "\"used\" in the output is {said}, and must be a whole number of 0 or more"
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

/// A number that is whole, in whatever way it is written: many languages know no other than 3.0.
fn whole(number: &Number) -> Option<i64> {
    match number.as_i64() {
        Some(whole) => Some(whole),
        // What is more than anybody can reserve is the most.
        None => number
            .as_f64()
            .filter(|float| float.fract() == 0.0)
            .map(|float| float as i64),
    }
    .filter(|whole| *whole >= 0)
}

/// Counts bytes down, and refuses those that are too many. Keeps none of them.
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

/// How an attempt went well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Worked {
    /// The work is done.
    Done(Outcome),
    /// Whoever has the attempt's token says later how it went.
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
    /// It may succeed when tried again.
    #[error("{0}")]
    Failed(String),
    /// It may succeed when tried again, but not before that time has passed.
    #[error("{message}")]
    RetryAfter {
        /// What went wrong.
        message: String,
        /// How long to wait at least.
        after: Duration,
    },
    /// It will never succeed; the job is over.
    #[error("{0}")]
    Permanent(String),
    /// It was told to stop and did.
    #[error("cancelled")]
    Cancelled,
}

/// The job's owner reads what failed, and the log has why.
impl From<DatabaseError> for HandlerError {
    fn from(error: DatabaseError) -> Self {
        tracing::warn!(%error, "a handler could not use the database");
        Self::Failed("the database could not be used".to_owned())
    }
}

/// Why a submission is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The arguments are not what the service can use. The text says what it wants.
    #[error("{0}")]
    Arguments(String),
    /// They could not be checked, because the database could not be asked.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// Does the work of one job kind.
#[async_trait]
pub trait Handler: Send + Sync {
    /// Checks a submission's arguments and says how much the job may use at most.
    async fn reserve(&self, holder: Holder, args: &Map<String, Value>) -> Result<i64, Refusal>;

    /// The same for all jobs of a batch, in their order; or which of them is refused, and why. One that looks something
    /// up does so once for all of them.
    async fn reserve_all(
        &self,
        holder: Holder,
        all: &[Map<String, Value>],
    ) -> Result<Vec<i64>, (usize, Refusal)> {
        let mut amounts = Vec::with_capacity(all.len());
        for (index, args) in all.iter().enumerate() {
            let amount = self.reserve(holder, args).await;
            amounts.push(amount.map_err(|refusal| (index, refusal))?);
        }
        Ok(amounts)
    }

    /// Works one attempt. May be called more than once for a job, also on another machine.
    async fn work(&self, attempt: Attempt) -> Result<Worked, HandlerError>;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn used(output: Value) -> Result<Option<i64>, String> {
        match Outcome::of_output(output) {
            Ok(outcome) => Ok(outcome.used),
            Err(HandlerError::Permanent(said)) => Err(said),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_an_output_says_is_used_is_whole_in_whatever_way_it_is_written() {
        for (said, wanted) in [
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
            assert_eq!(used(said.clone()), Ok(wanted), "{said}");
        }
    }

    #[test]
    fn a_number_that_cannot_be_what_was_used_is_not_guessed_at() {
        for said in [json!(2.5), json!(-1), json!(-3.0), json!(-1e30)] {
            let refused = used(json!({ "used": said })).unwrap_err();
            assert!(
                refused.contains("must be a whole number of 0 or more"),
                "{refused}"
            );
        }
    }
}
