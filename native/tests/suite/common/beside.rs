//! River's client for Go in another program next to Weir: with its own queue and kinds, and it may lead.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use uuid::Uuid;

use super::programs;

/// The program, built into a separate folder that is deleted with it.
pub struct Beside {
    folder: PathBuf,
    program: PathBuf,
}

/// Ends when it is dropped, because its standard input ends.
pub struct Running(Child);

impl Beside {
    /// `None` without Go.
    pub async fn built() -> Option<Self> {
        let folder = std::env::temp_dir().join(format!("weir-beside-{}", Uuid::new_v4()));
        let place = folder.join("beside");
        let module = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/go");
        let built = tokio::task::spawn_blocking(move || programs::go_build(module, "./beside", place));
        let program = built.await.unwrap()?;
        Some(Self { folder, program })
    }

    fn command(&self, url: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["-url", url]);
        command
    }

    /// Migrates River's tables to this version, as the program's own deployment does.
    pub fn migrate(&self, url: &str, version: i64) {
        programs::run(self.command(url).args(["migrate", &version.to_string()])).unwrap();
    }

    /// Starts it with these arguments.
    pub fn start(&self, url: &str, arguments: &[&str]) -> Running {
        let child = self
            .command(url)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Running(child)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
