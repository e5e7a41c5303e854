//! Working: claims of River's jobs, their attempts, and maintenance.
//!
//! River stays the queue: these are its tables, states and notifications, and its own client leads in `weir schedule`.

mod attempt_error;
mod attempt_log;
mod claim_pace;
mod claim_start;
mod claimer;
mod clean;
mod deliveries;
mod elected;
mod heartbeat;
mod host;
mod internal;
mod lanes;
mod notifications;
mod periodic;
mod progress;
pub mod reconcile;
mod retry;
mod settlements;
mod step;
mod unclaimed;
mod under_way;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use riverqueue::{
    Client, Job, MaintenanceConfig, QueueConfig, Retention, RunHandle, WorkContext, WorkOutcome, Workers,
};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use crate::config::RiverRetention;
use crate::config::service::Service;
use crate::context::Context;
use weir_ledger::attempts::touch_queues;
use weir_ledger::database::DatabaseError;
use weir_ledger::processes::DELIVERY_POOL;

use lanes::Lanes;
use under_way::UnderWay;
use worker::Worker;

pub use heartbeat::HEARTBEAT_INTERVAL;

/// An empty queue. River's client requires a queue and a kind even when it only leads.
const LEADER_QUEUE: &str = "weir_leader";

/// A kind without jobs.
#[derive(Debug, Deserialize, Serialize)]
struct NoJob {}

impl riverqueue::JobArgs for NoJob {
    const KIND: &'static str = "weir:none";
}

/// The time between two claims from it.
const LEADER_QUEUE_INTERVAL: Duration = Duration::from_secs(60);

/// River's rescuer treats a job as stuck after this long. It would discard jobs of unknown kinds, so reconciliation
/// takes over stuck jobs instead.
const RESCUE_AFTER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// River's leader deletes queues that have not been in use for a day.
const TOUCH_INTERVAL: Duration = Duration::from_secs(10 * 60);

/// The maximum time that a shutdown waits for the database after the drain time, once no handler runs. Another process
/// takes over attempts without a written result.
const LAST_WRITES: Duration = Duration::from_secs(1);

pub use claim_pace::FETCH_COOLDOWN;

/// The tasks of River's leader in this process.
fn maintenance(retention: RiverRetention) -> MaintenanceConfig {
    MaintenanceConfig::default()
        .with_rescue_after(RESCUE_AFTER)
        .with_completed_job_retention(Retention::DeleteAfter(retention.completed))
        .with_cancelled_job_retention(Retention::DeleteAfter(retention.cancelled))
        .with_discarded_job_retention(Retention::DeleteAfter(retention.discarded))
}

/// What a process does with jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Works jobs and never leads: `weir work`.
    Work,
    /// Leads and works nothing: `weir schedule`.
    Lead,
    /// Both: `weir up`.
    Both,
}

/// A process that works or leads.
pub struct Working {
    id: String,
    works: Option<Works>,
    leads: Option<(Client, RunHandle)>,
    drain_timeout: Duration,
    stopped: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

struct Works {
    claimer: JoinHandle<()>,
    /// Stops the claims.
    claiming: DropGuard,
    under_way: UnderWay,
}

impl Working {
    /// Starts to work the lanes of these services, except external ones, and to lead.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached or River refuses the configuration.
    pub async fn start(context: &Context, role: Role, services: &[Service]) -> Result<Self, DatabaseError> {
        let services: Vec<&Service> = services.iter().filter(|service| !service.is_external()).collect();
        let id = format!("weir_{}_{}", host::name(), Uuid::new_v4().simple());
        let stopped = CancellationToken::new();
        let mut tasks = Vec::new();
        // First, because a start that fails afterwards would abandon jobs.
        let leads = match role {
            Role::Work => None,
            Role::Lead | Role::Both => lead(context, &id).await?,
        };
        let works = match role {
            Role::Lead => None,
            Role::Work | Role::Both => Some(work(context, &services, &id, &stopped, &mut tasks).await?),
        };
        if role != Role::Work {
            tasks.push(tokio::spawn(periodic::run(context.clone(), stopped.clone())));
        }
        let workers: u32 = services.iter().flat_map(|service| service.pools).sum();
        tracing::info!(client = id, ?role, workers, "working");
        Ok(Self {
            id,
            works,
            leads,
            drain_timeout: context.settings.drain_timeout,
            stopped,
            tasks,
        })
    }

    /// The name of this process in River's table: unique, and includes the host name.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Takes no new jobs, lets running ones finish up to the drain timeout, and returns the rest to their queues. That
    /// does not cost them an attempt.
    pub async fn stop(self) {
        let leads = async {
            if let Some((_, mut run)) = self.leads {
                run.stopper().stop_and_cancel();
                if let Ok(Err(error)) = tokio::time::timeout(LAST_WRITES, run.wait()).await {
                    tracing::warn!(%error, "River did not stop cleanly");
                }
            }
        };
        let works = async {
            if let Some(works) = self.works {
                works.stop(self.drain_timeout).await;
            }
        };
        tokio::join!(leads, works);
        self.stopped.cancel();
        let tasks = futures_util::future::join_all(self.tasks);
        let _ = tokio::time::timeout(LAST_WRITES, tasks).await;
    }

