//! The process that runs maintenance: its session holds the lease.

use std::time::{Duration, Instant};

use weir_ledger::database::{DatabaseError, PreparedClient};
use weir_ledger::maintenance::{self, RENEW_INTERVAL};

use super::host;
use super::step::{STEP_TIMEOUT, within};
use crate::context::Context;

/// Maximum wait for a lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// A session that holds the lease or tries to take it.
pub(super) struct Elected {
    pub(super) client: PreparedClient,
    process: String,
    /// When the lease was last renewed; `None` while the session does not hold it.
    renewed: Option<Instant>,
}

impl Elected {
    pub(super) async fn open(context: &Context) -> Result<Self, DatabaseError> {
        Ok(Self {
            client: in_time(context.database.connect_with_lease(LOCK_TIMEOUT)).await?,
            process: format!("{}:{}", host::name(), std::process::id()),
            renewed: None,
        })
    }

    /// Whether the session held the lease when it last asked.
    pub(super) fn holds_lease(&self) -> bool {
        self.renewed.is_some()
    }

    /// Whether this session may run the next step. Takes the lease if it is free, and renews it when due.
    /// `has_started`: whether the process has started maintenance.
    pub(super) async fn is_elected(&mut self, has_started: bool) -> Result<bool, DatabaseError> {
        if self
            .renewed
            .is_some_and(|renewed| renewed.elapsed() < RENEW_INTERVAL)
        {
            return Ok(true);
        }
        let sent = Instant::now();
        // A session that takes the lease has not started maintenance yet.
        let has_started = has_started && self.renewed.is_some();
        let held = in_time(async {
            Ok(maintenance::acquire_lease(&self.client, &self.process, has_started).await?)
        })
        .await?;
        if self.renewed.is_some() && !held {
            tracing::warn!("another process runs maintenance now");
        }
        if held && self.renewed.is_none() {
            self.note_timeline().await?;
        }
        self.renewed = held.then_some(sent);
        Ok(held)
    }

    /// A failover ends every session, so one check per session is enough.
    async fn note_timeline(&self) -> Result<(), DatabaseError> {
        let noted = in_time(async { Ok(maintenance::note_timeline(&self.client).await?) }).await?;
        if let Some(timeline) = noted {
            tracing::warn!(
                timeline,
                "the database failed over to a new timeline; the last commits on the previous one may be lost"
            );
        }
        Ok(())
    }

    /// Runs a step for as long as the session holds the lease. Returns whether the session is still usable, as `step`
    /// does.
    pub(super) async fn during(&self, step: impl Future<Output = bool>) -> bool {
        let done = maintenance::run_under_lease(&self.client, &self.process, RENEW_INTERVAL, step).await;
        done.unwrap_or_else(|| {
            tracing::warn!("aborted a maintenance round, because its session lost the lease");
            false
        })
    }

    /// Releases the lease, so that another process can take it immediately.
    pub(super) async fn leave(self) {
        if self.renewed.is_some() {
            within("maintenance", async {
                Ok(maintenance::release(&self.client).await?)
            })
            .await;
        }
    }
}

async fn in_time<T>(asked: impl Future<Output = Result<T, DatabaseError>>) -> Result<T, DatabaseError> {
    tokio::time::timeout(STEP_TIMEOUT, asked)
        .await
        .unwrap_or(Err(DatabaseError::Timeout(STEP_TIMEOUT)))
}
