//! The live view of the lanes. It is read about once a second for all clients together.

use std::time::{Duration, Instant};

use uuid::Uuid;
use weir_ledger::database::{ConnectionPool, DatabaseError};

use super::holder_limiter::{HolderLimiter, Permit};
use crate::config::service::Service;
use crate::status::{self, Lanes};

/// The maximum number of open streams of a process.
const MAX_STREAMS: usize = 1000;

/// The maximum number of open streams of a holder.
const MAX_STREAMS_OF_HOLDER: usize = 8;

pub(super) struct LiveView {
    /// The last view and when it expires. A reader holds the lock during a read, so that one query serves all,
    /// including when the database is unreachable.
    last: tokio::sync::Mutex<Option<(Instant, Result<Lanes, DatabaseError>)>>,
    streams: HolderLimiter,
}

impl LiveView {
    /// The lanes, at most about a second old.
    pub(super) async fn lanes(
        &self,
        pool: &ConnectionPool,
        services: &[Service],
    ) -> Result<Lanes, DatabaseError> {
        let mut last = self.last.lock().await;
        if let Some((until, lanes)) = &*last
            && Instant::now() < *until
        {
            return lanes.clone();
        }
        let began = Instant::now();
        let lanes = pool
            .with(async |client| status::lanes(client, services).await)
            .await;
        let took = if lanes.is_ok() {
            began.elapsed()
        } else {
            Duration::ZERO
        };
        *last = Some((Instant::now() + status::cache_duration(took), lanes.clone()));
        lanes
    }

    /// A permit for another stream; `None` if too many are open.
    pub(super) fn stream(&self, holder: Uuid) -> Option<Permit> {
        self.streams.take(holder)
    }
}

impl Default for LiveView {
    fn default() -> Self {
        Self {
            last: tokio::sync::Mutex::default(),
            streams: HolderLimiter::new(MAX_STREAMS, MAX_STREAMS_OF_HOLDER),
        }
    }
}
