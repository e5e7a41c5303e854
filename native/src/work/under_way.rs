//! The attempts that are under way in this process, and how they are kept from a leader that takes them for stuck.
//!
//! River's leader may be another program's client, whose rescuer knows neither these jobs nor how long they take. Any
//! client may be elected at any time, so it is done whoever leads: an attempt that lasts costs one small update a beat,
//! and a short one nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use weir_ledger::attempts::{self, MOST_KEPT};
use weir_ledger::database::DatabaseError;

use super::heartbeat::HEARTBEAT_INTERVAL;
use crate::context::Context;

/// A shorter attempt is left alone. With the time between two beats, a leader sees no attempt that is older than three
/// seconds.
const LONG: Duration = Duration::from_secs(1);

#[derive(Clone, Copy)]
struct Running {
    attempt: i16,
    since: Instant,
}

/// Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct UnderWay(Arc<Mutex<HashMap<i64, Running>>>);

impl UnderWay {
    /// Remembers an attempt until the result is dropped.
    pub(super) fn enter(&self, job_id: i64, attempt: i16) -> Entered<'_> {
        let since = Instant::now();
        self.0.lock().insert(job_id, Running { attempt, since });
        Entered {
            under_way: self,
            job_id,
        }
    }

    /// Jobs and attempts that have been running for long.
    fn long(&self) -> Vec<(i64, i16)> {
        let running = self.0.lock();
        let long = running
            .iter()
            .filter(|(_, running)| running.since.elapsed() >= LONG);
        long.map(|(job_id, running)| (*job_id, running.attempt)).collect()
    }
}

pub(super) struct Entered<'a> {
    under_way: &'a UnderWay,
    job_id: i64,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.under_way.0.lock().remove(&self.job_id);
    }
}

/// Keeps them until it is stopped. Apart from the heartbeats, which must not wait for it.
pub(super) async fn keep(
    context: Context,
    client_id: String,
    under_way: UnderWay,
    stopped: CancellationToken,
) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(HEARTBEAT_INTERVAL) => {}
            () = stopped.cancelled() => return,
        }
        for some in under_way.long().chunks(MOST_KEPT) {
            let (jobs, attempts): (Vec<i64>, Vec<i16>) = some.iter().copied().unzip();
            let kept = context.pool.read(async |client| {
                Ok::<_, DatabaseError>(attempts::keep(client, &client_id, &jobs, &attempts).await?)
            });
            if let Err(error) = kept.await {
                tracing::warn!(%error, "could not say that attempts are under way");
            }
        }
    }
}
