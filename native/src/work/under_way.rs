//! The attempts that run in this process. Keeps a leader from treating them as stuck, and finds jobs that were claimed
//! for this process without its knowledge.
//!
//! River's leader may be a client in another program. Its rescuer knows neither these jobs nor how long they take. Any
//! client may be elected at any time, so this runs whichever client leads. A long attempt costs one small update per
//! heartbeat, and a short one costs nothing.
//!
//! River claims jobs in one statement. If the connection fails before the response arrives, the database lists the jobs
//! as running here, but no worker has them. This process is alive, so no other process takes them over. It therefore
//! returns them to their queues itself.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use riverqueue::JobRow;
use tokio_util::sync::CancellationToken;
use weir_ledger::attempts::{self, MAX_REFRESHED};
use weir_ledger::control::DELIVERY_KIND;
use weir_ledger::database::DatabaseError;
use weir_ledger::processes::DEAD_AFTER;

use super::heartbeat::HEARTBEAT_INTERVAL;
use super::step::Pause;
use crate::context::Context;

/// Shorter attempts are left alone. Together with the heartbeat interval, a leader sees no attempt older than three
/// seconds.
const LONG: Duration = Duration::from_secs(1);

/// After this long, a claim counts as lost. If it arrives later, another attempt has the job.
const LOST_AFTER: Duration = DEAD_AFTER;

/// River records the end of an attempt some time later, and much later in an outage.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Interval between checks whether attempts have ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A claim of a job: no two claims share all of these fields.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Claim {
    job_id: i64,
    attempt: i16,
    claims: usize,
}

impl Claim {
    fn name(&self) -> String {
        attempts::claim_of(i32::from(self.attempt), self.claims)
    }
}

#[derive(Clone, Copy)]
enum Stage {
    RunningSince(Instant),
    /// It has ended, and River is about to record that.
    OverSince(Instant),
}

/// Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct UnderWay(Arc<Mutex<HashMap<Claim, Stage>>>);

impl UnderWay {
    /// Remembers an attempt until the result is dropped, and for a while longer.
    pub(super) fn enter(&self, job: &JobRow) -> Entered<'_> {
        let claim = Claim {
            job_id: job.id,
            attempt: i16::try_from(job.attempt).unwrap_or(i16::MAX),
            claims: job.attempted_by.len(),
        };
        self.0.lock().insert(claim, Stage::RunningSince(Instant::now()));
        Entered {
            under_way: self,
            claim,
            is_settled: false,
        }
    }

    /// Completes once no attempt is running.
    pub(super) async fn over(&self) {
        let is_running = |stage: &Stage| matches!(stage, Stage::RunningSince(_));
        while self.0.lock().values().any(is_running) {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// The ids and attempts of long-running jobs.
    fn long(&self) -> Vec<(i64, i16)> {
        let known = self.0.lock();
        let long = known.iter().filter_map(|(claim, stage)| match stage {
            Stage::RunningSince(since) if since.elapsed() >= LONG => Some((claim.job_id, claim.attempt)),
            _ => None,
        });
        long.collect()
    }

    /// Those of these claims that this process does not know. Ended attempts that are not among them have been
    /// recorded, and are forgotten.
    fn unknown(&self, claimed: Vec<(i64, String)>) -> Vec<(i64, String)> {
        let mut unknown: HashSet<(i64, String)> = claimed.into_iter().collect();
        self.0.lock().retain(|claim, stage| {
            let is_claimed = unknown.remove(&(claim.job_id, claim.name()));
            match stage {
                Stage::RunningSince(_) => true,
                Stage::OverSince(over) => is_claimed || over.elapsed() < REMEMBERED,
            }
        });
        unknown.into_iter().collect()
    }
}

pub(super) struct Entered<'a> {
    under_way: &'a UnderWay,
    claim: Claim,
    is_settled: bool,
}

impl Entered<'_> {
    /// A transaction of Weir's has ended the attempt, so River has nothing to record.
    pub(super) fn settled(&mut self) {
        self.is_settled = true;
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut known = self.under_way.0.lock();
        if self.is_settled {
            known.remove(&self.claim);
        } else {
            known.insert(self.claim, Stage::OverSince(Instant::now()));
        }
    }
}

/// Protects long attempts, and returns lost claims to their queues, until it is stopped. Separate from the heartbeats,
/// which must not wait for it.
pub(super) async fn watch(
    context: Context,
    client_id: String,
    under_way: UnderWay,
    stopped: CancellationToken,
) {
    let mut pause = Pause::none();
    loop {
        tokio::select! {
            () = tokio::time::sleep(HEARTBEAT_INTERVAL) => {}
            () = stopped.cancelled() => return,
        }
        for some in under_way.long().chunks(MAX_REFRESHED) {
            let (jobs, attempts): (Vec<i64>, Vec<i16>) = some.iter().copied().unzip();
            let refreshed = context.pool.with(async |client| {
                Ok::<_, DatabaseError>(attempts::refresh(client, &client_id, &jobs, &attempts).await?)
            });
            if let Err(error) = refreshed.await {
                tracing::warn!(%error, "could not record the running attempts");
            }
        }
        if pause.is_over() {
            match requeue_lost(&context, &client_id, &under_way).await {
                Ok(looking) => pause.after(looking),
                Err(error) => tracing::warn!(%error, "could not check for lost claims"),
            }
        }
    }
}

/// Makes the jobs of lost claims available again. Returns how long the look at long attempts took.
async fn requeue_lost(
    context: &Context,
    client_id: &str,
    under_way: &UnderWay,
) -> Result<Duration, DatabaseError> {
    let services = &context.settings.services;
    let kinds: Vec<&str> = services
        .iter()
        .map(|service| service.kind.as_str())
        .chain([DELIVERY_KIND])
        .collect();
    let taken = context.pool.with(async |client| {
        let began = Instant::now();
        let claimed = attempts::claimed(client, client_id, &kinds, LOST_AFTER).await?;
        let looking = began.elapsed();
        let unknown = under_way.unknown(claimed);
        if unknown.is_empty() {
            return Ok((Vec::new(), looking));
        }
        let taken = attempts::requeue_lost(client, client_id, &unknown).await?;
        Ok::<_, DatabaseError>((taken, looking))
    });
    let (taken, looking) = taken.await?;
    for (job_id, state) in taken {
        metrics::counter!("weir_reclaimed_total").increment(1);
        tracing::warn!(
            job = job_id,
            state,
            "took over a job that was claimed but never started"
        );
    }
    Ok(looking)
}
