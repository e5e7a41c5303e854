//! Ends event streams whose service key was revoked or has expired. All streams of a key share one query.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use weir_ledger::control;
use weir_ledger::database::{ConnectionPool, DatabaseError};

/// The pause between two checks of a key.
const PAUSE: Duration = Duration::from_secs(5);

/// The keys of open streams.
pub(super) struct LiveKeys {
    pool: ConnectionPool,
    /// By name: when a key was last checked, and whether it was valid.
    checked: Mutex<HashMap<String, (Instant, bool)>>,
}

impl LiveKeys {
    pub(super) fn new(pool: ConnectionPool) -> Self {
        Self {
            pool,
            checked: Mutex::default(),
        }
    }

    /// Waits until this key is no longer valid. An outage of the database does not end streams.
    pub(super) async fn end_of(&self, name: &str) {
        loop {
            tokio::time::sleep(PAUSE).await;
            if !self.is_valid(name).await {
                return;
            }
        }
    }

    async fn is_valid(&self, name: &str) -> bool {
        let mut checked = self.checked.lock().await;
        if let Some((at, is_valid)) = checked.get(name)
            && at.elapsed() < PAUSE
        {
            return *is_valid;
        }
        let found = self
            .pool
            .with(async |client| Ok::<_, DatabaseError>(control::is_valid_key(client, name).await?))
            .await;
        let is_valid = found.unwrap_or(true);
        checked.insert(name.to_owned(), (Instant::now(), is_valid));
        is_valid
    }
}