    /// Completes when a part ends unexpectedly.
    pub async fn ended(&mut self) {
        let claimer = async {
            match &mut self.works {
                Some(works) => (&mut works.claimer).await.err(),
                None => std::future::pending().await,
            }
        };
        let river = async {
            match &mut self.leads {
                Some((_, run)) => run.wait().await.err(),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            error = claimer => tracing::error!(?error, "claiming stopped unexpectedly"),
            error = river => tracing::error!(?error, "River's client stopped unexpectedly"),
        }
    }
}

impl Works {
    async fn stop(mut self, drain_timeout: Duration) {
        drop(self.claiming);
        if tokio::time::timeout(drain_timeout, &mut self.claimer)
            .await
            .is_ok()
        {
            return;
        }
        self.under_way.stop_all();
        let given_up = async {
            self.under_way.over().await;
            tokio::time::sleep(LAST_WRITES).await;
        };
        tokio::select! {
            _ = &mut self.claimer => {}
            () = given_up => {
                tracing::warn!("the database did not answer during shutdown: other processes take over the remaining jobs");
                self.claimer.abort();
            }
        }
    }
}

/// Starts to claim the lanes of these services.
async fn work(
    context: &Context,
    services: &[&Service],
    id: &str,
    stopped: &CancellationToken,
    tasks: &mut Vec<JoinHandle<()>>,
) -> Result<Works, DatabaseError> {
    let delivery_workers = context.settings.webhook_workers;
    let pools: serde_json::Map<_, _> = services
        .iter()
        .flat_map(|service| service.queues())
        .map(|(_, queue, size)| (queue, size.into()))
        .chain([(DELIVERY_POOL.to_owned(), delivery_workers.into())])
        .collect();
    let lends: serde_json::Map<_, _> = services
        .iter()
        .flat_map(|service| {
            service
                .queues()
                .map(|(_, queue, size)| (queue, service.lendable(size).into()))
        })
        .collect();
    let slots: u32 = services.iter().flat_map(|service| service.pools).sum();
    let lanes = Lanes::new(services, context.settings.lend_idle_workers);
    let pool = context.database.pool(10.min(slots as usize + 4));
    touch_queues(&pool, &lanes.names()).await?;
    let heart = heartbeat::start(
        context,
        id.to_owned(),
        (pools.into(), lends.into()),
        stopped.clone(),
    );
    tasks.push(heart.await?);
    let listener = notifications::listen(context).await?;
    let worker = Arc::new(Worker::new(context, id.to_owned(), lanes, pool));
    let under_way = worker.under_way.clone();
    let watching = under_way::watch(context.clone(), id.to_owned(), under_way.clone(), stopped.clone());
    tasks.push(tokio::spawn(watching));
    let claiming = CancellationToken::new();
    let (background, stopping) = (Arc::clone(&worker), stopped.clone());
    let claims_stopped = claiming.clone();
    tasks.push(tokio::spawn(async move {
        let worker = background;
        let delivers = async {
            if delivery_workers > 0 {
                let workers = delivery_workers as usize;
                let following = deliveries::sync_webhook_queues(&worker.pool, &worker.lanes, workers);
                claims_stopped.run_until_cancelled(following).await;
            }
            std::future::pending().await
        };
        tokio::select! {
            () = stopping.cancelled() => {}
            never = notifications::receive(&worker, listener) => match never {},
            () = touch(&worker) => {}
            () = delivers => {}
        }
    }));
    Ok(Works {
        claimer: tokio::spawn(claimer::run(worker, claiming.clone())),
        claiming: claiming.drop_guard(),
        under_way,
    })
}

/// Shows River's leader that the queues are in use.
async fn touch(worker: &Worker) {
    loop {
        tokio::time::sleep(TOUCH_INTERVAL).await;
        if let Err(error) = touch_queues(&worker.pool, &worker.lanes.names()).await {
            tracing::warn!(%error, "could not show that the queues are in use");
        }
    }
}

/// Starts River's client, which leads or waits to lead.
async fn lead(context: &Context, id: &str) -> Result<Option<(Client, RunHandle)>, DatabaseError> {
    if !context.settings.leads_river {
        return Ok(None);
    }
    let mut workers = Workers::new();
    workers.add_fn::<NoJob, _, _, _>(async |_: WorkContext, _: Job<NoJob>| {
        Ok::<_, std::convert::Infallible>(WorkOutcome::Complete)
    })?;
    let client = Client::builder(context.database.river_pool(4)?)
        .id(id)
        .workers(workers)
        .fetch_only_known_kinds(true)
        .maintenance(maintenance(context.settings.river_retention))
        .queue(
            LEADER_QUEUE,
            QueueConfig::new(1).with_fetch_poll_interval(LEADER_QUEUE_INTERVAL),
        )
        .build()?;
    let mut run = client.start()?;
    run.wait_ready().await?;
    Ok(Some((client, run)))
}
