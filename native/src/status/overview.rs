//! The operator's overview: the leader, the throughput, and the reason why each lane's jobs wait.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::Client;
use weir_ledger::catalogue::services;
use weir_ledger::database::DatabaseError;
use weir_ledger::read;
use weir_policy::lane::Lane;

use super::held_back::{HeldBack, held_back};
use super::lanes::{Lanes, lanes};
use super::vacuum::Vacuum;
use crate::config::Settings;
use crate::config::service::Service;

/// The number of holders and of reasons to show.
const TOP: i64 = 3;

/// The number of failed jobs to read for the reasons, the newest first.
const FAILED_JOBS: i64 = 10_000;

/// The live view, plus details for operators.
#[derive(Clone, Debug, Serialize)]
pub struct Overview {
    /// The lanes.
    #[serde(flatten)]
    pub lanes: Lanes,
    /// River's leader; null when there is none.
    pub leader: Option<Leader>,
    /// The process that runs Weir's maintenance, or null.
    pub maintenance: Option<Maintenance>,
    /// The last failover or restore of the database; null when there was none.
    pub failover: Option<Failover>,
    /// The causes and effects of delayed vacuum.
    pub vacuum: Vacuum,
    /// Jobs that ended within the last minute.
    pub last_minute: LastMinute,
    /// Jobs that have failed and wait for a retry.
    pub retrying: i64,
    /// The holders with the most waiting jobs.
    pub top_waiting: Vec<TopHolder>,
    /// The most frequent reasons why jobs failed permanently within the last day.
    pub failures: Vec<Failures>,
    /// The deliveries to webhooks.
    pub deliveries: WaitingDeliveries,
    /// Why each lane's jobs wait, by service and lane.
    pub held_back: BTreeMap<String, BTreeMap<&'static str, HeldBack>>,
    /// The settings of the environment that differ from the database's, which apply.
    pub differences: Vec<String>,
}

/// River's leader.
#[derive(Clone, Debug, Serialize)]
pub struct Leader {
    /// The client's id.
    pub id: String,
    /// Whether it belongs to a client other than Weir's.
    pub foreign: bool,
    /// When it was elected.
    pub elected_at: Timestamp,
}

/// The process that runs Weir's maintenance: reconciliation, expiry, cleaning.
#[derive(Clone, Debug, Serialize)]
pub struct Maintenance {
    /// Its host and process id.
    pub process: String,
    /// When it took the lease.
    pub since: Timestamp,
}

/// When the database reached its current timeline.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Failover {
    /// PostgreSQL's number of the timeline.
    pub timeline: i32,
    /// When Weir noticed it.
    pub seen_at: Timestamp,
}

/// Jobs of all services that ended within the last minute.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LastMinute {
    /// Jobs that succeeded.
    pub completed: i64,
    /// Jobs that were cancelled.
    pub cancelled: i64,
    /// Jobs that failed their last attempt.
    pub failed: i64,
}

/// A holder with waiting jobs.
#[derive(Clone, Debug, Serialize)]
pub struct TopHolder {
    /// The user's subject, or else the holder's id.
    pub holder: String,
    /// Jobs that do not run.
    pub waiting: i64,
}

/// Jobs of a service that failed permanently for the same reason.
#[derive(Clone, Debug, Serialize)]
pub struct Failures {
    /// The service; for jobs of other programs, River's kind.
    pub service: String,
    /// The first line of the last error.
    pub reason: String,
    /// The number of jobs.
    pub jobs: i64,
}

/// The deliveries to all enabled webhooks.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct WaitingDeliveries {
    /// Deliveries that wait for an attempt. Counts at most 100 000 of each webhook.
    pub waiting: i64,
    /// The longest time that one of the webhooks has received no event although one waits, in milliseconds.
    pub undelivered_ms: i64,
}

impl LastMinute {
    /// The total.
    #[must_use]
    pub fn finished(self) -> i64 {
        self.completed + self.cancelled + self.failed
    }
}

/// Why the jobs of a queue of this service wait; `None` for a queue of another program.
///
/// # Errors
///
/// When the database is unavailable.
pub async fn held_back_in(
    client: &Client,
    service: &Service,
    queue: &str,
) -> Result<Option<HeldBack>, DatabaseError> {
    let Some((lane, ..)) = service.queues().find(|(_, name, _)| name == queue) else {
        return Ok(None);
    };
    let queues = [queue.to_owned()];
    let (lanes, waiting) = tokio::try_join!(
        lanes(client, std::slice::from_ref(service)),
        read::lanes::waiting(client, &queues),
    )?;
    let state = lanes.services.get(&service.name);
    Ok(state
        .zip(waiting.first())
        .map(|(state, waiting)| held_back(waiting, state.lane(lane))))
}

/// Reads the overview from the database.
///
/// # Errors
///
/// When the database is unavailable.
pub async fn overview(client: &Client, settings: &Settings) -> Result<Overview, DatabaseError> {
    let of_services = &settings.services;
    let rules = settings.rules();
    let queues: Vec<String> = of_services
        .iter()
        .flat_map(|service| Lane::ALL.map(|lane| service.queue(lane)))
        .collect();
    let (lanes, leaders, vacuum, ended, waiting, differences) = tokio::try_join!(
        lanes(client, of_services),
        read::overview::leaders(client),
        Vacuum::read(client),
        read::overview::last_minute(client),
        read::lanes::waiting(client, &queues),
        services::changes_to(client, &rules),
    )?;
    let (busiest, failures, deliveries) = tokio::try_join!(
        read::holders::busiest(client, false, TOP),
        read::console::failures(client, FAILED_JOBS, TOP),
        read::gauges::deliveries(client),
    )?;
    let mut why_held_back: BTreeMap<String, BTreeMap<&'static str, HeldBack>> = BTreeMap::new();
    for service in of_services {
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
        top_waiting: busiest
            .iter()
            .filter(|holder| holder.waiting > 0)
            .map(|holder| TopHolder {
                holder: holder.name(),
                waiting: holder.waiting,
            })
            .collect(),
        failures: failures
            .into_iter()
            .map(|failed| Failures {
                service: settings
                    .service_of_kind(&failed.kind)
                    .map_or(failed.kind, |service| service.name.clone()),
                reason: failed.reason,
                jobs: failed.jobs,
            })
            .collect(),
        deliveries: WaitingDeliveries {
            waiting: deliveries.waiting,
            undelivered_ms: (deliveries.undelivered_seconds * 1000.0) as i64,
        },
        held_back: why_held_back,
        // Another machine's environment has the variables that apply.
        differences: if settings.has_services_file {
            differences
        } else {
            Vec::new()
        },
    })
}
