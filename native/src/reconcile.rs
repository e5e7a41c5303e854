//! Reconciliation: whatever ended without its worker's settlement (another River client, River UI, plain SQL, a
//! crash) is settled here; what a dead process ran is taken back; what lives is renewed.
//!
//! Any number of processes may run this; a lock in the database makes one of them do it, until it ends.

use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::database::DatabaseError;
use crate::settlement::{Ended, SettleError};
use crate::work::{Context, DEAD_AFTER};

/// Between two looks at what ended recently. An upgrade helps the jobs that already wait within a second.
const ROUND: Duration = Duration::from_millis(500);

/// Between two looks at everything.
const SLOW_ROUND: Duration = Duration::from_secs(15);

/// A job that another River client runs is stuck after this long, or after its timeout when that is longer.
const STUCK_AFTER: Duration = Duration::from_secs(60 * 60);

/// Any number, the same everywhere.
const LOCK: i64 = 0x77_65_69_73;

/// Why a round was not finished. The next one goes on where it left off.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The database cannot be used right now.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The settler cannot settle right now.
    #[error(transparent)]
    Settle(#[from] SettleError),
}

impl From<tokio_postgres::Error> for ReconcileError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}

/// A connection, and whether it holds the lock.
struct Duty {
    client: Client,
    mine: bool,
}

impl Duty {
    async fn open(context: &Context) -> Result<Self, DatabaseError> {
        let client = context.database.connect_bookkeeper().await?;
        // Whoever vanishes with its machine, or stands still, must not keep the lock.
        client
            .batch_execute(
                "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; \
                 SET idle_session_timeout = '10s'",
            )
            .await?;
        Ok(Self { client, mine: false })
    }

    async fn round(&mut self, context: &Context, everything: bool) -> Result<(), ReconcileError> {
        if !self.mine {
            let row = self.client.query_one("SELECT pg_try_advisory_lock($1)", &[&LOCK]);
            self.mine = row.await?.get(0);
        }
        if self.mine {
            round(context, &self.client, everything).await?;
        }
        Ok(())
    }
}

/// Goes on until it is stopped, also through outages.
pub async fn run(context: Context, stopped: CancellationToken) {
    let mut duty: Option<Duty> = None;
    let mut slow: Option<Instant> = None;
    loop {
        tokio::select! {
            () = tokio::time::sleep(ROUND) => {}
            () = stopped.cancelled() => return,
        }
        let everything = slow.is_none_or(|last| last.elapsed() >= SLOW_ROUND);
        let open = match duty.take() {
            Some(open) if !open.client.is_closed() => Ok(open),
            _ => Duty::open(&context).await,
        };
        let done = match open {
            Ok(mut open) => {
                let done = open.round(&context, everything).await;
                duty = Some(open);
                done
            }
            Err(error) => Err(error.into()),
        };
        match done {
            Ok(()) if everything => slow = Some(Instant::now()),
            Ok(()) => {}
            Err(error) => tracing::warn!(%error, "a round of reconciliation failed"),
        }
    }
}

/// One round. `everything` looks at all reservations, not only at what ended recently.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn round(context: &Context, client: &Client, everything: bool) -> Result<(), ReconcileError> {
    take_back(context, client, everything).await?;
    settle(context, client, include_str!("sql/ended_recently.sql")).await?;
    if everything {
        settle(context, client, include_str!("sql/ended_ever.sql")).await?;
        renew(context, client).await?;
        forget(client).await?;
    }
    let waiting: bool = client
        .query_one(
            "SELECT EXISTS (SELECT 1 FROM quota_reservations WHERE parked_at IS NOT NULL)",
            &[],
        )
        .await?
        .get(0);
    if waiting {
        context.settler.promote_waiting().await?;
    }
    Ok(())
}

async fn settle(context: &Context, client: &Client, sql: &str) -> Result<(), ReconcileError> {
    let rows = client.query(sql, &[]).await?;
    let mut settled = tokio::task::JoinSet::new();
    for row in rows {
        let (job_id, orphan): (i64, bool) = (row.get(0), row.get(1));
        if orphan {
            let user = row.get::<_, Option<uuid::Uuid>>(2).map(tracing::field::display);
            metrics::counter!("weir_orphans_total").increment(1);
            tracing::warn!(
                job = job_id,
                user,
                "a reservation outlived its job, which is gone; released"
            );
        }
        let settler = context.settler.clone();
        settled.spawn(async move {
            settler
                .settle(Ended {
                    job_id,
                    success: None,
                })
                .await
        });
    }
    while let Some(one) = settled.join_next().await {
        if let Ok(result) = one {
            result?;
        }
    }
    Ok(())
}

/// Jobs of processes that stopped beating go back to their queues; the attempt counts, since it may have got far. So do
/// those that another client has been running for too long, of the kinds whose timeout is known here.
async fn take_back(
    context: &Context,
    client: &Client,
    everything: bool,
) -> Result<(), tokio_postgres::Error> {
    let services = context.settings.services.iter().filter(|_| everything);
    let (kinds, timeouts): (Vec<&str>, Vec<f64>) = services
        .map(|service| {
            (
                service.kind.as_str(),
                service.timeout.max(STUCK_AFTER).as_secs_f64(),
            )
        })
        .unzip();
    let taken = client
        .query(
            include_str!("sql/take_back.sql"),
            &[&DEAD_AFTER.as_secs_f64(), &kinds, &timeouts],
        )
        .await?;
    for row in &taken {
        let (job_id, process, state): (i64, Option<&str>, &str) = (row.get(0), row.get(1), row.get(2));
        metrics::counter!("weir_reclaimed_total").increment(1);
        tracing::warn!(
            job = job_id,
            process,
            state,
            "taken back from a process that died"
        );
    }
    Ok(())
}

/// A reservation lives as long as its job, however long that is.
async fn renew(context: &Context, client: &Client) -> Result<(), tokio_postgres::Error> {
    let ttl = context.rules.ttl.as_secs_f64();
    client.execute(include_str!("sql/renew.sql"), &[&ttl]).await?;
    Ok(())
}

/// What nobody will ask for any more.
async fn forget(client: &Client) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(include_str!("sql/forget.sql")).await
}
