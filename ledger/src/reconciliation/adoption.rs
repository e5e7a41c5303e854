//! Adoption: what another River client inserted gets a place in line before somebody claims it, whoever that is. Weir's
//! own workers would ask for a slot when they have claimed it; others do not.

use std::collections::HashMap;
use std::time::Duration;

use tokio_postgres::Error;
use uuid::Uuid;

use crate::database::PreparedClient;
use crate::holder::{Holder, Holders, kept_text};
use crate::meter::Meter;
use crate::reservation::PROVISION;

/// How many jobs of each queue a look finds at most.
const DEPTH: i64 = 100;

/// How many jobs of each queue a look passes at most. Those of kinds that nobody here works stay in their queue, and River's
/// clients pass them, too, with each claim. As many of them cost tens of milliseconds.
const REACH: i64 = 10_000;

/// A submitted job that somebody made available by hand: it was in line, or had given back what it held.
#[derive(Clone, Copy, Debug)]
pub struct MadeAvailable {
    /// River's job id.
    pub job_id: i64,
    /// Whom it is counted against.
    pub holder: Holder,
    /// What it is counted as.
    pub meter: Meter,
}

/// What one look has found.
#[derive(Debug)]
pub struct Adopted {
    /// How many jobs of other clients have a place in line now.
    pub jobs: u64,
    /// What is to be admitted late, each by itself, since it reserves what its submission did.
    pub made_available: Vec<MadeAvailable>,
}

/// Gives the next jobs of these queues that belong to somebody and hold no slot a place in line: they ask for a slot when
/// those that are due do. `meter_of` names the meter of each kind; others are left alone.
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
        .query(include_str!("sql/strays.sql"), &[&queues, &kinds, &DEPTH, &REACH])
        .await?;
    let (mut jobs, mut meters) = (Vec::<i64>::new(), Vec::<Meter>::new());
    let (mut ids, mut users) = (Vec::<Uuid>::new(), Vec::<Option<Uuid>>::new());
    let mut subjects = Vec::<Option<String>>::new();
    let mut made_available = Vec::new();
    for row in &rows {
        if row.get("is_back") {
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
        .execute(PROVISION, &[&ids, &meters, &users, &subjects])
        .await?;
    let adopt = include_str!("sql/adopt.sql");
    let jobs = client
        .execute(adopt, &[&jobs, &ids, &users, &meters, &ttl.as_secs_f64()])
        .await?;
    Ok(Adopted { jobs, made_available })
}
