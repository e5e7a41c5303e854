//! Adoption: parks jobs of other River clients before any client claims them. Weir's workers would ask for a slot after
//! the claim, but other clients' workers do not.

use std::collections::HashMap;
use std::time::Duration;

use tokio_postgres::Error;
use uuid::Uuid;

use crate::database::PreparedClient;
use crate::holder::{Holder, Holders, kept_text};
use crate::meter::Meter;

/// The maximum number of jobs that one round finds in each queue.
const MAX_FOUND: i64 = 100;

/// The maximum number of jobs that one round reads in each queue. Jobs of unknown kinds stay in their queue, and each
/// claim by a River client also reads past them. Reading this many takes tens of milliseconds.
const MAX_READ: i64 = 10_000;

/// A submitted job that was made available by hand: it was parked, or had released its quota and slot.
#[derive(Clone, Copy, Debug)]
pub struct MadeAvailable {
    /// River's job id.
    pub job_id: i64,
    /// The account that it counts against.
    pub holder: Holder,
    /// The meter.
    pub meter: Meter,
}

/// The result of one round.
#[derive(Debug)]
pub struct Adopted {
    /// The number of other clients' jobs that it parked.
    pub jobs: u64,
    /// Jobs for late admission, one by one, because each reserves what its submission reserved.
    pub made_available: Vec<MadeAvailable>,
}

/// Reserves for the next jobs of these queues that belong to a holder and have no slot. They ask for a slot together
/// with due jobs. `meter_of` returns the meter of each kind; jobs of other kinds stay unchanged.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn adopt(
    client: &PreparedClient,
    holders: Holders,
    queues: &[String],
    meter_of: &HashMap<&str, Meter>,
    ttl: Duration,
) -> Result<Adopted, Error> {
    let kinds: Vec<&str> = meter_of.keys().copied().collect();
    let rows = client
        .query(
            include_str!("sql/unreserved_jobs.sql"),
            &[&queues, &kinds, &MAX_FOUND, &MAX_READ],
        )
        .await?;
    let (mut jobs, mut meters) = (Vec::<i64>::new(), Vec::<Meter>::new());
    let (mut ids, mut users) = (Vec::<Uuid>::new(), Vec::<Option<Uuid>>::new());
    let mut subjects = Vec::<Option<String>>::new();
    let mut made_available = Vec::new();
    for row in &rows {
        if row.get("needs_late_admission") {
            made_available.push(MadeAvailable {
                job_id: row.get("job_id"),
                holder: Holder {
                    id: row.get("holder"),
                    user_id: row.get("account"),
                },
                meter: row.get("event_type"),
            });
            continue;
        }
        let Some(meter) = meter_of.get(row.get::<_, &str>("kind")) else {
            continue;
        };
        let text: &str = row.get("user_id");
        let Holder { id, user_id } = holders.user_id(text);
        let subject = text.parse().ok();
        jobs.push(row.get("job_id"));
        meters.push(*meter);
        ids.push(id);
        users.push(user_id);
        subjects.push(subject.as_ref().and_then(kept_text).map(str::to_owned));
    }
    if jobs.is_empty() {
        return Ok(Adopted {
            jobs: 0,
            made_available,
        });
    }
    client
        .execute(
            include_str!("sql/provision.sql"),
            &[&ids, &meters, &users, &subjects],
        )
        .await?;
    let adopt = include_str!("sql/adopt.sql");
    let jobs = client
        .execute(adopt, &[&jobs, &ids, &users, &meters, &ttl.as_secs_f64()])
        .await?;
    Ok(Adopted { jobs, made_available })
}
