//! Gauges: the database's counts over all processes, queried at each scrape.

use std::collections::HashMap;

use metrics::{Gauge, gauge};
use tokio_postgres::Client;

use super::busy_holders::{BusyHolders, MAX_HOLDERS};
use super::vacuum::VacuumGauges;
use crate::config::service::Service;
use crate::status::Vacuum;
use weir_ledger::catalogue::Catalogue;
use weir_ledger::database::DatabaseError;
use weir_ledger::processes::DELIVERY_POOL;
use weir_ledger::read::{self, lanes, overview};

/// Values of `plan` that are not plans: a client address, or a user whom no worker has looked up yet.
const NO_PLAN: [&str; 2] = ["anonymous", "unknown"];

/// All values of the `plan` label.
fn plans(catalogue: &Catalogue) -> impl Iterator<Item = &str> {
    catalogue.plans.keys().map(String::as_str).chain(NO_PLAN)
}

/// Every gauge by its name and the values of its labels. A gauge missing in the database's response is zero.
pub struct Gauges {
    database_up: Gauge,
    jobs_counted: Gauge,
    leader_known: Gauge,
    foreign_leader: Gauge,
    maintenance_known: Gauge,
    processes: Gauge,
    enabled_webhooks: Gauge,
    disabled_webhooks: Gauge,
    delivery_workers: Gauge,
    vacuum: VacuumGauges,
    busy_holders: BusyHolders,
    /// Whether a queue is paused.
    paused: HashMap<String, Gauge>,
    /// Workers, by service and lane.
    workers: HashMap<[String; 2], Gauge>,
    /// The gauges that count all unfinished jobs.
    counted: HashMap<Vec<String>, Gauge>,
    /// Service and lane by queue.
    lanes: HashMap<String, (String, &'static str)>,
    /// The queues of external services.
    external: Vec<String>,
}

impl Gauges {
    /// Registers every gauge, so that each exists from the first scrape on.
    #[must_use]
    pub fn new(services: &[Service], catalogue: &Catalogue) -> Self {
        let (mut workers, mut counted) = (HashMap::new(), HashMap::new());
        let (mut lanes, mut paused, mut external) = (HashMap::new(), HashMap::new(), Vec::new());
        let mut add = |name: &'static str, labels: Vec<(&'static str, String)>| {
            let key = std::iter::once(name.to_owned())
                .chain(labels.iter().map(|(_, value)| value.clone()))
                .collect::<Vec<_>>();
            counted.insert(key, gauge!(name, &labels));
        };
        for service in services {
            for (lane, queue, _) in service.queues() {
                let lane_labels = || {
                    vec![
                        ("service", service.name.clone()),
                        ("lane", lane.as_str().to_owned()),
                    ]
                };
                workers.insert(
                    [service.name.clone(), lane.as_str().to_owned()],
                    gauge!("weir_lane_workers", &lane_labels()),
                );
                let queue_labels = [lane_labels(), vec![("queue", queue.clone())]].concat();
                paused.insert(queue.clone(), gauge!("weir_lane_paused", &queue_labels));
                for plan in plans(catalogue) {
                    let labels = || [lane_labels(), vec![("plan", plan.to_owned())]].concat();
                    add("weir_oldest_wait_seconds", labels());
                    add("weir_oldest_parked_seconds", labels());
                    add("weir_lent_workers", labels());
                    for state in ["queued", "running", "outstanding"] {
                        add(
                            "weir_lane_jobs",
                            [labels(), vec![("state", state.to_owned())]].concat(),
                        );
                    }
                }
                if service.is_external() {
                    external.push(queue.clone());
                }
                lanes.insert(queue, (service.name.clone(), lane.as_str()));
            }
        }
        add("weir_waiting_deliveries", Vec::new());
        add("weir_undelivered_seconds", Vec::new());
        for meter in catalogue.meters.keys() {
            let of =
                |name: &'static str, value: &str| vec![("meter", meter.to_owned()), (name, value.to_owned())];
            for state in ["admitted", "parked", "between_attempts"] {
                add("weir_open_reservations", of("state", state));
            }
            for plan in plans(catalogue).filter(|plan| *plan != "unknown") {
                add("weir_slots_in_use", of("plan", plan));
                add("weir_parked_jobs", of("plan", plan));
            }
        }
        Self {
            database_up: gauge!("weir_database_up"),
            jobs_counted: gauge!("weir_jobs_counted"),
            leader_known: gauge!("weir_leader_known"),
            foreign_leader: gauge!("weir_foreign_leader"),
            maintenance_known: gauge!("weir_maintenance_known"),
            processes: gauge!("weir_worker_processes"),
            enabled_webhooks: gauge!("weir_enabled_webhooks"),
            disabled_webhooks: gauge!("weir_disabled_webhooks"),
            delivery_workers: gauge!("weir_webhook_workers"),
            vacuum: VacuumGauges::new(),
            busy_holders: BusyHolders::default(),
            paused,
            workers,
            counted,
            lanes,
            external,
        }
    }

