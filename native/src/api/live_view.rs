//! The live view of the lanes: read about once a second for all who look, however many they are.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uuid::Uuid;
use weir_ledger::database::{DatabaseError, ReadPool};

use crate::config::service::Service;
use crate::status::{self, Lanes};

/// How many streams of the view a process has open in all.
const MOST_STREAMS: usize = 1000;

/// How many of them one holder has.
const MOST_STREAMS_OF_HOLDER: usize = 8;

#[derive(Default)]
pub(super) struct LiveView {
    /// The last view and until when it is shown. The lock is held while the next one is read, so that one reads for all, and
    /// finds out for all that the database is away.
    last: tokio::sync::Mutex<Option<(Instant, Result<Lanes, DatabaseError>)>>,
    streams: Arc<Mutex<HashMap<Uuid, usize>>>,
}

impl LiveView {
    /// The lanes as they were a moment ago.
    pub(super) async fn lanes(&self, pool: &ReadPool, services: &[Service]) -> Result<Lanes, DatabaseError> {
        let mut last = self.last.lock().await;
        if let Some((until, lanes)) = &*last
            && Instant::now() < *until
        {
            return lanes.clone();
        }
        let began = Instant::now();
        let lanes = pool
            .read(async |client| status::lanes(client, services).await)
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
    pub(super) fn stream(&self, holder: Uuid) -> Option<LiveStream> {
        let mut streams = self.streams.lock();
        if streams.values().sum::<usize>() >= MOST_STREAMS {
            return None;
        }
        let of_holder = streams.entry(holder).or_default();
        if *of_holder >= MOST_STREAMS_OF_HOLDER {
            return None;
        }
        *of_holder += 1;
        Some(LiveStream {
            streams: Arc::clone(&self.streams),
            holder,
        })
    }
}

/// A stream's place, until it is dropped.
pub(super) struct LiveStream {
    streams: Arc<Mutex<HashMap<Uuid, usize>>>,
    holder: Uuid,
}

impl Drop for LiveStream {
    fn drop(&mut self) {
        let mut streams = self.streams.lock();
        if let Some(of_holder) = streams.get_mut(&self.holder) {
            *of_holder -= 1;
            if *of_holder == 0 {
                streams.remove(&self.holder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_has_a_few_streams_and_all_together_have_a_limit() {
        let view = LiveView::default();
        let of_one: Vec<_> = (0..MOST_STREAMS_OF_HOLDER)
            .map(|_| view.stream(Uuid::nil()).unwrap())
            .collect();
        assert!(view.stream(Uuid::nil()).is_none());
        let others: Vec<_> = (1..=MOST_STREAMS - MOST_STREAMS_OF_HOLDER)
            .map(|n| view.stream(Uuid::from_u128(n as u128)).unwrap())
            .collect();
        assert!(view.stream(Uuid::from_u128(u128::MAX)).is_none());
        drop(of_one);
        assert!(view.stream(Uuid::from_u128(u128::MAX)).is_some());
        drop(others);
        assert!(view.streams.lock().is_empty());
    }
}
