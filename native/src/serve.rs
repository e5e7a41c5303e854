//! `weir serve`: the API over HTTP.

use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::api::{self, Api, Feed};
use crate::config::ConfigError;
use crate::database::DatabaseError;
use crate::holder::Holders;
use crate::reservation::Reserver;
use crate::work::Context;

/// Why the API does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A secret is missing.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The database could not be asked for what the API needs to know.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The port cannot be had.
    #[error("cannot listen on {0}: {1}; set WEIR_ORIGIN_PORT to a free port")]
    Listen(std::net::SocketAddr, std::io::Error),
    /// The port for probes cannot be had.
    #[error("cannot listen on {0}: {1}; set WEIR_METRICS_PORT to a free port")]
    ListenProbes(std::net::SocketAddr, std::io::Error),
    /// Accepting connections failed.
    #[error("serving ended: {0}")]
    Serve(std::io::Error),
}

/// Serves until `stopping` is cancelled and every answer under way is given.
///
/// # Errors
///
/// When it cannot start.
pub async fn run(
    context: Context,
    metrics: PrometheusHandle,
    stopping: CancellationToken,
) -> Result<(), ServeError> {
    let api = api(&context, metrics, stopping.clone()).await?;
    let address = context.settings.listen;
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| ServeError::Listen(address, error))?;
    tracing::info!(%address, "serving");
    axum::serve(listener, api::router(Arc::new(api)))
        .with_graceful_shutdown(stopping.cancelled_owned())
        .await
        .map_err(ServeError::Serve)
}

/// What the routes share, made from what the process shares.
///
/// # Errors
///
/// When a secret is missing or the database cannot be asked.
pub async fn api(
    context: &Context,
    metrics: PrometheusHandle,
    stopping: CancellationToken,
) -> Result<Api, ServeError> {
    let keys = context.settings.assertion_keys()?;
    let client = context.database.connect().await?;
    let holders = Holders::load(&client).await.map_err(DatabaseError::from)?;
    let river = riverqueue::Client::builder(context.database.river_pool(4)?)
        .build()
        .map_err(DatabaseError::from)?;
    Ok(Api {
        reserver: Reserver::start(context.database.clone(), Arc::clone(&context.rules)),
        settler: context.settler.clone(),
        pool: context.pool.clone(),
        settings: Arc::clone(&context.settings),
        handlers: context.handlers.clone(),
        keys,
        heard: api::edge::Heard::default(),
        holders,
        river,
        feed: Feed::start(context.pool.clone(), stopping.clone()),
        metrics,
        stopping,
    })
}
