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
use tokio_util::sync::CancellationToken;

/// A client has this long to send the head of its next request. Longer than a proxy keeps an idle connection (60 s in
/// nginx, 90 s in cloudflared): if the origin closed it first, the proxy's next request could already be on its way.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(120);

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
/// sends no head of a request for `head_timeout` is closed. Requests carry the connection's peer as
/// `ConnectInfo<SocketAddr>`.
pub async fn answer(
    mut listener: TcpListener,
    router: Router,
    head_timeout: Duration,
    stopping: CancellationToken,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(head_timeout);
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
        let connection = connections.watch(http.serve_connection(TokioIo::new(stream), service));
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
