//! Processes that work jobs. Each has a row and sends a heartbeat every two seconds.

use std::time::Duration;

use serde_json::Value;
use tokio_postgres::{Client, GenericClient};

/// A process without a heartbeat for this long is dead. Its jobs are taken over.
pub const DEAD_AFTER: Duration = Duration::from_secs(10);

/// The entry of `pools` with the number of workers that deliver to each webhook.
pub const DELIVERY_POOL: &str = "weir_webhooks";

/// Registers a process under a unique name. `pools` maps queue names to numbers of workers, and `lends` to how many of
/// them may be lent. Returns the timeline of the
/// server's history, if it tells.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn register(
    client: &Client,
    client_id: &str,
    pools: &Value,
    lends: &Value,
) -> Result<Option<i32>, tokio_postgres::Error> {
    let sql =
        "INSERT INTO processes (client_id, pools, lends) VALUES ($1, $2, $3) RETURNING current_timeline()";
    Ok(client.query_one(sql, &[&client_id, pools, lends]).await?.get(0))
}

/// Sends a heartbeat. Returns `None` if the process no longer counts as alive, by the database's clock, and otherwise the
/// timeline of the server's history, if it tells.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn beat(client: &Client, client_id: &str) -> Result<Option<Option<i32>>, tokio_postgres::Error> {
    let beaten = client
        .query_opt(
            include_str!("sql/beat.sql"),
            &[&client_id, &DEAD_AFTER.as_secs_f64()],
        )
        .await?;
    Ok(beaten.map(|row| row.get(0)))
}

/// Unregisters the process, unless a job still names it as its worker. Such a row stays until the process is dead and
/// its jobs are taken over. Returns whether the row was deleted.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn sign_off(client: &Client, client_id: &str) -> Result<bool, tokio_postgres::Error> {
    let gone = client
        .execute(
            "DELETE FROM processes WHERE client_id = $1 AND NOT EXISTS (SELECT 1 FROM river_job j \
                 WHERE j.state = 'running' AND j.attempted_by[array_upper(j.attempted_by, 1)] = $1)",
            &[&client_id],
        )
        .await?;
    Ok(gone > 0)
}

/// The workers of all live processes that deliver to each webhook.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn delivery_workers(client: &impl GenericClient) -> Result<i64, tokio_postgres::Error> {
    let sql = "SELECT coalesce(sum((pools ->> $1::text)::bigint), 0)::bigint FROM processes \
               WHERE beat_at > clock_timestamp() - make_interval(secs => $2)";
    let row = client
        .query_one(sql, &[&DELIVERY_POOL, &DEAD_AFTER.as_secs_f64()])
        .await?;
    Ok(row.get(0))
}
