//! The signals that stop a process.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Created before anything starts. A signal without a listener would end the process immediately, along with its
/// running jobs.
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

    /// Waits for the first signal, and returns its name.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupted.recv() => "SIGINT",
            _ = self.terminated.recv() => "SIGTERM",
        }
    }
}
