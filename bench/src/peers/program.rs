//! What is measured: a small program each, which inserts and works the same jobs with its queue.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use super::super::progress::progress;
use super::super::report::BenchError;

/// Where the programs are, in a clone.
const FOLDER: &str = "bench/peers";

/// The variable that says how many jobs are inserted at once, and how many connections there are.
pub(super) const CALLERS: &str = "PEER_CALLERS";

/// The variable that says how many jobs are worked at once.
pub(super) const WORKERS: &str = "PEER_WORKERS";

/// The variable that says how long a job takes, in milliseconds.
pub(super) const JOB_MS: &str = "PEER_JOB_MS";

/// The variable that says how soon jobs of a killed worker are taken back.
pub(super) const RESCUE: &str = "PEER_RESCUE";

/// When a killed worker's jobs are taken back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rescue {
    /// As it comes.
    Default,
    /// The shortest that can be set for jobs of at most two seconds.
    Shortest,
}

/// What a program is started for.
#[derive(Clone, Copy)]
pub(super) enum Role {
    Setup,
    Produce,
    Work,
}

/// One of those that are compared.
pub(super) struct Program {
    pub(super) name: &'static str,
    /// What it is made of.
    pub(super) version: &'static str,
    /// Its setting for jobs of killed workers, where there is one beside the default.
    pub(super) can_hurry: bool,
    start: Vec<OsString>,
    roles: [&'static str; 3],
}

impl Program {
    pub(super) fn command(&self, role: Role) -> Command {
        let mut command = Command::new(&self.start[0]);
        command
            .args(&self.start[1..])
            .arg(self.roles[role as usize])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        command
    }
}

/// Weir and the others, built and installed where they are not yet.
pub(super) async fn all() -> Result<Vec<Program>, BenchError> {
    if !Path::new(FOLDER).is_dir() {
        return Err(BenchError::Missing(format!(
            "there is no {FOLDER}; run this in a clone of Weir"
        )));
    }
    let peer = |name, version, can_hurry, start: Vec<PathBuf>| Program {
        name,
        version,
        can_hurry,
        start: start.into_iter().map(PathBuf::into_os_string).collect(),
        roles: ["setup", "produce", "work"],
    };
    let go = built_with_go().await?;
    let rust = built_with_cargo().await?;
    let (node, scripts) = installed_with_npm().await?;
    Ok(vec![
        Program {
            name: "Weir",
            version: env!("CARGO_PKG_VERSION"),
            can_hurry: false,
            start: vec![std::env::current_exe()?.into_os_string()],
            roles: ["peers-setup", "peers-produce", "peers-work"],
        },
        peer("River, Go", "0.51.1", true, vec![go]),
        peer("River, Rust", "0.5.0", true, vec![rust.join("river")]),
        peer("headgate", "0.1.10", true, vec![rust.join("headgate")]),
        peer(
            "graphile-worker",
            "0.18.0",
            false,
            vec![node.clone(), scripts.join("graphile-worker.mjs")],
        ),
        peer(
            "pg-boss",
            "12.38.0",
            true,
            vec![node, scripts.join("pg-boss.mjs")],
        ),
    ])
}

async fn built_with_go() -> Result<PathBuf, BenchError> {
    let folder = Path::new(FOLDER).join("river-go");
    run(
        "River for Go",
        "install Go",
        &folder,
        "go",
        &["build", "-o", "bin/peer", "."],
    )
    .await?;
    Ok(std::path::absolute(folder.join("bin/peer"))?)
}

async fn built_with_cargo() -> Result<PathBuf, BenchError> {
    let folder = Path::new(FOLDER).join("rust");
    let arguments = ["build", "--release", "--locked", "--target-dir", "target"];
    run(
        "River for Rust and headgate",
        "install Rust",
        &folder,
        "cargo",
        &arguments,
    )
    .await?;
    Ok(std::path::absolute(folder.join("target/release"))?)
}

/// The Node that the clone has for itself, since these need a newer one than its scripts do.
async fn installed_with_npm() -> Result<(PathBuf, PathBuf), BenchError> {
    let folder = Path::new(FOLDER).join("node");
    let node = std::path::absolute("node_modules/node/bin/node")?;
    if !node.exists() {
        return Err(BenchError::Missing(
            "the packages of this clone are not installed; run npm ci".to_owned(),
        ));
    }
    // npm writes this file last.
    let lock = |path: &str| {
        std::fs::metadata(folder.join(path))
            .and_then(|file| file.modified())
            .ok()
    };
    if lock("node_modules/.package-lock.json") < lock("package-lock.json") {
        let arguments = ["ci", "--no-audit", "--no-fund"];
        run(
            "graphile-worker and pg-boss",
            "install npm",
            &folder,
            "npm",
            &arguments,
        )
        .await?;
    }
    Ok((node, std::path::absolute(folder)?))
}

async fn run(
    what: &str,
    remedy: &str,
    folder: &Path,
    program: &str,
    arguments: &[&str],
) -> Result<(), BenchError> {
    progress(&format!("building {what} ({program} {})", arguments.join(" ")));
    let done = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(|error| BenchError::Missing(format!("{what} cannot be built ({error}); {remedy}")))?;
    if done.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&done.stderr);
    Err(BenchError::Missing(format!(
        "{what} cannot be built; {remedy}: {}",
        why.trim()
    )))
}
