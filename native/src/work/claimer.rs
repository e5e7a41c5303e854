//! Claims jobs for free workers and starts their attempts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use weir_ledger::attempts::{self, Claimed, ClaimedJob};
use weir_ledger::database::DatabaseError;
use weir_ledger::read;

use super::lanes::{Lanes, Look, Permit, Planned};
use super::worker::Worker;

/// The jobs of a claim that took longer may count as lost already, and are not started.
const TOO_LATE: Duration = Duration::from_secs(8);

/// A claimed job and its worker.
type Started = (ClaimedJob, Permit);

/// Claims until it is stopped. Then waits for the attempts that have started.
pub(super) async fn run(worker: Arc<Worker>, stopped: CancellationToken) {
    let mut tasks = JoinSet::new();
    loop {
        let (planned, wait) = worker.lanes.plan(Instant::now());
        let (alone, together): (Vec<Planned>, Vec<Planned>) =
            planned.into_iter().partition(Planned::is_alone);
        let groups = alone.into_iter().map(|one| vec![one]);
        for group in groups.chain([together]).filter(|group| !group.is_empty()) {
            tasks.spawn(claim(Arc::clone(&worker), group));
        }
        tokio::select! {
            () = stopped.cancelled() => break,
            () = worker.lanes.changed() => {}
            () = tokio::time::sleep(wait) => {}
            Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                start(&worker, &mut tasks, ended);
            }
        }
    }
    while let Some(ended) = tasks.join_next().await {
        start(&worker, &mut tasks, ended);
    }
}

fn start(
    worker: &Arc<Worker>,
    tasks: &mut JoinSet<Vec<Started>>,
    ended: Result<Vec<Started>, tokio::task::JoinError>,
) {
    let jobs = ended.unwrap_or_else(|error| {
        tracing::error!(%error, "a task of the worker failed; its jobs run again");
        Vec::new()
    });
    for (job, permit) in jobs {
        let worker = Arc::clone(worker);
        tasks.spawn(async move {
            worker.run(job, permit).await;
            Vec::new()
        });
    }
}

/// Claims that have not ended. If they do not end, because their task panics, they are planned again.
struct Unfinished {
    lanes: Arc<Lanes>,
    group: Vec<Planned>,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.group.iter().for_each(|planned| self.lanes.failed(planned));
    }
}

async fn claim(worker: Arc<Worker>, group: Vec<Planned>) -> Vec<Started> {
    let lanes = Arc::clone(&worker.lanes);
    let mut unfinished = Unfinished {
        lanes: Arc::clone(&lanes),
        group,
    };
    let group = &unfinished.group;
    let queues: Vec<_> = group.iter().map(|planned| planned.claim.clone()).collect();
    let is_slow = group.iter().any(Planned::is_slow);
    let claimed = async {
        let began = match is_slow {
            true => Some(read::lanes::clock(&worker.pool).await?),
            false => None,
        };
        let sent = Instant::now();
        let claimed = attempts::claim(&worker.pool, &worker.id, &worker.known_kinds, &queues).await?;
        Ok::<_, DatabaseError>((claimed, began, sent.elapsed()))
    };
    match claimed.await {
        Ok((_, _, time)) if time > TOO_LATE => {
            tracing::warn!("a claim took too long; its jobs return to their queues");
            Vec::new()
        }
        Ok((Claimed { jobs, unlent }, began, time)) => {
            if !unfinished.group.iter().any(Planned::lends) {
                lanes.record(time, jobs.len());
            }
            for planned in std::mem::take(&mut unfinished.group) {
                let of_queue: Vec<&ClaimedJob> = jobs
                    .iter()
                    .filter(|job| job.queue == planned.claim.queue)
                    .collect();
                let may_lend = unlent.contains(&planned.claim.queue);
                if let Some(look) = lanes.claimed(&planned, (time, jobs.len()), &of_queue, may_lend, began) {
                    tokio::spawn(look_for_earlier(Arc::clone(&worker), look));
                }
            }
            jobs.into_iter()
                .map(|job| {
                    let permit = lanes.permit(&job.queue, job.is_lent);
                    (job, permit)
                })
                .collect()
        }
        Err(error) => {
            tracing::warn!(%error, "could not claim jobs");
            Vec::new()
        }
    }
}

async fn look_for_earlier(worker: Arc<Worker>, look: Look) {
    let (queue, sent) = (look.queue, Instant::now());
    let looked = read::lanes::has_earlier(&worker.pool, &queue, look.before, Some(&worker.known_kinds)).await;
    if let Err(error) = &looked {
        tracing::warn!(%error, queue, "could not look for earlier jobs, so the next claim reads the whole queue");
    }
    worker.lanes.looked(&queue, sent.elapsed(), looked.ok());
}
