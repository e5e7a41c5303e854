//! Late admission: an existing job without a slot gets one, or is parked (ADR-10's snooze).
//!
//! This handles jobs that another River client inserted, retries, and jobs that an operator made available with SQL.

use std::time::Duration;

use postgres_types::ToSql;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};
use weir_policy::subject::Subject;

use crate::database::DatabaseError;
use crate::holder::{Holder, kept_text};
use crate::meter::{Meter, interned};

/// A job without a slot, and its current attempt.
#[derive(Clone, Copy, Debug)]
pub struct LateJob<'a> {
    /// River's job id.
    pub id: i64,
    /// The current attempt. An attempt that was taken over gets nothing. `None` for an unclaimed job: it is parked, and
    /// cannot be claimed before it has a slot.
    pub attempt: Option<i16>,
    /// The account that it counts against.
    pub holder: Holder,
    /// The subject of the holder, if the job's arguments name it.
    pub subject: Option<&'a Subject>,
    /// The meter.
    pub meter: Meter,
    /// The `user_id` of the job's arguments, and River's kinds of this meter. When the job is parked, the other
    /// claimable jobs of the same user and these kinds are parked with it.
    pub backlog: Option<(&'a str, &'a [&'a str])>,
}

/// The result for a late job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateAdmission {
    /// A slot: it may run.
    Admitted,
    /// No slot is free. The job is parked, and the next free slot promotes it. With the name of its holder's plan.
    Parked(Option<&'static str>),
    /// The attempt is no longer current, because the job was taken over. Or an unclaimed job has been claimed.
    FencedOut,
    /// Another transaction has the holder's lock. Nothing was changed.
    Blocked,
}

/// The lock timeout. Many attempts ask at once, and each uses a connection of the shared pool.
const PATIENCE: Duration = Duration::from_millis(100);

/// Gives a job a slot if one is free, or parks it and the rest of its user's backlog. Of ten thousand jobs that another
/// client inserted, workers then claim only a handful without effect.
///
/// A job that was not charged, such as a discarded one that an operator retries, reserves what its submission reserved.
///
/// # Errors
///
/// When the database cannot be used. Nothing is changed then.
pub async fn admit_late(client: &mut Client, job: LateJob<'_>) -> Result<LateAdmission, DatabaseError> {
    match admit(client, job).await {
        Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => Ok(LateAdmission::Blocked),
        admission => Ok(admission?),
    }
}

async fn admit(client: &mut Client, job: LateJob<'_>) -> Result<LateAdmission, Error> {
    let LateJob { holder, meter, .. } = job;
    let (user, kinds) = job.backlog.unzip();
    let subject = job.subject.and_then(kept_text);
    let params: [&(dyn ToSql + Sync); 8] = [
        &job.id,
        &job.attempt,
        &holder.id,
        &holder.user_id,
        &subject,
        &meter,
        &user,
        &kinds.unwrap_or_default(),
    ];
    let transaction = client.transaction().await?;
    let bound = format!("SET LOCAL lock_timeout = {}", PATIENCE.as_millis());
    let admit = "SELECT * FROM admit_late($1, $2, $3, $4, $5, $6, $7, $8)";
    let ((), row, ()) = tokio::try_join!(
        biased;
        transaction.batch_execute(&bound),
        transaction.query_one(admit, &params),
        transaction.batch_execute("SET LOCAL lock_timeout = 0"),
    )?;
    transaction.commit().await?;
    if row.get::<_, i64>("new_users") > 0 {
        tracing::warn!(job = job.id, user = %holder.id, "the job's user was unknown and is now on the default plan");
    }
    let parked: i64 = row.get("backlog");
    if parked > 0 {
        crate::access_log!(
            false,
            job = job.id,
            user,
            parked,
            "parked the backlog of a user without a free slot"
        );
    }
    Ok(match row.get("outcome") {
        "admitted" => LateAdmission::Admitted,
        "parked" => LateAdmission::Parked(row.get::<_, Option<&str>>("tier").map(interned)),
        _ => LateAdmission::FencedOut,
    })
}
