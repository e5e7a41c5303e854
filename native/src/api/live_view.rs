//! The live view of the lanes: read about once a second for all who look, however many they are.

use std::time::{Duration, Instant};

use uuid::Uuid;
use weir_ledger::database::{ConnectionPool, DatabaseError};

use super::places::{Place, Places};
use crate::config::service::Service;
use crate::status::{self, Lanes};

/// How many streams of the view a process has open in all.
const MAX_STREAMS: usize = 1000;

/// How many of them one holder has.
const MAX_STREAMS_OF_HOLDER: usize = 8;

pub(super) struct LiveView {
    /// The last view and until when it is shown. The lock is held while the next one is read, so that one reads for all, and
    /// finds out for all that the database is away.
    last: tokio::sync::Mutex<Option<(Instant, Result<Lanes, DatabaseError>)>>,
    places: Places,
}

impl LiveView {
    /// The lanes as they were a moment ago.
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
        *last = Some((Instant::now() + status::shown_for(took), lanes.clone()));
        lanes
    }

    /// A place for one more stream; `None` when there are too many.
    pub(super) fn stream(&self, holder: Uuid) -> Option<Place> {
        self.places.take(holder)
    }
}

impl Default for LiveView {
    fn default() -> Self {
        Self {
            last: tokio::sync::Mutex::default(),
            places: Places::new(MAX_STREAMS, MAX_STREAMS_OF_HOLDER),
        }
    }
}
