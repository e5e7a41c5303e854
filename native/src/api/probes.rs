//! What those who watch a process ask it: is it alive, is it ready, how is it doing.
//!
//! `weir serve` and `weir up` answer on the API's port, `weir work` and `weir schedule` on one of their own.

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
use crate::config::Settings;
use crate::status::shown_for;
use crate::telemetry::gauges::Gauges;
use weir_ledger::database::{ConnectionPool, DatabaseError, FromDatabase};
use weir_ledger::read::{overview, probes};

/// For how long a probe waits for the database. Less than what those who probe usually wait for an answer.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(3);

/// What the probes' routes share.
pub struct Probes {
    pool: ConnectionPool,
    metrics: PrometheusHandle,
    gauges: Gauges,
    /// Until when the gauges are shown as they are, however many scrape.
    shown_until: Mutex<Option<Instant>>,
    /// Whether Weir may lead River.
    leads_river: bool,
    /// Cancelled when the process is going to stop.
    unready: CancellationToken,
}

/// Whether a process is ready, and why not.
#[derive(Debug, Serialize)]
struct Readiness {
    ready: bool,
    database: &'static str,
    migrations: &'static str,
    /// Of the whole installation. Nobody leading does not make a process unready: the API accepts, the workers work;
    /// only retries wait, and without maintenance reconciliation.
    leader: &'static str,
    maintenance: &'static str,
    /// The server's timeline, after a failover or a restore.
    #[serde(skip_serializing_if = "Option::is_none")]
    timeline: Option<i32>,
    stopping: bool,
}

/// Why the database takes no submission.
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
            // One that was opened to a replica stays one.
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
    /// Registers the gauges; asks nothing yet.
    #[must_use]
    pub fn new(
        pool: ConnectionPool,
        settings: &Settings,
        metrics: PrometheusHandle,
        unready: CancellationToken,
    ) -> Self {
        Self {
            pool,
            metrics,
            gauges: Gauges::new(&settings.services, &settings.catalogue),
            shown_until: Mutex::new(None),
            leads_river: settings.leads_river,
            unready,
        }
    }

    /// Everything in Prometheus' text form.
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
                    tracing::warn!(%error, "scraped without the database");
                    self.gauges.unknown();
                    Duration::ZERO
                }
            };
            *shown_until = Some(Instant::now() + shown_for(took));
        }
        drop(shown_until);
        self.metrics.render()
    }

    /// Apart from the rest: a database with very many jobs counts for longer than a scrape can wait, and is up.
    async fn count(&self) {
        let counted = self
            .pool
            .within(DATABASE_TIMEOUT, async |client| self.gauges.count(client).await)
            .await;
        if let Err(error) = counted {
            tracing::warn!(%error, "scraped without the numbers of jobs");
            self.gauges.uncounted();
        }
    }

    async fn readiness(&self) -> Readiness {
        let database = self.pool.within(DATABASE_TIMEOUT, async |client| {
            let client: &Client = client;
            if !probes::is_writable(client).await? {
                // An error closes the connection: it stays read-only when the server no longer is.
                return Err(Unready::ReadOnly);
            }
            let current = weir_ledger::migrate::is_current(client).await?;
            // Without the tables there is nothing to read.
            let leaders = if current {
                Some(overview::leaders(client).await?)
            } else {
                None
            };
            Ok((current, leaders))
        });
        let stopping = self.unready.is_cancelled();
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
                ready: current && !stopping,
                database: "up",
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

/// Answers probes on a port of their own until the process is to stop.
///
/// # Errors
///
/// When the port cannot be had.
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
