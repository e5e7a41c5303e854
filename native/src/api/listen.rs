//! HTTP connections: accepted until the process stops, and closed when they are silent for too long.

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

/// How long a client may keep its connection without doing its part.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Until the head of its next request is there.
    pub head: Duration,
    /// Until its connection takes something more of its answer. What nobody reads is kept in memory.
    pub write: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            // Longer than a proxy keeps an idle connection (60 s in nginx, 90 s in cloudflared): if the origin closed it
            // first, the proxy's next request could already be on its way.
            head: Duration::from_secs(120),
            // As nginx's `send_timeout` has it.
            write: Duration::from_secs(60),
        }
    }
}

/// How long answers under way may take when the process stops. A client may read none of its answer, for ever.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Why nobody is answered.
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
/// When the port cannot be had; it names the variable to change.
pub async fn bind(address: SocketAddr, variable: &'static str) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).await.map_err(|error| ListenError {
        address,
        variable,
        error,
    })
}

/// Answers until `stopping` is cancelled and the answers under way are given, for at most 10 s. A connection whose client
/// is out of `patience` is closed. Requests carry the connection's peer as `ConnectInfo<SocketAddr>`.
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
            // It logs what cannot be accepted, and waits a second where no file descriptor is left.
            accepted = Listener::accept(&mut listener) => accepted,
            () = stopping.cancelled() => break,
        };
        while tasks.try_join_next().is_some() {}
        // Without it, the end of an answer may wait for the client's acknowledgement of its beginning.
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
        tracing::warn!("some clients did not take their answers in time");
    }
}
