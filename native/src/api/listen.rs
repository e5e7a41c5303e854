//! HTTP connections: accepts them until the process stops, and closes silent ones.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutWriter;
use tokio_util::sync::CancellationToken;

/// The maximum time that a connection waits for its client.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Until the head of its next request has arrived.
    pub head: Duration,
    /// Until the client reads more of its answer. Unread data stays in memory.
    pub write: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            // Longer than a proxy keeps an idle connection (60 s in nginx, 90 s in cloudflared). If the origin closed
            // it first, the proxy might already have sent its next request.
            head: Duration::from_secs(120),
            // The same as nginx's `send_timeout`.
            write: Duration::from_secs(60),
        }
    }
}

/// The maximum time for unfinished answers when the process stops. Otherwise a client that reads nothing could delay
/// the stop without limit.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the listener cannot start.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}; set {variable} to a free port")]
pub struct ListenError {
    address: SocketAddr,
    variable: &'static str,
    error: std::io::Error,
}

/// Binds the address.
///
/// # Errors
///
/// When the port is not available. The error names the variable to change.
pub async fn bind(address: SocketAddr, variable: &'static str) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).await.map_err(|error| ListenError {
        address,
        variable,
        error,
    })
}

/// Answers requests until `stopping` is cancelled, then finishes the open answers for at most 10 s. Closes a connection
/// if its client exceeds `patience`. Requests carry the peer as `ConnectInfo<SocketAddr>`.
pub async fn answer(
    mut listener: TcpListener,
    router: Router,
    patience: Patience,
    stopping: CancellationToken,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(patience.head);
    let connections = GracefulShutdown::new();
    let mut tasks = JoinSet::new();
    loop {
        let (stream, peer) = tokio::select! {
            // Logs connections that cannot be accepted, and waits a second if no file descriptor is left.
            accepted = Listener::accept(&mut listener) => accepted,
            () = stopping.cancelled() => break,
        };
        while tasks.try_join_next().is_some() {}
        // Otherwise the end of an answer may wait until the client has acknowledged its beginning.
        let _ = stream.set_nodelay(true);
        let routes = TowerToHyperService::new(router.clone());
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            routes.call(request)
        });
        let mut stream = TimeoutWriter::new(stream);
        stream.set_timeout(Some(patience.write));
        let connection = connections.watch(http.serve_connection(TokioIo::new(Box::pin(stream)), service));
        tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an HTTP connection ended early");
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(STOP_TIMEOUT, connections.shutdown())
        .await
        .is_err()
    {
        tracing::warn!("some clients did not read their answers in time");
    }
}
