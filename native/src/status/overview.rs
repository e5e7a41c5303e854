//! What an operator asks first: who leads, how much gets done, and what holds each lane back.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::Client;
use weir_ledger::control::DELIVERY_KIND;
use weir_ledger::database::DatabaseError;
use weir_policy::lane::Lane;

use super::held_back::{HeldBack, Waiting};
use super::lanes::{Lanes, lanes};
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
    let params: [&(dyn postgres_types::ToSql + Sync); 1] = [&queues];
    let of_now: [&(dyn postgres_types::ToSql + Sync); 1] = [&DELIVERY_KIND];
    let (lanes, now, waiting) = tokio::try_join!(
        lanes(client, services),
        async { Ok(client.query_one(include_str!("sql/now.sql"), &of_now).await?) },
        async { Ok(client.query(include_str!("sql/waiting.sql"), &params).await?) },
    )?;
    let mut retrying = 0;
    let mut waiting_by_queue = BTreeMap::new();
    for row in &waiting {
        let of_queue: i64 = row.get("retrying");
        retrying += of_queue;
        let waits = Waiting {
            due: row.get("due"),
            parked: row.get("parked"),
            retrying: of_queue > 0,
            later: row.get("later"),
        };
        waiting_by_queue.insert(row.get::<_, &str>("queue"), waits);
    }
    let mut held_back: BTreeMap<String, BTreeMap<&'static str, HeldBack>> = BTreeMap::new();
    for service in services {
        let Some(state) = lanes.services.get(&service.name) else {
            continue;
        };
        for (lane, queue, _) in service.queues() {
            let waits = waiting_by_queue.get(queue.as_str()).copied().unwrap_or_default();
            held_back
                .entry(service.name.clone())
                .or_default()
                .insert(lane.as_str(), waits.held_back(state.lane(lane)));
        }
    }
    let leader: Option<String> = now.get("leader_id");
    let maintenance: Option<String> = now.get("process");
    Ok(Overview {
        lanes,
        at: now.get("at"),
        leader: leader.map(|id| Leader {
            foreign: !id.starts_with("weir_"),
            id,
            elected_at: now.get("elected_at"),
        }),
        maintenance: maintenance.map(|process| Maintenance {
            process,
            since: now.get("since"),
        }),
        failover: now.get::<_, Option<i32>>("timeline").map(|timeline| Failover {
            timeline,
            seen_at: now.get("seen_at"),
        }),
        last_minute: LastMinute {
            completed: now.get("completed"),
            cancelled: now.get("cancelled"),
            failed: now.get("failed"),
        },
        retrying,
        held_back,
    })
}
