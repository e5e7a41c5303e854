//! The maintenance of an installation: reconciliation, expiry, cleaning. One process does it, under a lease.
//!
//! The lease is a row that only Weir's role can write. Any role can take an advisory lock.

use std::pin::pin;
use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::Error;
use tokio_postgres::types::ToSql;

use crate::database::PreparedClient;

/// The lifetime of a lease, by the database's clock. It ends earlier if its session ends.
const LEASE: Duration = Duration::from_secs(15);

/// The interval between renewals of the lease.
pub const RENEW_INTERVAL: Duration = Duration::from_secs(3);

/// The maximum time of a renewal. Together with one interval before the work starts and one before the renewal, this is
/// shorter than the lease.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(9);

/// Acquires the lease for this session, or renews it. Returns whether the session holds it. `has_started`: whether the
/// process has started the maintenance since it acquired the lease.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn acquire_lease(client: &PreparedClient, process: &str, has_started: bool) -> Result<bool, Error> {
    let params: [&(dyn ToSql + Sync); 3] = [&process, &LEASE.as_secs_f64(), &has_started];
    let row = client
        .query_one(include_str!("acquire_lease.sql"), &params)
        .await?;
    Ok(row.get("holds"))
}

/// Runs `work`, and renews the lease every `interval` until it ends. The work may also use the session. If the lease is
/// lost, drops the work and returns `None`.
pub async fn run_under_lease<T>(
    client: &PreparedClient,
    process: &str,
    interval: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    loop {
        let renewal = async {
            tokio::time::sleep(interval).await;
            tokio::time::timeout(RENEWAL_TIMEOUT, acquire_lease(client, process, false)).await
        };
        tokio::select! {
            biased;
            done = &mut work => return Some(done),
            renewed = renewal => {
                if !matches!(renewed, Ok(Ok(true))) {
                    return None;
                }
            }
        }
    }
}

/// When a process last ran the maintenance, if one has.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn last_done(client: &PreparedClient) -> Result<Option<Timestamp>, Error> {
    let row = client
        .query_one("SELECT max(done_at) AS done_at FROM maintenance_lease", &[])
        .await?;
    Ok(row.get("done_at"))
}

/// Notes the server's timeline. Returns it if the database reached it by a failover or a restore.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn note_timeline(client: &PreparedClient) -> Result<Option<i32>, Error> {
    let row = client.query_opt(include_str!("note_timeline.sql"), &[]).await?;
    Ok(row.filter(|row| row.get("is_new")).map(|row| row.get("timeline")))
}

/// Releases the lease, if this session holds it.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn release(client: &PreparedClient) -> Result<(), Error> {
    client.execute(include_str!("release.sql"), &[]).await?;
    Ok(())
}
