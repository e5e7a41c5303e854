//! Working: River's client, with Weir's guard before and Weir's settlement after every attempt.

mod attempt_error;
mod attempt_holder;
mod attempt_log;
mod cancellation;
mod claim_pace;
mod claim_start;
mod claims;
mod clean;
mod deliveries;
mod elected;
mod fenced;
mod guard;
mod heartbeat;
mod host;
mod internal;
mod local_limiter;
mod periodic;
mod pool;
mod prefetch;
mod progress;
pub mod reconcile;
mod retry;
mod settlements;
mod step;
mod unclaimed;
mod under_way;
mod worker;

use std::time::Duration;

use riverqueue::__private::ClientBuilderExt;
use riverqueue::{Client, Event, EventKind, MaintenanceConfig, QueueConfig, Retention, RunHandle, Workers};
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

pub use claim_pace::FETCH_COOLDOWN;

use crate::config::RiverRetention;
use crate::config::service::Service;
use crate::context::Context;
use weir_ledger::control::DELIVERY_KIND;
use weir_ledger::database::{DatabaseError, NarrowConnections};
use weir_ledger::lookup::ReservationLookup;

use cancellation::Cancellations;
use claim_pace::ClaimPace;
use claims::Claims;
use heartbeat::Lease;
use pool::Pools;
use under_way::UnderWay;

pub use heartbeat::HEARTBEAT_INTERVAL;

/// An empty queue. River's client requires a queue even when it only leads.
const LEADER_QUEUE: &str = "weir_leader";

/// The time between two claims from it.
const LEADER_QUEUE_INTERVAL: Duration = Duration::from_secs(60);

/// River's rescuer treats a job as stuck after this long. It would discard jobs of unknown kinds, so reconciliation
/// takes over stuck jobs instead.
const RESCUE_AFTER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// River aborts an attempt this long after cancelling it. Weir aborts attempts itself, but not for a forged
/// cancellation.
const STUCK_AFTER: Duration = RESCUE_AFTER;

/// The maximum time that a shutdown waits for the database after the drain time, once no attempt runs. Another process
/// takes over attempts without a written result.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// The tasks of River's leader in this process.
fn maintenance(retention: RiverRetention) -> MaintenanceConfig {
    MaintenanceConfig::default()
        .with_rescue_after(RESCUE_AFTER)
        .with_completed_job_retention(Retention::DeleteAfter(retention.completed))
        .with_cancelled_job_retention(Retention::DeleteAfter(retention.cancelled))
        .with_discarded_job_retention(Retention::DeleteAfter(retention.discarded))
}

/// The purpose of a River client of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Works jobs and never leads: `weir work`.
    Work,
    /// Leads and works nothing: `weir schedule`.
    Lead,
    /// Both: `weir up`.
    Both,
}

