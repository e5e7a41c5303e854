//! What an operator asks first: who leads, how much gets done, and what holds each lane back.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::Client;
use weir_ledger::database::DatabaseError;
use weir_ledger::read;
use weir_policy::lane::Lane;

use super::held_back::{HeldBack, held_back};
use super::lanes::{Lanes, lanes};
use super::vacuum::Vacuum;
use crate::config::service::Service;

/// The live view with what only an operator sees.
#[derive(Clone, Debug, Serialize)]
pub struct Overview {
    /// The lanes.
    #[serde(flatten)]
    pub lanes: Lanes,
    /// When this was looked up, by the database's clock.
    pub at: Timestamp,
    /// Who leads River; null is nobody.
    pub leader: Option<Leader>,
    /// The process that runs Weir's maintenance, or null.
    pub maintenance: Option<Maintenance>,
    /// The failover or restore that the database has been through last; null is none.
    pub failover: Option<Failover>,
    /// What holds back vacuum, and what that costs.
    pub vacuum: Vacuum,
    /// What ended within the last minute.
    pub last_minute: LastMinute,
    /// Jobs that have failed and are tried again.
    pub retrying: i64,
    /// What holds each lane back, by service and lane.
    pub held_back: BTreeMap<String, BTreeMap<&'static str, HeldBack>>,
}

/// River's leader.
#[derive(Clone, Debug, Serialize)]
pub struct Leader {
    /// The client's id.
    pub id: String,
    /// Whether it is another client than Weir's.
    pub foreign: bool,
    /// Since when.
    pub elected_at: Timestamp,
}

/// The process that runs Weir's maintenance: reconciliation, expiry, cleaning.
#[derive(Clone, Debug, Serialize)]
pub struct Maintenance {
    /// Its host and process id.
    pub process: String,
    /// Since when.
    pub since: Timestamp,
}

/// When the database came to its timeline.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Failover {
    /// PostgreSQL's number of the timeline.
    pub timeline: i32,
    /// When Weir noticed it.
    pub seen_at: Timestamp,
}

/// Jobs that ended within the last minute, of all services.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LastMinute {
    /// With success.
    pub completed: i64,
    /// Cancelled.
    pub cancelled: i64,
    /// Without success, after their last attempt.
    pub failed: i64,
}

impl LastMinute {
    /// All of them.
    #[must_use]
    pub fn finished(self) -> i64 {
        self.completed + self.cancelled + self.failed
    }
}

/// Looks at the database.
///
/// # Errors
///
/// When it cannot be asked.
pub async fn overview(client: &Client, services: &[Service]) -> Result<Overview, DatabaseError> {
    let queues: Vec<String> = services
        .iter()
        .flat_map(|service| Lane::ALL.map(|lane| service.queue(lane)))
        .collect();
    let (lanes, leaders, vacuum, ended, waiting) = tokio::try_join!(
        lanes(client, services),
        read::overview::leaders(client),
        Vacuum::read(client),
        read::overview::last_minute(client),
        read::lanes::waiting(client, &queues),
    )?;
    let mut why_held_back: BTreeMap<String, BTreeMap<&'static str, HeldBack>> = BTreeMap::new();
    for service in services {
        let Some(state) = lanes.services.get(&service.name) else {
            continue;
        };
        for (lane, queue, _) in service.queues() {
            if let Some(waiting) = waiting.iter().find(|row| row.queue == queue) {
                why_held_back
                    .entry(service.name.clone())
                    .or_default()
                    .insert(lane.as_str(), held_back(waiting, state.lane(lane)));
            }
        }
    }
    let foreign = leaders.is_foreign();
    let leader = leaders.leader_id.zip(leaders.elected_at);
    let maintenance = leaders.process.zip(leaders.since);
    let failover = leaders.timeline.zip(leaders.seen_at);
    Ok(Overview {
        lanes,
        at: leaders.at,
        leader: leader.map(|(id, elected_at)| Leader {
            id,
            foreign,
            elected_at,
        }),
        maintenance: maintenance.map(|(process, since)| Maintenance { process, since }),
        failover: failover.map(|(timeline, seen_at)| Failover { timeline, seen_at }),
        vacuum,
        last_minute: LastMinute {
            completed: ended.completed,
            cancelled: ended.cancelled,
            failed: ended.failed,
        },
        retrying: waiting.iter().map(|row| row.retrying).sum(),
        held_back: why_held_back,
    })
}
