//! Requests over kept-alive connections. A server may close an idle connection at the moment that a request is sent.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use reqwest::{Client, Request, Response};
use tower::{Layer, Service};

/// A connection that the server closed as idle is found closed within about a round trip. If it ends later, the server
/// had received the request, and may have worked on it before crashing.
const IDLE_CLOSE: Duration = Duration::from_secs(2);

tokio::task_local! {
    /// Whether the current task's request needed a new connection.
    static CONNECTED: AtomicBool;
}

/// Sends a request that is safe to repeat. It is sent once more when the server closed a kept-alive connection without
/// a response within 2 s. A request over a new connection is not repeated, because that connection was not idle.
///
/// # Errors
///
/// As returned by the client.
pub async fn send(client: &Client, request: Request) -> reqwest::Result<Response> {
    let again = request.try_clone();
    let started = Instant::now();
    let (sent, is_kept) = CONNECTED
        .scope(AtomicBool::new(false), async {
            let sent = client.execute(request).await;
            (
                sent,
                !CONNECTED.with(|connected| connected.load(Ordering::Relaxed)),
            )
        })
        .await;
    match (sent, again) {
        (Err(error), Some(again)) if is_kept && started.elapsed() < IDLE_CLOSE && is_closed(&error) => {
            tracing::debug!("a reused connection was closed; sending the request again");
            client.execute(again).await
        }
        (sent, _) => sent,
    }
}

/// Whether the connection ended before a response arrived.
fn is_closed(error: &reqwest::Error) -> bool {
    let error: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(error), |error| error.source()).any(|cause| {
        let http = cause.downcast_ref::<hyper::Error>();
        let io = cause.downcast_ref::<std::io::Error>();
        http.is_some_and(|http| http.is_incomplete_message() || http.is_canceled())
            || io.is_some_and(|io| {
                use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
                matches!(io.kind(), BrokenPipe | ConnectionReset)
            })
    })
}

/// Records when a request needs a new connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoteConnections;

/// A connector that records it.
#[derive(Clone, Debug)]
pub(super) struct Noting<S>(S);

impl<S> Layer<S> for NoteConnections {
    type Service = Noting<S>;

    fn layer(&self, connector: S) -> Noting<S> {
        Noting(connector)
    }
}

impl<S: Service<R>, R> Service<R> for Noting<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: R) -> S::Future {
        // Outside of `send`, there is nothing to record to.
        let _ = CONNECTED.try_with(|connected| connected.store(true, Ordering::Relaxed));
        self.0.call(request)
    }
}
