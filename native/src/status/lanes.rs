//! The live view: lanes, pools, slots, parked jobs.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;
use weir_policy::lane::Lane;

use crate::config::service::Service;
use weir_ledger::database::DatabaseError;
use weir_ledger::read::lanes as read;

/// The live view. It contains no user data.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct Lanes {
    /// When the jobs were counted, by the database's clock.
    pub at: Timestamp,
    /// The services by name.
    pub services: BTreeMap<String, ServiceLanes>,
    /// Jobs that wait for one of their holder's slots.
    pub parked: i64,
    /// Jobs that hold a slot.
    pub slots_in_use: i64,
    /// The wait of the oldest ready job for a worker, in milliseconds.
    pub oldest_wait_ms: i64,
    /// The wait of the oldest parked job for a slot, in milliseconds.
    pub oldest_turn_ms: i64,
}

/// One service in the live view.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ServiceLanes {
    /// Whether programs outside of Weir work the service.
    pub external: bool,
    /// The priority lane.
    pub priority: LaneState,
    /// The default lane.
    pub default: LaneState,
    /// The scheduled lane.
    pub scheduled: LaneState,
    /// Jobs that wait for one of their holder's slots.
    pub parked: i64,
    /// Jobs that hold a slot.
    pub slots_in_use: i64,
}

impl ServiceLanes {
    /// Whether an external service has a live worker, in words. `None` for other services.
    pub(crate) fn external_workers(&self) -> Option<&'static str> {
        let has_worker = Lane::ALL.iter().any(|lane| self.lane(*lane).workers > 0);
        self.external.then_some(if has_worker {
            "external: a worker is registered"
        } else {
            "external: no worker is registered"
        })
    }

    pub(crate) fn lane(&self, lane: Lane) -> &LaneState {
        match lane {
            Lane::Priority => &self.priority,
            Lane::Default => &self.default,
            Lane::Scheduled => &self.scheduled,
        }
    }

    fn lane_mut(&mut self, lane: Lane) -> &mut LaneState {
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
    /// Jobs that wait for a worker, a retry or their scheduled time.
    pub queued: i64,
    /// Running jobs.
    pub running: i64,
    /// The number of running jobs with a handler that answers later. They occupy no worker.
    pub outstanding: i64,
    /// Running jobs on workers that would be idle, over their holder's slots.
    pub lent: i64,
    /// The workers of all live processes. Workers of other River clients are not included. For an external service: the
    /// live programs that work the lane, or may work it.
    pub workers: i64,
    /// Whether the queue is paused in River. Its jobs wait until it is resumed.
    pub paused: bool,
    /// The wait of the oldest ready job for a worker, in milliseconds.
    pub oldest_wait_ms: i64,
}

impl LaneState {
    /// The number of busy workers.
    #[must_use]
    pub fn busy(&self) -> i64 {
        self.running - self.outstanding
    }
}

/// Reads the live view from the database.
///
/// # Errors
///
/// When the database is unavailable.
pub async fn lanes(client: &tokio_postgres::Client, services: &[Service]) -> Result<Lanes, DatabaseError> {
    let shared_meters = shared_meters(services);
    let shared = async {
        if shared_meters.is_empty() {
            Ok(Vec::new())
        } else {
            read::shared_slots(client, &shared_meters).await
        }
    };
    let external: Vec<String> = services
        .iter()
        .filter(|service| service.is_external())
        .flat_map(|service| service.queues().map(|(_, queue, _)| queue))
        .collect();
    let (at, jobs, slots, shared, workers, external, paused) = tokio::try_join!(
        read::clock(client),
        read::jobs(client),
        read::slots(client),
        shared,
        read::workers(client),
        read::external_workers(client, &external),
        read::paused(client),
    )?;
    let mut lanes = Lanes {
        at,
        ..Lanes::default()
    };
    let mut lanes_by_queue = BTreeMap::new();
    for service in services {
        let state = ServiceLanes {
            external: service.is_external(),
            ..ServiceLanes::default()
        };
        lanes.services.insert(service.name.clone(), state);
        for (lane, queue, _) in service.queues() {
            lanes_by_queue.insert(queue, (service.name.clone(), lane));
        }
    }
    let mut at = |queue: &str, change: &mut dyn FnMut(&mut LaneState)| {
        if let Some((service, lane)) = lanes_by_queue.get(queue)
            && let Some(service) = lanes.services.get_mut(service)
        {
            change(service.lane_mut(*lane));
        }
    };
    for row in &jobs {
        at(&row.queue, &mut |state| {
            state.queued = row.queued;
            state.running = row.running;
            state.outstanding = row.outstanding;
            state.lent = row.lent;
            state.oldest_wait_ms = row.oldest_wait_ms;
        });
    }
    for row in workers.iter().chain(&external) {
        at(&row.queue, &mut |state| state.workers = row.workers);
    }
    for queue in &paused {
        at(queue, &mut |state| state.paused = true);
    }
    for service in lanes.services.values_mut().filter(|service| service.external) {
        // River clients may send no heartbeats. A running job shows that there is one.
        for lane in Lane::ALL {
            let state = service.lane_mut(lane);
            state.workers = state.workers.max(state.running.min(1));
        }
    }
    for row in &slots {
        lanes.slots_in_use += row.slots_in_use;
        lanes.parked += row.parked;
        lanes.oldest_turn_ms = lanes.oldest_turn_ms.max(row.oldest_turn_ms);
        // If several services have this meter, their queues are counted below.
        if !shared_meters.contains(&row.meter.as_str())
            && let Some(service) = services.iter().find(|service| service.meter == row.meter)
            && let Some(state) = lanes.services.get_mut(&service.name)
        {
            state.slots_in_use = row.slots_in_use;
            state.parked = row.parked;
        }
    }
    for row in &shared {
        if let Some((service, _)) = lanes_by_queue.get(&row.queue)
            && let Some(state) = lanes.services.get_mut(service)
        {
            state.slots_in_use += row.slots_in_use;
            state.parked += row.parked;
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

/// The meters that more than one service has.
fn shared_meters(services: &[Service]) -> Vec<&str> {
    let meters = services.iter().enumerate().filter_map(|(index, service)| {
        let meter = service.meter;
        let is_repeated = services.iter().take(index).any(|earlier| earlier.meter == meter);
        is_repeated.then_some(meter.as_str())
    });
    meters.collect::<BTreeSet<_>>().into_iter().collect()
}
