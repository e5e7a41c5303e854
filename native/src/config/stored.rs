//! The services that the database has, for commands on machines without `weir.toml`.

use tokio_postgres::Client;
use weir_ledger::database::DatabaseError;
use weir_ledger::read::lanes;
use weir_policy::lane::Lane;

use super::service::{Amount, HandlerSpec, Service, Wake};
use std::time::Duration;

/// The services, with the parts that commands need. Pools and handlers are in the file only.
///
/// A service counts as external if live programs outside of Weir work it, and no live process of Weir does.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn services(client: &Client) -> Result<Vec<Service>, DatabaseError> {
    let stored = lanes::services(client).await?;
    let queues: Vec<String> = stored
        .iter()
        .flat_map(|service| Lane::ALL.map(|lane| lane.queue(&service.name)))
        .collect();
    let (own, external) = tokio::try_join!(lanes::workers(client), lanes::external_workers(client, &queues))?;
    let works = |workers: &[lanes::LaneWorkers], name: &str| {
        let queues = Lane::ALL.map(|lane| lane.queue(name));
        workers.iter().any(|row| queues.contains(&row.queue))
    };
    let service = |stored: lanes::StoredService| Service {
        pools: [0; 3],
        headroom: None,
        timeout: Duration::ZERO,
        expires_in: None,
        wake: Wake::Now,
        max_attempts: stored.max_attempts,
        unique_by: Vec::new(),
        retry: None,
        handler: if works(&external, &stored.name) && !works(&own, &stored.name) {
            HandlerSpec::External {
                amount: Amount::default(),
            }
        } else {
            HandlerSpec::Exec {
                command: Vec::new(),
                env: Vec::new(),
                amount: Amount::default(),
            }
        },
        meter: stored.meter,
        kind: stored.kind,
        name: stored.name,
    };
    Ok(stored.into_iter().map(service).collect())
}
