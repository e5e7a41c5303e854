//! What asks a process to stop.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Made before anything starts: a signal that nobody listens for ends the process at once,
/// and the jobs that it has begun with it.
pub(super) struct StopSignals {
    interrupted: Signal,
    terminated: Signal,
}

impl StopSignals {
    pub(super) fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupted: signal(SignalKind::interrupt())?,
            terminated: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the first of them, and says which one it was.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupted.recv() => "SIGINT",
            _ = self.terminated.recv() => "SIGTERM",
        }
    }
}
