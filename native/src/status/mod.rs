//! What is going on: lanes, pools, slots, parked jobs.

mod usage;
mod user;

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;
use weir_policy::lane::Lane;

use crate::config::service::Service;
use weir_ledger::database::DatabaseError;
use weir_ledger::processes::DEAD_AFTER;

pub use usage::{Usage, usage};
pub use user::{UserShare, UserStatus, user, user_table};

/// The live view. It names nobody.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct Lanes {
    /// The services by name.
    pub services: BTreeMap<String, ServiceLanes>,
    /// Jobs that wait for a slot of their holder's.
    pub parked: i64,
    /// Jobs that hold a slot.
    pub slots_in_use: i64,
    /// For how long the oldest job that could run now has waited for a worker, in milliseconds.
    pub oldest_wait_ms: i64,
}

/// One service in the live view.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ServiceLanes {
    /// The priority lane.
    pub priority: LaneState,
    /// The default lane.
    pub default: LaneState,
    /// The scheduled lane.
    pub scheduled: LaneState,
    /// Jobs that wait for a slot of their holder's.
    pub parked: i64,
    /// Jobs that hold a slot.
    pub slots_in_use: i64,
}

impl ServiceLanes {
    fn lane(&mut self, lane: Lane) -> &mut LaneState {
        match lane {
            Lane::Priority => &mut self.priority,
            Lane::Default => &mut self.default,
            Lane::Scheduled => &mut self.scheduled,
        }
    }
}

/// One lane in the live view.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub struct LaneState {
    /// Jobs that wait for a worker, a retry or their time.
    pub queued: i64,
    /// Jobs that are worked on.
    pub running: i64,
    /// Workers over all living processes. Those of other River clients are not known.
    pub workers: i64,
    /// Whether River gives out none of its jobs until somebody resumes the queue.
    pub paused: bool,
    /// For how long its oldest job that could run now has waited, in milliseconds.
    pub oldest_wait_ms: i64,
}

/// Looks at the database.
///
/// # Errors
///
/// When it cannot be asked.
pub async fn lanes(client: &tokio_postgres::Client, services: &[Service]) -> Result<Lanes, DatabaseError> {
    let dead_after = DEAD_AFTER.as_secs_f64();
    let pool_params: [&(dyn postgres_types::ToSql + Sync); 1] = [&dead_after];
    let (jobs, slots, pools, paused) = tokio::try_join!(
        client.query(include_str!("sql/lane_jobs.sql"), &[]),
        client.query(
            // Of the unfinished jobs, of which there are fewer than holders.
            "SELECT event_type::text AS event_type, count(admitted_at) AS slots_in_use, count(parked_at) AS parked FROM quota_reservations GROUP BY 1",
            &[]
        ),
        client.query(
            "SELECT pool.key AS queue, sum(pool.value::bigint)::bigint AS workers FROM processes p, jsonb_each_text(p.pools) AS pool \
             WHERE p.beat_at > clock_timestamp() - make_interval(secs => $1) GROUP BY 1",
            &pool_params
        ),
        client.query("SELECT name FROM river_queue WHERE paused_at IS NOT NULL", &[]),
    )?;
    let mut lanes = Lanes::default();
    let mut lanes_by_queue = BTreeMap::new();
    for service in services {
        lanes
            .services
            .insert(service.name.clone(), ServiceLanes::default());
        for (lane, queue, _) in service.queues() {
            lanes_by_queue.insert(queue, (service.name.clone(), lane));
        }
    }
    let mut at = |queue: &str, change: &mut dyn FnMut(&mut LaneState)| {
        if let Some((service, lane)) = lanes_by_queue.get(queue)
            && let Some(service) = lanes.services.get_mut(service)
        {
            change(service.lane(*lane));
        }
    };
    for row in &jobs {
        let queue: &str = row.get("queue");
        at(queue, &mut |state| {
            state.queued = row.get("queued");
            state.running = row.get("running");
            state.oldest_wait_ms = row.get("oldest_wait_ms");
        });
    }
    for row in &pools {
        at(row.get("queue"), &mut |state| state.workers = row.get("workers"));
    }
    for row in &paused {
        at(row.get("name"), &mut |state| state.paused = true);
    }
    for row in &slots {
        let event_type: &str = row.get("event_type");
        let (in_use, parked): (i64, i64) = (row.get("slots_in_use"), row.get("parked"));
        lanes.slots_in_use += in_use;
        lanes.parked += parked;
        // Slots are counted by event type; the first service that is counted so shows them.
        if let Some(service) = services
            .iter()
            .find(|service| service.event_type.as_str() == event_type)
            && let Some(state) = lanes.services.get_mut(&service.name)
        {
            state.slots_in_use = in_use;
            state.parked = parked;
        }
    }
    lanes.oldest_wait_ms = lanes
        .services
        .values()
        .flat_map(|service| [service.priority, service.default, service.scheduled])
        .map(|lane| lane.oldest_wait_ms)
        .max()
        .unwrap_or(0);
    Ok(lanes)
}

/// The live view as a table that fits a terminal.
#[must_use]
pub fn table(lanes: &Lanes) -> String {
    use comfy_table::{Cell, CellAlignment, Table, presets};
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "service",
        "lane",
        "queued",
        "running",
        "workers",
        "oldest wait",
        "slots in use",
        "parked",
    ]);
    for (name, service) in &lanes.services {
        for (index, lane) in Lane::ALL.into_iter().enumerate() {
            let state = service.clone().lane(lane).to_owned();
            let number = |number: i64| Cell::new(number).set_alignment(CellAlignment::Right);
            let wait = std::time::Duration::from_millis(state.oldest_wait_ms.max(0).unsigned_abs());
            let once = |number: i64| {
                if index == 0 {
                    Cell::new(number)
                } else {
                    Cell::new("")
                }
            };
            table.add_row([
                Cell::new(if index == 0 { name.as_str() } else { "" }),
                Cell::new(if state.paused {
                    format!("{} (paused)", lane.as_str())
                } else {
                    lane.as_str().to_owned()
                }),
                number(state.queued),
                number(state.running),
                number(state.workers),
                Cell::new(if wait.is_zero() {
                    "–".to_owned()
                } else {
                    humantime::format_duration(wait).to_string()
                }),
                once(service.slots_in_use).set_alignment(CellAlignment::Right),
                once(service.parked).set_alignment(CellAlignment::Right),
            ]);
        }
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_lanes_and_waits_and_fits_a_terminal() {
        let busy = LaneState {
            queued: 12,
            running: 3,
            workers: 3,
            paused: false,
            oldest_wait_ms: 61_500,
        };
        let paused = LaneState {
            queued: 7,
            paused: true,
            ..LaneState::default()
        };
        let service = ServiceLanes {
            priority: LaneState::default(),
            default: busy,
            scheduled: paused,
            parked: 1234,
            slots_in_use: 15,
        };
        let lanes = Lanes {
            services: BTreeMap::from([("analysis".to_owned(), service)]),
            ..Lanes::default()
        };
        let table = table(&lanes);
        insta::assert_snapshot!(table);
        assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    }
}
