//! Health, readiness and metrics of a process.
//!
//! `weir serve` and `weir up` answer on the API's port, `weir work` and `weir schedule` on a separate one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Serialize;
use tokio::sync::Mutex;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use super::listen::{self, ListenError, Patience};
use crate::context::Context;
use crate::status::cache_duration;
use crate::telemetry::gauges::Gauges;
use weir_ledger::database::{ConnectionPool, Database, DatabaseError, FromDatabase};
use weir_ledger::read::{overview, probes};

/// The maximum time that a probe waits for the database: less than the usual timeout of a prober.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(3);

/// The state that the probes' routes share.
pub struct Probes {
    database: Database,
    pool: ConnectionPool,
    metrics: PrometheusHandle,
    gauges: Gauges,
    /// The gauges are not read again before this time, even if several clients scrape them.
    shown_until: Mutex<Option<Instant>>,
    /// Whether this process may lead River.
    leads_river: bool,
    /// Cancelled when the process starts to stop.
    unready: CancellationToken,
}

/// Whether a process is ready, and if not, why.
#[derive(Debug, Serialize)]
struct Readiness {
    ready: bool,
    database: &'static str,
    migrations: &'static str,
    /// For the whole installation. A process without a leader is ready: the API accepts jobs and the workers run them.
    /// Only retries wait for a River leader, and reconciliation for a maintenance leader.
    leader: &'static str,
    maintenance: &'static str,
    /// The server's timeline. Only after a failover or a restore.
    #[serde(skip_serializing_if = "Option::is_none")]
    timeline: Option<i32>,
    stopping: bool,
}

/// Why the database accepts no submissions.
enum Unready {
    ReadOnly,
    Unavailable(DatabaseError),
}

impl From<DatabaseError> for Unready {
    fn from(error: DatabaseError) -> Self {
        Self::Unavailable(error)
    }
}

impl FromDatabase for Unready {
    fn database(&self) -> Option<&DatabaseError> {
        match self {
            // A connection that was opened to a replica stays read-only.
            Self::ReadOnly => Some(&DatabaseError::ReadOnly),
            Self::Unavailable(error) => Some(error),
        }
    }
}

impl From<tokio_postgres::Error> for Unready {
    fn from(error: tokio_postgres::Error) -> Self {
        DatabaseError::from(error).into()
    }
}

impl Probes {
    /// Registers the gauges. Sends no query yet.
    #[must_use]
    pub fn new(context: &Context, metrics: PrometheusHandle, unready: CancellationToken) -> Self {
        let settings = &context.settings;
        Self {
            database: context.database.clone(),
            pool: context.pool.clone(),
            metrics,
            gauges: Gauges::new(&settings.services, &settings.catalogue),
            shown_until: Mutex::new(None),
            leads_river: settings.leads_river,
            unready,
        }
    }

    /// All metrics in Prometheus' text format.
    async fn render(&self) -> String {
        let mut shown_until = self.shown_until.lock().await;
        if shown_until.is_none_or(|until| Instant::now() >= until) {
            let began = Instant::now();
            let seen = self
                .pool
                .within(DATABASE_TIMEOUT, async |client| self.gauges.refresh(client).await)
                .await;
            let took = match seen {
                Ok(()) => {
                    self.count().await;
                    began.elapsed()
                }
                Err(error) => {
                    tracing::warn!(%error, "a scrape could not reach the database");
                    self.gauges.unknown();
                    Duration::ZERO
                }
            };
            *shown_until = Some(Instant::now() + cache_duration(took));
        }
        drop(shown_until);
        self.metrics.render() + &self.gauges.more_samples()
    }

