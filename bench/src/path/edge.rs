//! The edge in workerd, in front of a turn's origin. It verifies tokens, signs, and forwards.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::super::cost::family_time;
use super::super::report::BenchError;

/// The script that starts it in a clone, like the scripts of `package.json`.
const SCRIPTS: &str = "scripts/bootstrap.mjs";

/// The maximum time to stop.
const END: Duration = Duration::from_secs(5);

/// A running edge, ended when it goes out of scope.
pub(super) struct Edge {
    child: Child,
    started: Started,
}

/// Its output when it is ready.
#[derive(Deserialize)]
struct Started {
    address: SocketAddr,
    /// The parent of workerd.
    process: u32,
}

impl Edge {
    /// Whether its sources exist.
    pub(super) fn is_here() -> bool {
        Path::new(SCRIPTS).exists()
    }

    /// Builds the edge if necessary, and starts it in front of this origin. Progress goes to standard error.
    pub(super) async fn start(
        origin: SocketAddr,
        edge_secret: &str,
        jwt_secret: &str,
    ) -> Result<Self, BenchError> {
        let mut child = Command::new("node")
            .args([SCRIPTS, "bench-path-edge"])
            .env("ORIGIN_URL", format!("http://{origin}"))
            .env("EDGE_SECRET", edge_secret)
            .env("JWT_SECRET", jwt_secret)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| BenchError::Missing(format!("the edge needs Node ({error}); install Node")))?;
        let output = child.stdout.take();
        let line = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            output
                .map_or(Ok(0), |output| BufReader::new(output).read_line(&mut line))
                .map(|_| line)
        });
        // If it exits without this output, see its standard error.
        let Ok(started) = serde_json::from_str(&line.await??) else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(BenchError::Missing(
                "the edge does not start; what it output is above".to_owned(),
            ));
        };
        Ok(Self { child, started })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.started.address
    }

    /// Its processor time so far.
    pub(super) fn time(&self) -> Duration {
        family_time(self.started.process)
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let asked = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if asked.elapsed() > END {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