/// A running River client.
pub struct Working {
    /// River's client, for cancelling jobs and inspecting queues.
    pub client: Client,
    /// Signals the attempts to stop. Declared above `run`, because dropping that cancels River's tokens.
    interrupted: DropGuard,
    run: RunHandle,
    drain_timeout: Duration,
    under_way: UnderWay,
    stopped: CancellationToken,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Working {
    /// Starts working the lanes of these services.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached or River refuses the configuration.
    pub async fn start(context: &Context, role: Role, services: &[Service]) -> Result<Self, DatabaseError> {
        let id = client_id();
        let works = role != Role::Lead;
        let slots: u32 = services.iter().flat_map(|service| service.pools).sum();
        let river_pool = if works {
            let size = 10.min(slots + 4);
            context
                .database
                .river_pool_of_worker(size, leave_after_failover)?
        } else {
            context.database.river_pool(4)?
        };
        let mut workers = Workers::new();
        let lookup = ReservationLookup::start(&context.database, context.settler.promoted().clone());
        let lease = Lease::new();
        let under_way = UnderWay::default();
        let interrupted = CancellationToken::new();
        let pace = ClaimPace::default();
        let all_pools = Pools::new(services, context.settings.lend_idle_workers, &pace);
        worker::register(&mut workers, context, &all_pools)?;
        let delivers = works && context.settings.webhook_workers > 0;
        if delivers {
            deliveries::register(&mut workers, context)?;
        }
        let mut builder = Client::builder(river_pool)
            .id(id.clone())
            .workers(workers)
            .fetch_cooldown(FETCH_COOLDOWN)
            .without_job_timeout()
            // Jobs of kinds that only other clients know are left to them, in every lane.
            .fetch_only_known_kinds(true)
            .maintenance(maintenance(context.settings.river_retention))
            .job_stuck_threshold(STUCK_AFTER)
            .work_middleware(guard::Guard::new(
                context,
                &lookup,
                &lease,
                &under_way,
                Cancellations::new(context.clone(), interrupted.clone()),
            ));
        let mut pools = serde_json::Map::new();
        if works {
            builder = builder.pilot(Claims {
                pace,
                narrow: NarrowConnections::new(&context.database, leave_after_failover)?,
                pool: context.pool.clone(),
            });
            for (_, queue, size) in services.iter().flat_map(Service::queues) {
                pools.insert(queue.clone(), size.into());
                let room = all_pools.at_start(&queue);
                builder = builder.queue(queue, QueueConfig::new(room));
            }
        }
        if role == Role::Work || !context.settings.leads_river {
            builder = builder.without_leader_election();
        }
        if !works {
            let config = QueueConfig::new(1).with_fetch_poll_interval(LEADER_QUEUE_INTERVAL);
            builder = builder.queue(LEADER_QUEUE, config);
        }
        let client = builder.build()?;
        let stopped = CancellationToken::new();
        let mut tasks = Vec::new();
        if works {
            let heart = heartbeat::start(context, id.clone(), pools.into(), lease, stopped.clone());
            tasks.push(heart.await?);
            let watching = under_way::watch(context.clone(), id, under_way.clone(), stopped.clone());
            tasks.push(tokio::spawn(watching));
        }
        if delivers {
            let watching = deliveries::sync_webhook_queues(context.clone(), client.clone(), stopped.clone());
            tasks.push(tokio::spawn(watching));
        }
        if role != Role::Work {
            tasks.push(tokio::spawn(periodic::run(context.clone(), stopped.clone())));
        }
        tasks.push(notice_endings(&client, context, stopped.clone())?);
        let mut run = client.start()?;
        run.wait_ready().await?;
        tracing::info!(client = client.id(), ?role, workers = slots, "working");
        Ok(Self {
            client,
            interrupted: interrupted.drop_guard(),
            run,
            drain_timeout: context.settings.drain_timeout,
            under_way,
            stopped,
            tasks,
        })
    }

    /// Takes no new jobs, lets running ones finish up to the drain timeout, and returns the rest to their queues. That
    /// does not cost them an attempt.
    pub async fn stop(mut self) {
        let stopper = self.run.stopper();
        stopper.stop();
        let drained = tokio::time::timeout(self.drain_timeout, self.run.wait()).await;
        let stopped = match drained {
            Ok(stopped) => stopped,
            Err(_) => {
                // Cancels the attempts' tokens first, so that they count as a shutdown when River cancels its own.
                drop(self.interrupted);
                stopper.stop_and_cancel();
                let given_up = async {
                    self.under_way.over().await;
                    tokio::time::sleep(LAST_WRITES).await;
                };
                tokio::select! {
                    stopped = self.run.wait() => stopped,
                    () = given_up => {
                        tracing::warn!("the database did not answer during shutdown: other processes take over the remaining jobs");
                        Ok(())
                    }
                }
            }
        };
        if let Err(error) = stopped {
            tracing::warn!(%error, "River did not stop cleanly");
        }
        self.stopped.cancel();
        let tasks = futures_util::future::join_all(self.tasks);
        let _ = tokio::time::timeout(LAST_WRITES, tasks).await;
    }

    /// Completes when River's client ends unexpectedly.
    pub async fn ended(&mut self) {
        if let Err(error) = self.run.wait().await {
            tracing::error!(%error, "River's client stopped unexpectedly");
        }
    }
}

fn leave_after_failover() {
    heartbeat::end("the database has failed over, perhaps without its last commits");
}

/// River's id of this process: unique, and includes the host name.
fn client_id() -> String {
    format!("weir_{}_{}", host::name(), Uuid::new_v4().simple())
}

/// River records failures, cancellations and snoozes itself, and its events trigger their settlement. A job that was
/// refused a slot can be promoted only from then on: a slot freed while River was writing has passed it over.
fn notice_endings(
    client: &Client,
    context: &Context,
    stopped: CancellationToken,
) -> Result<tokio::task::JoinHandle<()>, DatabaseError> {
    let mut kinds = vec![EventKind::JobCancelled, EventKind::JobFailed];
    if context.settings.fairness.cluster_limits().is_some() {
        kinds.push(EventKind::JobSnoozed);
    }
    let mut events = client.subscribe(&kinds)?;
    let settler = context.settler.clone();
    Ok(tokio::spawn(async move {
        loop {
            let event = tokio::select! {
                event = events.recv() => event,
                () = stopped.cancelled() => return,
            };
            match event {
                // Deliveries hold no reservation.
                Ok(Event::Job(event)) if event.job.kind == DELIVERY_KIND => {}
                Ok(Event::Job(event)) => settler.notice(event.job.id, None),
                Ok(_) => {}
                // Reconciliation finds the endings of dropped events.
                Err(error) => {
                    tracing::debug!(%error, "events from River were dropped");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }))
}
