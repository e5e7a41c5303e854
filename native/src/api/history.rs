//! The last hour of the console's charts: a sample a minute, in the memory of this process.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use weir_ledger::database::{ConnectionPool, DatabaseError};
use weir_ledger::read::overview;
use weir_policy::lane::Lane;

use crate::config::Settings;
use crate::status::{self, ServiceLanes};

/// Jobs are counted over this time.
const INTERVAL: Duration = Duration::from_mins(1);

/// The number of samples to keep.
pub(super) const SAMPLES: usize = 60;

/// A minute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Jobs that completed.
    pub(super) completed: i64,
    /// Jobs that failed their last attempt.
    pub(super) failed: i64,
    /// Jobs that waited at its end, for a slot or for a worker.
    pub(super) waiting: i64,
    /// The 99th percentile of the time from when a job was ready until it started; `None` if none ended.
    pub(super) start_p99_ms: Option<i64>,
}

/// The samples, the oldest first.
#[derive(Clone, Default)]
pub(super) struct History(Arc<Mutex<VecDeque<Option<Sample>>>>);

impl History {
    /// Takes a sample now and then every minute until `stopping` is cancelled.
    pub(super) fn start(pool: ConnectionPool, settings: Arc<Settings>, stopping: CancellationToken) -> Self {
        let history = Self::default();
        let samples = Arc::clone(&history.0);
        tokio::spawn(stopping.run_until_cancelled_owned(async move {
            let mut ticks = tokio::time::interval(INTERVAL);
            loop {
                ticks.tick().await;
                // A minute that could not be counted is a gap.
                let taken = sample(&pool, &settings).await.ok();
                let mut samples = samples.lock();
                samples.push_back(taken);
                if samples.len() > SAMPLES {
                    samples.pop_front();
                }
            }
        }));
        history
    }

    /// The minutes of the last hour, the oldest first; `None` for one that could not be counted.
    pub(super) fn samples(&self) -> Vec<Option<Sample>> {
        self.0.lock().iter().copied().collect()
    }
}

async fn sample(pool: &ConnectionPool, settings: &Settings) -> Result<Sample, DatabaseError> {
    let lanes = pool
        .with(async |client| status::lanes(client, &settings.services).await)
        .await?;
    let ended = overview::last_minute(pool).await?;
    let of_lanes = |service: &ServiceLanes| Lane::ALL.map(|lane| service.lane(lane).queued);
    let queued: i64 = lanes.services.values().flat_map(of_lanes).sum();
    Ok(Sample {
        completed: ended.completed,
        failed: ended.failed,
        waiting: lanes.parked + queued,
        start_p99_ms: overview::start_p99(pool).await?.start_p99_ms,
    })
}
