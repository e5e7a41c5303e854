//! Adoption: what another River client inserted gets a place in line before somebody claims it, whoever that is. Weir's
//! own workers would ask for a slot when they have claimed it; others do not.

use std::collections::HashMap;
use std::time::Duration;

use tokio_postgres::{Client, Error};
use uuid::Uuid;

use crate::holder::{Holder, Holders, kept_text};
use crate::meter::Meter;
use crate::reservation::PROVISION;

/// How far into each queue one look goes.
const DEPTH: i64 = 100;

/// Gives the next jobs of these queues that belong to somebody and hold no slot a place in line: they ask for a slot when
/// those that are due do. `meters` says as what the work of each kind is counted; others are left alone. Returns how many.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn adopt(
    client: &Client,
    holders: Holders,
    queues: &[String],
    meters: &HashMap<&str, Meter>,
    ttl: Duration,
) -> Result<u64, Error> {
    let rows = client
        .query(include_str!("sql/strays.sql"), &[&queues, &DEPTH])
        .await?;
    let (mut jobs, mut event_types) = (Vec::<i64>::new(), Vec::<Meter>::new());
    let (mut ids, mut users) = (Vec::<Uuid>::new(), Vec::<Option<Uuid>>::new());
    let mut subjects = Vec::<Option<String>>::new();
    for row in &rows {
        let Some(meter) = meters.get(row.get::<_, &str>("kind")) else {
            continue;
        };
        let text: &str = row.get("user_id");
        let Holder { id, user_id } = holders.user_id(text);
        let subject = text.parse().ok();
        jobs.push(row.get("job_id"));
        event_types.push(*meter);
        ids.push(id);
        users.push(user_id);
        subjects.push(subject.as_ref().and_then(kept_text).map(str::to_owned));
    }
    if jobs.is_empty() {
        return Ok(0);
    }
    client
        .execute(PROVISION, &[&ids, &event_types, &users, &subjects])
        .await?;
    let adopt = include_str!("sql/adopt.sql");
    client
        .execute(adopt, &[&jobs, &ids, &users, &event_types, &ttl.as_secs_f64()])
        .await
}
