//! `weir serve`: the API over HTTP.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use metrics_exporter_prometheus::PrometheusHandle;
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;

use super::changes::Changes;
use super::console;
use super::edge_reports::RecentReports;
use super::feed::Feed;
use super::history::History;
use super::job_token::JobTokens;
use super::listen::{self, ListenError, Patience};
use super::live_keys::LiveKeys;
use super::live_view::LiveView;
use super::probes::{self, Probes};
use super::receiving::Receiving;
use super::router;
use super::sending::Sending;
use super::sessions::Sessions;
use super::state::Api;
use super::wrong_keys::WrongKeys;
use crate::config::{ConfigError, Settings};
use crate::context::Context;
use crate::handler::AttemptTokens;
use weir_ledger::database::DatabaseError;
use weir_ledger::holder::Holders;
use weir_ledger::reservation::Reserver;

/// Why the API cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A secret is missing.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The API could not read its state from the database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The port is not available.
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// Serves until `stopping` is cancelled, then finishes the open answers. `/readyz` returns 503 once `unready` is
/// cancelled.
///
/// # Errors
///
/// When it cannot start.
pub async fn run(
    context: Context,
    metrics: PrometheusHandle,
    unready: CancellationToken,
    stopping: CancellationToken,
) -> Result<(), ServeError> {
    let probes = Probes::new(&context, metrics, unready);
    let router = tokio::select! {
        router = router(&context, stopping.clone()) => router?,
        () = stopping.cancelled() => return Ok(()),
    };
    let router = router.merge(probes::router(Arc::new(probes)));
    let address = context.settings.listen;
    let listener = listen::bind(address, "WEIR_ORIGIN_PORT").await?;
    tracing::info!(%address, "serving");
    listen::answer(listener, router, Patience::default(), stopping).await;
    Ok(())
}

/// The routes of the API and the console, without the probes.
///
/// # Errors
///
/// When a secret is missing or the database query fails.
pub async fn router(context: &Context, stopping: CancellationToken) -> Result<Router, ServeError> {
    let api = Arc::new(api(context, stopping).await?);
    Ok(router::router(Arc::clone(&api)).merge(console::router(api)))
}

/// The maximum time that a cancellation waits for its job's row. Few run at once, and each uses one of River's
/// connections.
const CANCEL_PATIENCE: Duration = Duration::from_millis(500);

/// The state that the routes share, built from the process's context.
///
/// # Errors
///
/// When a secret is missing or the database query fails.
async fn api(context: &Context, stopping: CancellationToken) -> Result<Api, ServeError> {
    let keys = context.settings.assertion_keys()?;
    let client = context.database.connect().await?;
    let holders = Holders::load(&client).await.map_err(DatabaseError::from)?;
    let river = context.database.river_pool_of_requests(4, CANCEL_PATIENCE)?;
    let river = riverqueue::Client::builder(river)
        .build()
        .map_err(DatabaseError::from)?;
    Ok(Api {
        reserver: Reserver::start(&context.database),
        settler: context.settler.clone(),
        database: context.database.clone(),
        pool: context.pool.clone(),
        sending: Sending::new(),
        receiving: Receiving::new(),
        changes: Changes::new(&context.database),
        settings: Arc::clone(&context.settings),
        handlers: context.handlers.clone(),
        keys,
        reports: RecentReports::default(),
        wrong_keys: WrongKeys::default(),
        live_keys: LiveKeys::new(context.pool.clone()),
        holders,
        river,
        feed: Feed::start(context.pool.clone(), stopping.clone()),
        job_tokens: JobTokens::new(edge_secrets(&context.settings), holders.namespace()),
        sessions: Sessions::new(edge_secrets(&context.settings), holders.namespace()),
        attempt_tokens: AttemptTokens::new(&context.settings.handler_secrets, holders.namespace()),
        history: History::start(
            context.pool.clone(),
            Arc::clone(&context.settings),
            stopping.clone(),
        ),
        live_view: LiveView::default(),
        stopping,
    })
}

/// The secrets that the edge and the origin share, the current one first.
fn edge_secrets(settings: &Settings) -> impl Iterator<Item = &SecretString> {
    [&settings.edge_secret, &settings.edge_secret_previous]
        .into_iter()
        .flatten()
}