    /// Sets the gauges about the database and the processes.
    ///
    /// # Errors
    ///
    /// When the database is unavailable.
    pub async fn refresh(&self, client: &Client) -> Result<(), DatabaseError> {
        let (leaders, processes, lane_workers, external_workers, vacuum) = tokio::try_join!(
            overview::leaders(client),
            lanes::processes(client),
            lanes::workers(client),
            lanes::external_workers(client, &self.external),
            Vacuum::read(client),
        )?;
        let (enabled_webhooks, disabled_webhooks, paused) = tokio::try_join!(
            overview::enabled_webhooks(client),
            overview::disabled_webhooks(client),
            lanes::paused(client),
        )?;
        let delivery_workers: i64 = lane_workers
            .iter()
            .filter(|row| row.queue == DELIVERY_POOL)
            .map(|row| row.workers)
            .sum();
        self.vacuum.set(&vacuum);
        let mut workers: HashMap<[String; 2], f64> = HashMap::new();
        for row in lane_workers.iter().chain(&external_workers) {
            if let Some((service, lane)) = self.lanes.get(&row.queue) {
                let key = [service.clone(), (*lane).to_owned()];
                *workers.entry(key).or_default() += row.workers as f64;
            }
        }
        for (key, gauge) in &self.workers {
            gauge.set(workers.get(key).copied().unwrap_or(0.0));
        }
        self.database_up.set(1.0);
        let one_if = |is_so: bool| f64::from(u8::from(is_so));
        for (queue, gauge) in &self.paused {
            gauge.set(one_if(paused.contains(queue)));
        }
        self.leader_known.set(one_if(leaders.leader_id.is_some()));
        self.foreign_leader.set(one_if(leaders.is_foreign()));
        self.maintenance_known.set(one_if(leaders.process.is_some()));
        self.processes.set(processes as f64);
        self.enabled_webhooks.set(enabled_webhooks as f64);
        self.disabled_webhooks.set(disabled_webhooks as f64);
        self.delivery_workers.set(delivery_workers as f64);
        Ok(())
    }

    /// Counts the unfinished jobs. The duration grows with their number.
    ///
    /// # Errors
    ///
    /// When the database is unavailable or does not respond in time.
    pub async fn count(&self, client: &Client) -> Result<(), DatabaseError> {
        let (jobs, reservations, deliveries) = tokio::try_join!(
            read::gauges::jobs(client),
            read::gauges::reservations(client),
            read::gauges::deliveries(client),
        )?;
        let mut found: HashMap<Vec<String>, f64> = HashMap::new();
        let mut add = |key: &[&str], value: f64| {
            *found
                .entry(key.iter().map(|part| (*part).to_owned()).collect())
                .or_default() += value;
        };
        for row in &jobs {
            // A queue that no service of this configuration has belongs to another program.
            let Some((service, lane)) = self.lanes.get(&row.queue) else {
                continue;
            };
            for (state, jobs) in [
                ("queued", row.queued),
                ("running", row.running),
                ("outstanding", row.outstanding),
            ] {
                add(&["weir_lane_jobs", service, lane, &row.plan, state], jobs);
            }
            add(&["weir_lent_workers", service, lane, &row.plan], row.lent);
            add(
                &["weir_oldest_wait_seconds", service, lane, &row.plan],
                row.oldest_wait,
            );
        }
        for row in &reservations {
            let (meter, plan) = (row.meter.as_str(), row.plan.as_str());
            add(&["weir_slots_in_use", meter, plan], row.admitted);
            add(&["weir_parked_jobs", meter, plan], row.parked);
            let lane = row.parked_in.as_ref().and_then(|queue| self.lanes.get(queue));
            if let Some((service, lane)) = lane {
                add(
                    &["weir_oldest_parked_seconds", service, lane, plan],
                    row.oldest_parked,
                );
            }
            for (state, jobs) in [
                ("admitted", row.admitted),
                ("parked", row.parked),
                ("between_attempts", row.between_attempts),
            ] {
                add(&["weir_open_reservations", meter, state], jobs);
            }
        }
        add(&["weir_waiting_deliveries"], deliveries.waiting as f64);
        add(&["weir_undelivered_seconds"], deliveries.undelivered_seconds);
        for (key, gauge) in &self.counted {
            gauge.set(found.get(key).copied().unwrap_or(0.0));
        }
        self.jobs_counted.set(1.0);
        Ok(())
    }

    /// Finds the holders with the most waiting jobs. The duration grows with the number of unfinished jobs.
    ///
    /// # Errors
    ///
    /// When the database is unavailable or does not respond in time.
    pub async fn find_busy_holders(&self, client: &Client) -> Result<(), DatabaseError> {
        let busiest = read::holders::busiest(client, false, MAX_HOLDERS).await?;
        self.busy_holders.set(&busiest);
        Ok(())
    }

    /// The samples that the exporter does not have, in Prometheus' text format.
    pub fn more_samples(&self) -> String {
        self.busy_holders.text()
    }

    /// The holders with the most waiting jobs are unknown.
    pub fn unknown_holders(&self) {
        self.busy_holders.unknown();
    }

    /// The database does not respond. The values are unknown, and old ones would pass for current ones.
    pub fn unknown(&self) {
        self.database_up.set(0.0);
        self.leader_known.set(f64::NAN);
        self.foreign_leader.set(f64::NAN);
        self.maintenance_known.set(f64::NAN);
        self.processes.set(f64::NAN);
        for gauge in [
            &self.enabled_webhooks,
            &self.disabled_webhooks,
            &self.delivery_workers,
        ] {
            gauge.set(f64::NAN);
        }
        self.vacuum.unknown();
        for gauge in self.workers.values().chain(self.paused.values()) {
            gauge.set(f64::NAN);
        }
        self.unknown_holders();
        self.uncounted();
        self.jobs_counted.set(f64::NAN);
    }

    /// The unfinished jobs could not be counted.
    pub fn uncounted(&self) {
        self.jobs_counted.set(0.0);
        for gauge in self.counted.values() {
            gauge.set(f64::NAN);
        }
    }
}
