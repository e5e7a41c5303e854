//! Processes of this binary, as an installation runs them, for a benchmark.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use uuid::Uuid;

use super::report::BenchError;

/// A process of this binary, killed as by `kill -9` when it goes out of scope.
pub(super) struct Process(Child);

impl Process {
    /// Runs a command on this database, with these services.
    pub(super) fn start(
        url: &str,
        services: &Services,
        arguments: &[&str],
        more: &[(&str, String)],
    ) -> Result<Self, BenchError> {
        let child = Command::new(std::env::current_exe()?)
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

    /// Whether it has ended by itself.
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

/// A services file, gone when it goes out of scope.
pub(super) struct Services(PathBuf);

impl Services {
    pub(super) fn new(text: &str) -> Result<Self, BenchError> {
        let path = std::env::temp_dir().join(format!("weir-bench-{}.toml", Uuid::new_v4().simple()));
        std::fs::write(&path, text)?;
        Ok(Self(path))
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
