//! The reservation transaction, in two round trips: lock and read; then, once [`Account::decide`] has decided,
//! write and commit.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_postgres::error::SqlState;
use uuid::Uuid;
use weir_policy::tier::{SlotLimits, Tier};

use super::group::Waiting;
use super::{Answer, ReserveError, Submission, decide, read, write};
use crate::database::{Database, DatabaseError, Kept, prepared};
use crate::service::EventType;

/// What the transaction decides by, besides the database.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How many slots a holder has; `None` parks nobody.
    pub slot_limits: Option<SlotLimits>,
    /// How long a reservation lives unless it is renewed.
    pub ttl: Duration,
}

impl Rules {
    /// The slots of a holder: a user of that tier (unknown counts as Free), or an anonymous address.
    pub(crate) fn slots(&self, is_user: bool, tier: Option<Tier>) -> Option<u32> {
        let limits = self.slot_limits?;
        Some(if is_user {
            limits.of(tier.unwrap_or_default())
        } else {
            limits.anonymous
        })
    }
}

/// Owns the connection over which groups are admitted.
pub(super) struct Desk {
    connection: Kept<Connection>,
    rules: Arc<Rules>,
}

prepared! {
    pub(super) struct Connection {
        lock: include_str!("../sql/reserve_lock.sql"),
        read: include_str!("../sql/reserve_read.sql"),
        ids: "SELECT nextval('river_job_id_seq') FROM generate_series(1, $1::int)",
        earlier: include_str!("../sql/reserve_earlier.sql"),
        forget: include_str!("../sql/reserve_forget.sql"),
        live: include_str!("../sql/reserve_live.sql"),
        jobs: include_str!("../sql/reserve_jobs.sql"),
        tickets: include_str!("../sql/reserve_tickets.sql"),
        submissions: include_str!("../sql/reserve_submissions.sql"),
        slots: include_str!("../sql/reserve_slots.sql"),
        balances: include_str!("../sql/reserve_balances.sql"),
        notify: include_str!("../sql/notify_insert.sql"),
        provision: include_str!("../sql/provision.sql"),
    }
}

/// A failure, and whether the transaction may simply be run again.
enum Failure {
    /// Nothing was written, or PostgreSQL itself rolled back and says that another try may work.
    Again(ReserveError),
    /// Somebody's rows are not there yet. They are made outside of the transaction, and it is run again.
    FirstContact,
    Final(ReserveError),
}

const MOST_TRIES: usize = 4;

impl Desk {
    pub(super) fn new(database: Database, rules: Arc<Rules>) -> Self {
        Self {
            connection: Kept::new(database),
            rules,
        }
    }

    /// Admits the group and answers everybody in it.
    pub(super) async fn serve(&mut self, group: Vec<Waiting>) {
        let (submissions, answers): (Vec<Submission>, Vec<oneshot::Sender<_>>) =
            group.into_iter().map(|one| (one.submission, one.answer)).unzip();
        match self.admit(&submissions).await {
            Ok(results) => {
                for (answer, result) in answers.into_iter().zip(results) {
                    // Nobody waits any more: the job is there all the same.
                    let _ = answer.send(Ok(result));
                }
            }
            // One bad submission must fail alone.
            Err(error) if submissions.len() > 1 && !is_outage(&error) => {
                for (answer, submission) in answers.into_iter().zip(&submissions) {
                    let result = self.admit(std::slice::from_ref(submission)).await;
                    let _ = answer.send(result.map(|mut one| one.remove(0)));
                }
            }
            Err(error) => {
                tracing::warn!(%error, submissions = submissions.len(), "a group could not be admitted");
                for answer in answers {
                    let _ = answer.send(Err(error.clone()));
                }
            }
        }
    }

    async fn admit(&mut self, group: &[Submission]) -> Result<Vec<Answer>, ReserveError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let connection = self.connection.get().await?;
            let failure = match transact(connection, &self.rules, group).await {
                Ok(answers) => return Ok(answers),
                Err(failure) => failure,
            };
            self.connection.roll_back().await;
            match failure {
                Failure::FirstContact if tries < MOST_TRIES => {
                    let provisioned = provision(self.connection.get().await?, group).await;
                    if let Err(Failure::Final(error)) = provisioned.map_err(|error| classify(error, true)) {
                        return Err(error);
                    }
                }
                Failure::FirstContact => return Err(DatabaseError::Contended.into()),
                Failure::Again(_) if tries < MOST_TRIES => {}
                Failure::Again(error) | Failure::Final(error) => return Err(error),
            }
        }
    }
}

fn is_outage(error: &ReserveError) -> bool {
    match error {
        ReserveError::Database(DatabaseError::Postgres(error)) => error.as_db_error().is_none(),
        ReserveError::Database(_) | ReserveError::Overloaded => true,
        ReserveError::Unstorable(_) => false,
    }
}

fn classify(error: tokio_postgres::Error, nothing_written: bool) -> Failure {
    let code = error.code().cloned();
    match code {
        // Lost against another transaction, which PostgreSQL settles by ending one of the two.
        Some(
            SqlState::T_R_DEADLOCK_DETECTED
            | SqlState::T_R_SERIALIZATION_FAILURE
            | SqlState::UNIQUE_VIOLATION,
        ) => Failure::Again(error.into()),
        Some(SqlState::UNTRANSLATABLE_CHARACTER | SqlState::INVALID_TEXT_REPRESENTATION) => {
            let reason = error
                .as_db_error()
                .map_or_else(String::new, |db| db.message().to_owned());
            Failure::Final(ReserveError::Unstorable(reason))
        }
        // The connection broke before anything was written.
        None if nothing_written => Failure::Again(error.into()),
        _ => Failure::Final(error.into()),
    }
}

async fn transact(
    connection: &Connection,
    rules: &Rules,
    group: &[Submission],
) -> Result<Vec<Answer>, Failure> {
    let Some(mut snapshot) = read::lock_and_read(connection, rules, group)
        .await
        .map_err(|error| classify(error, true))?
    else {
        return Err(Failure::FirstContact);
    };
    let decided = decide::decide(group, &mut snapshot);
    write::write(connection, rules, group, &snapshot, &decided)
        .await
        .map_err(|error| classify(error, false))?;
    decide::record(group, &decided);
    Ok(decided.into_iter().map(decide::answer).collect())
}

/// Makes the rows that a first submission of a user or an address needs.
async fn provision(connection: &Connection, group: &[Submission]) -> Result<(), tokio_postgres::Error> {
    let holders: Vec<Uuid> = group.iter().map(|one| one.holder.id).collect();
    let event_types: Vec<EventType> = group.iter().map(|one| one.event_type).collect();
    let users: Vec<Option<Uuid>> = group.iter().map(|one| one.holder.user_id).collect();
    connection
        .client
        .execute(&connection.provision, &[&holders, &event_types, &users])
        .await?;
    Ok(())
}
