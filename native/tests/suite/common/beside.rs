//! River's client for Go in another program next to Weir: with its own queue and kinds, and it may lead.

use std::process::{Child, Command, Stdio};

use super::programs::{self, GO_MODULE, GoProgram};

/// The program.
pub struct Beside(GoProgram);

/// Ends when it is dropped, because its standard input ends.
pub struct Running(Child);

impl Beside {
    /// `None` without Go.
    pub async fn built() -> Option<Self> {
        let program = GoProgram::built(GO_MODULE, "./beside").await?;
        Some(Self(program))
    }

    fn command(&self, url: &str) -> Command {
        let mut command = Command::new(&self.0.path);
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

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
