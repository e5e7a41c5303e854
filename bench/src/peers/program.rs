//! The measured programs. Each is small, and inserts and runs the same jobs with its queue.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use super::super::progress::progress;
use super::super::report::BenchError;

/// The programs' folder in a clone.
const FOLDER: &str = "bench/peers";

/// The variable with the number of concurrent inserts, and of connections.
pub(super) const CALLERS: &str = "PEER_CALLERS";

/// The variable with the number of concurrent jobs.
pub(super) const WORKERS: &str = "PEER_WORKERS";

/// The variable with the duration of a job, in milliseconds.
pub(super) const JOB_MS: &str = "PEER_JOB_MS";

/// The variable with the setting for the jobs of a killed worker.
pub(super) const RESCUE: &str = "PEER_RESCUE";

/// When a killed worker's jobs are taken over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rescue {
    /// The default.
    Default,
    /// The shortest that is possible for jobs of at most two seconds.
    Shortest,
}

/// The task of a program.
#[derive(Clone, Copy)]
pub(super) enum Role {
    Setup,
    Produce,
    Work,
}

/// One of the compared programs.
pub(super) struct Program {
    pub(super) name: &'static str,
    /// Its components and versions.
    pub(super) version: &'static str,
    /// Whether the recovery of a killed worker's jobs can be configured.
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

/// Weir and the others, built and installed if necessary.
pub(super) async fn all() -> Result<Vec<Program>, BenchError> {
    let mut programs = vec![weir()?, river_for_go().await?];
    programs.extend(in_rust().await?);
    programs.extend(in_node().await?);
    Ok(programs)
}

/// Weir and one program of each other queue, built and installed if necessary.
pub(super) async fn of_known_queues() -> Result<Vec<Program>, BenchError> {
    let mut programs = vec![weir()?, river_for_go().await?];
    programs.extend(in_node().await?);
    Ok(programs)
}

fn weir() -> Result<Program, BenchError> {
    if !Path::new(FOLDER).is_dir() {
        return Err(BenchError::Missing(format!(
            "{FOLDER} not found; run this in a clone of Weir"
        )));
    }
    Ok(Program {
        name: "Weir",
        version: env!("CARGO_PKG_VERSION"),
        can_hurry: false,
        start: vec![std::env::current_exe()?.into_os_string()],
        roles: ["peers-setup", "peers-produce", "peers-work"],
    })
}

fn peer(name: &'static str, version: &'static str, can_hurry: bool, start: Vec<PathBuf>) -> Program {
    Program {
        name,
        version,
        can_hurry,
        start: start.into_iter().map(PathBuf::into_os_string).collect(),
        roles: ["setup", "produce", "work"],
    }
}

/// The names and versions of programs, for a table's header.
pub(super) fn versions(programs: &[Program]) -> Vec<String> {
    let versions = programs
        .iter()
        .map(|program| format!("{} {}", program.name, program.version));
    versions.collect()
}

async fn river_for_go() -> Result<Program, BenchError> {
    Ok(peer("River, Go", "0.51.1", true, vec![built_with_go().await?]))
}

async fn in_rust() -> Result<[Program; 2], BenchError> {
    let folder = built_with_cargo().await?;
    Ok([
        peer("River, Rust", "0.5.0", true, vec![folder.join("river")]),
        peer("headgate", "0.1.10", true, vec![folder.join("headgate")]),
    ])
}

async fn in_node() -> Result<[Program; 2], BenchError> {
    let (node, scripts) = installed_with_npm().await?;
    let script = |name| vec![node.clone(), scripts.join(name)];
    Ok([
        peer("graphile-worker", "0.18.0", false, script("graphile-worker.mjs")),
        peer("pg-boss", "12.38.0", true, script("pg-boss.mjs")),
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

/// The Node that the clone has installed for itself. These programs need a newer one than the scripts.
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
