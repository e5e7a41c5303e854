//! The processes of `path` that no installation has. Two are workers with empty jobs, and their equivalent over bare River.
//! The third takes the decisions literally, on River.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use riverqueue::{Client, InsertOpts, Job, QueueConfig, WorkContext, WorkOutcome, Workers};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use super::super::jobs::Count;
use super::super::literal;
use super::super::report::BenchError;
use super::super::reserve::BareArgs;
use super::super::stage::KIND;
use super::NOTIFIED;
use weir::api::listen;
use weir::config::Settings;
use weir::context::Context;
use weir::telemetry::{logs, metrics};
use weir::work::{FETCH_COOLDOWN, Role, Working, reconcile};

/// The number of concurrent jobs on both sides.
pub(super) const WORKERS: u32 = 100;

/// Weir's workers and scheduler, as in `weir up`, with empty jobs.
pub(super) async fn workers(mut settings: Settings) -> Result<(), BenchError> {
    logs::start(settings.access_log);
    let _metrics = metrics::start(&settings).map_err(std::io::Error::other)?;
    for service in &mut settings.services {
        service.pools = [1, WORKERS, 1];
    }
    let context = Context::new(settings)?.with_handler(KIND, Arc::new(Count::default()));
    let _working = Working::start(&context, Role::Both, &context.settings.services).await?;
    reconcile::run(context, CancellationToken::new()).await;
    Ok(())
}

/// The variable with the shortest time between two notifications of a queue, in milliseconds.
pub(super) const NOTIFIED_MS: &str = "BENCH_NOTIFIED_MS";

fn notified() -> Duration {
    let given = std::env::var(NOTIFIED_MS).ok().and_then(|text| text.parse().ok());
    given.map_or(NOTIFIED, Duration::from_millis)
}

/// A route that inserts a job by River's client.
pub(super) async fn bare_origin(settings: &Settings) -> Result<(), BenchError> {
    let pool = settings.database()?.river_pool(super::load::CONNECTIONS as u32)?;
    let river = Client::builder(pool).fetch_cooldown(notified()).build()?;
    let router = Router::new().route("/jobs", post(insert)).with_state(river);
    serve(settings, router).await
}

/// Serves a router with the origin's server.
async fn serve(settings: &Settings, router: Router) -> Result<(), BenchError> {
    let listener = listen::bind(settings.listen, "WEIR_ORIGIN_PORT")
        .await
        .map_err(std::io::Error::other)?;
    listen::answer(
        listener,
        router,
        listen::Patience::default(),
        CancellationToken::new(),
    )
    .await;
    Ok(())
}

async fn insert(
    State(river): State<Client>,
    Json(args): Json<BareArgs>,
) -> Result<(StatusCode, Json<Value>), StatusCode> {
    let inserted = river
        .insert(args)
        .opts(InsertOpts::default().with_queue("analysis_default"))
        .await
        .map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    Ok((
        StatusCode::ACCEPTED,
        Json(json!({ "job": { "id": inserted.job.id() } })),
    ))
}

/// A route that reserves and inserts a job with the decisions taken literally, by River's client.
pub(super) async fn literal_origin(settings: &Settings) -> Result<(), BenchError> {
    let pool = settings.database()?.river_pool(super::load::CONNECTIONS as u32)?;
    let river = Client::builder(pool.clone()).fetch_cooldown(notified()).build()?;
    let router = Router::new()
        .route("/jobs", post(reserve))
        .with_state((river, pool));
    serve(settings, router).await
}

async fn reserve(
    State((river, pool)): State<(Client, PgPool)>,
    Json(args): Json<BareArgs>,
) -> Result<(StatusCode, Json<Value>), StatusCode> {
    let reserved = literal::reserve(&river, &pool, args).await;
    match reserved.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)? {
        Some(id) => Ok((StatusCode::ACCEPTED, Json(json!({ "job": { "id": id } })))),
        None => Err(StatusCode::TOO_MANY_REQUESTS),
    }
}

/// River's client with the same number of workers, and handlers with the decisions taken literally.
pub(super) async fn literal_workers(settings: &Settings) -> Result<(), BenchError> {
    let database = settings.database()?;
    let handlers = database.river_pool(literal::CONNECTIONS)?;
    let client = literal::workers(database.river_pool(10)?, handlers, WORKERS, &Count::default())?;
    let mut run = client.start()?;
    run.wait().await?;
    Ok(())
}

/// River's client with the same number of workers, without Weir.
pub(super) async fn bare_workers(settings: &Settings) -> Result<(), BenchError> {
    let mut workers = Workers::new();
    workers.add_fn::<BareArgs, _, _, _>(async |_: WorkContext, _: Job<BareArgs>| {
        Ok::<_, Infallible>(WorkOutcome::Complete)
    })?;
    let client = Client::builder(settings.database()?.river_pool(10)?)
        .workers(workers)
        .fetch_cooldown(FETCH_COOLDOWN)
        .queue("analysis_default", QueueConfig::new(WORKERS as usize))
        .build()?;
    let mut run = client.start()?;
    run.wait().await?;
    Ok(())
}

/// Whether a server listens on this address.
pub(super) async fn listens(address: SocketAddr) -> bool {
    tokio::net::TcpStream::connect(address).await.is_ok()
}