    /// Separate from the rest: counting very many jobs takes longer than a scrape can wait, while the database is up.
    async fn count(&self) {
        let began = Instant::now();
        let counted = self
            .pool
            .within(DATABASE_TIMEOUT, async |client| self.gauges.count(client).await)
            .await;
        if let Err(error) = counted {
            tracing::warn!(%error, "a scrape could not count the jobs");
            self.gauges.uncounted();
        }
        // In the rest of the time, so that a scrape takes no longer than before.
        let rest = DATABASE_TIMEOUT.saturating_sub(began.elapsed());
        let found = self
            .pool
            .within(rest, async |client| self.gauges.find_busy_holders(client).await)
            .await;
        if let Err(error) = found {
            tracing::warn!(%error, "a scrape could not find the holders with the most waiting jobs");
            self.gauges.unknown_holders();
        }
    }

    async fn readiness(&self) -> Readiness {
        let database = self.pool.within(DATABASE_TIMEOUT, async |client| {
            let client: &Client = client;
            if !probes::is_writable(client).await? {
                // The error closes the connection. It would stay read-only after the server has become writable.
                return Err(Unready::ReadOnly);
            }
            let current = weir_ledger::migrate::is_current(client).await?;
            // Without Weir's tables, there is nothing to read.
            let leaders = if current {
                Some(overview::leaders(client).await?)
            } else {
                None
            };
            Ok((current, leaders))
        });
        let stopping = self.unready.is_cancelled();
        let lacks_resources = self.database.lacks_resources();
        match database.await {
            Err(Unready::ReadOnly) => Readiness {
                ready: false,
                database: "read-only",
                migrations: "not known",
                leader: "not known",
                maintenance: "not known",
                timeline: None,
                stopping,
            },
            Ok((current, leaders)) => Readiness {
                ready: current && !stopping && !lacks_resources,
                database: match lacks_resources {
                    true => "lacks disk or memory: the last write failed",
                    false => "up",
                },
                migrations: if current {
                    "applied"
                } else {
                    "missing: run `weir migrate`"
                },
                leader: match &leaders {
                    Some(leaders) if leaders.is_foreign() => "another River client",
                    Some(leaders) if leaders.leader_id.is_some() => "known",
                    _ if self.leads_river => "none: start `weir schedule`",
                    _ => {
                        "none: start a River client that may lead, or set RIVER_LEADER=true for `weir schedule`"
                    }
                },
                maintenance: match &leaders {
                    Some(leaders) if leaders.process.is_some() => "running",
                    _ => "not running: start `weir schedule`",
                },
                timeline: leaders.as_ref().and_then(|leaders| leaders.timeline),
                stopping,
            },
            Err(Unready::Unavailable(_)) => Readiness {
                ready: false,
                database: "cannot be reached",
                migrations: "not known",
                leader: "not known",
                maintenance: "not known",
                timeline: None,
                stopping,
            },
        }
    }
}

/// `/healthz`, `/readyz` and `/metrics`.
pub fn router(probes: Arc<Probes>) -> Router {
    Router::new()
        .route("/healthz", routing::get(async || "ok\n"))
        .route("/readyz", routing::get(readyz))
        .route("/metrics", routing::get(metrics))
        .with_state(probes)
}

async fn readyz(State(probes): State<Arc<Probes>>) -> Response {
    let readiness = probes.readiness().await;
    if readiness.ready {
        Json(readiness).into_response()
    } else {
        let later = [(header::RETRY_AFTER, "2")];
        (StatusCode::SERVICE_UNAVAILABLE, later, Json(readiness)).into_response()
    }
}

async fn metrics(State(probes): State<Arc<Probes>>) -> Response {
    let form = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (form, probes.render().await).into_response()
}

/// Answers probes on a separate port until the process stops.
///
/// # Errors
///
/// When the port is not available.
pub async fn run(
    probes: Probes,
    address: SocketAddr,
    stopping: CancellationToken,
) -> Result<(), ListenError> {
    let listener = listen::bind(address, "WEIR_METRICS_PORT").await?;
    tracing::info!(%address, "answering probes");
    listen::answer(listener, router(Arc::new(probes)), Patience::default(), stopping).await;
    Ok(())
}
