//! The processes of a benchmark.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use uuid::Uuid;

use super::report::BenchError;
use super::stage::KIND;

/// A process, killed as by `kill -9` when it goes out of scope.
pub(super) struct Process(Child);

impl Process {
    /// Runs a program on this database, with these services.
    pub(super) fn start(
        program: &Path,
        url: &str,
        services: &Services,
        arguments: &[&str],
        more: &[(&str, String)],
    ) -> Result<Self, BenchError> {
        let child = Command::new(program)
            .args(arguments)
            .env("DATABASE_URL", url)
            .env("WEIR_CONFIG", &services.0)
            .envs(more.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self(child))
    }

    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Whether it has ended on its own.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A services file, deleted when it goes out of scope.
pub(super) struct Services(PathBuf);

impl Services {
    /// The shipped service `analysis`, with this many workers in its default lane and this program, a TOML array.
    pub(super) fn new(workers: u32, program: &str) -> Result<Self, BenchError> {
        Self::waking(workers, program, "now")
    }

    /// The same with this `wake`.
    pub(super) fn waking(workers: u32, program: &str, wake: &str) -> Result<Self, BenchError> {
        let path = std::env::temp_dir().join(format!("weir-bench-{}.toml", Uuid::new_v4().simple()));
        std::fs::write(
            &path,
            format!(
                r#"[[service]]
name = "analysis"
event_type = "analysis"
kind = "{KIND}"
workers = "BENCH"
priority_workers = 1
default_workers = {workers}
scheduled_workers = 1
timeout = "30s"
max_attempts = 3
wake = "{wake}"
handler = {{ type = "exec", command = {program} }}
"#
            ),
        )?;
        Ok(Self(path))
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
