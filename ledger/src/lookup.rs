//! Reservation look-up: the slot and quota of a claimed job, unless this process promoted it just now. One query looks
//! up many jobs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use postgres_types::ToSql;
use uuid::Uuid;

use crate::committer::{Committer, GroupFailure, Locking, Rejection, Transact};
use crate::database::session::{Connection, statements};
use crate::database::{Database, DatabaseError, Failure, Phase};
use crate::holder::Holder;
use crate::meter::Meter;
use crate::settlement::Promoted;

/// The parts of a job's reservation that an attempt needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The account that the job counts against.
    pub holder: Holder,
    /// Its slot and quota.
    pub holds: Holds,
}

/// The slot and quota of a submitted job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// A slot.
    Slot,
    /// Its quota of this meter, which may differ from its service's current meter, and no slot.
    Quota(Meter),
    /// Neither: it was settled, and then made available again. It counted for this meter.
    Nothing(Meter),
}

struct LookUp;

statements! {
    struct LookupStatements {
        reservations: include_str!("lookup.sql"),
    }
}

impl Transact for LookUp {
    type Item = i64;
    type Output = Option<Found>;
    type Statements = LookupStatements;

    const MAX_GROUP: usize = 1000;
    const MAX_QUEUE: usize = 20_000;
    const MAX_QUEUE_BYTES: usize = 20_000 * 1024;
    const BLOCKED_TIMEOUT: Duration = Duration::ZERO;

    fn holder(_: &i64) -> Option<Uuid> {
        None
    }

    fn id(job_id: &i64) -> Uuid {
        Uuid::from_u64_pair(0, job_id.unsigned_abs())
    }

    fn bytes(_: &i64) -> usize {
        8
    }

    async fn run(
        &self,
        connection: &Connection<LookupStatements>,
        jobs: &[&i64],
        _: &Locking,
    ) -> Result<Vec<Option<Found>>, GroupFailure> {
        let ids: Vec<i64> = jobs.iter().map(|id| **id).collect();
        let params: [&(dyn ToSql + Sync); 1] = [&ids];
        let rows = connection
            .client
            .query(&connection.statements.reservations, &params)
            .await
            .map_err(|error| Failure::of(error, Phase::Open))?;
        let found: HashMap<i64, Found> = rows
            .iter()
            .map(|row| {
                let holder = Holder {
                    id: row.get("holder"),
                    user_id: row.get("user_id"),
                };
                let holds = match (row.get("has_reservation"), row.get("admitted")) {
                    (true, true) => Holds::Slot,
                    (true, false) => Holds::Quota(row.get("event_type")),
                    (false, _) => Holds::Nothing(row.get("event_type")),
                };
                (row.get("job_id"), Found { holder, holds })
            })
            .collect();
        Ok(ids.iter().map(|id| found.get(id).copied()).collect())
    }
}

/// Looks up reservations. Cheap to clone.
#[derive(Clone)]
pub struct ReservationLookup {
    committer: Committer<LookUp>,
    promoted: Promoted,
}

impl ReservationLookup {
    /// Starts the look-up task. `promoted` are the promotions by settlements of this process.
    #[must_use]
    pub fn start(database: &Database, promoted: Promoted) -> Self {
        Self {
            committer: Committer::start(database, Arc::new(LookUp)),
            promoted,
        }
    }

    /// The slot and quota of this attempt's job; `None` for a job that was not submitted through Weir.
    ///
    /// # Errors
    ///
    /// When the database cannot be used.
    pub async fn find(&self, job_id: i64, attempt: i16) -> Result<Option<Found>, DatabaseError> {
        if let Some(holder) = self.promoted.take(job_id, attempt, Instant::now()) {
            return Ok(Some(Found {
                holder,
                holds: Holds::Slot,
            }));
        }
        self.committer
            .commit(job_id)
            .await
            .map_err(|rejection| match rejection {
                Rejection::Refused(error) | Rejection::Unavailable(error) => error,
                Rejection::Full => DatabaseError::Stopped,
            })
    }
}
