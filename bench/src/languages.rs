//! `languages`: jobs a second of workers in Go, Python and TypeScript that complete jobs by `weir_complete`, against the
//! same workers without Weir. Every job writes a row to a table of the product.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::jobs::{fill_bare, fill_within};
use super::progress::progress;
use super::report::{BenchError, Effort, Line, Report, conditions, median};
use super::stage::Stage;
use weir::config::Settings;

/// The folder of the Go client in a clone.
const MODULE: &str = "clients/go";

const PROCESSES: usize = 2;

/// The number per process.
const WORKERS: usize = 20;

/// The warm-up time of a fleet before the measurement. By then, each of its connections has planned its statements.
const WARM_UP: Duration = Duration::from_secs(3);
const QUICK_WARM_UP: Duration = Duration::from_secs(1);

/// A fleet that completes no job for this long counts as broken.
const PATIENCE: Duration = Duration::from_secs(30);

/// The program in Go, deleted when it goes out of scope.
struct Program(PathBuf);

impl Program {
    fn build() -> Result<Self, BenchError> {
        let missing = |why: String| {
            BenchError::Missing(format!(
                "the fleet in Go cannot be built ({why}); install Go, and run this in a clone of Weir"
            ))
        };
        if !Path::new(MODULE).join("go.mod").exists() {
            return Err(missing(format!("{MODULE} not found")));
        }
        let program = std::env::temp_dir().join(format!("weir-bench-go-{}", Uuid::new_v4().simple()));
        let built = Command::new("go")
            .args(["build", "-o"])
            .arg(&program)
            .arg("./bench")
            .current_dir(MODULE)
            .output()
            .map_err(|error| missing(error.to_string()))?;
        if !built.status.success() {
            return Err(missing(String::from_utf8_lossy(&built.stderr).trim().to_owned()));
        }
        Ok(Self(program))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Processes of the fleet, killed when it goes out of scope.
struct Fleet(Vec<Child>);

impl Fleet {
    fn start(program: &[OsString], url: &str, how: &str) -> Result<Self, BenchError> {
        let mut fleet = Self(Vec::new());
        for _ in 0..PROCESSES {
            let child = Command::new(&program[0])
                .args(&program[1..])
                .arg(how)
                .env("DATABASE_URL", url)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            fleet.0.push(child);
        }
        Ok(fleet)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs the benchmark.
///
/// # Errors
///
/// When Go or its module is missing, or the database cannot be used. The benchmark's databases may then be left on the
/// server.
pub(crate) async fn languages(settings: &Settings, effort: Effort) -> Result<Report, BenchError> {
    let effort = effort.with_long_turns();
    progress("building the fleet in Go");
    let go = Program::build()?;
    let go = [
        go.0.as_os_str().into(),
        "-workers".into(),
        WORKERS.to_string().into(),
    ];
    let script = |variable: &str, default: &str, file: &str| {
        let runs = std::env::var_os(variable).unwrap_or_else(|| default.into());
        [runs, format!("bench/languages/{file}").into()]
    };
    let python = script("WEIR_BENCH_PYTHON", "python3", "work.py");
    let node = script("WEIR_BENCH_NODE", "node", "work.ts");
    let warm_up = if effort.is_quick { QUICK_WARM_UP } else { WARM_UP };
    let jobs = enough(effort.span + warm_up);
    let (ours, bare) = (Stage::new(settings).await?, Stage::new(settings).await?);
    let users = ours.users(1000).await?;
    for stage in [&ours, &bare] {
        let table = "CREATE TABLE results (number bigint NOT NULL)";
        stage.database.connect().await?.batch_execute(table).await?;
    }
    let mut conditions = conditions(&ours.database.connect().await?).await?;
    conditions.push(format!(
        "no-op jobs of 1 000 users, each with a row of the product's; {PROCESSES} processes with {WORKERS} workers \
         each; in Go, fetch cooldown 1 ms; {} turns of {} s each side, after {} s",
        effort.turns,
        effort.span.as_secs_f64(),
        warm_up.as_secs()
    ));
    let sides: [(&[OsString], &str, bool); 7] = [
        (&go, "weir", true),
        (&go, "river-tx", false),
        (&go, "river", false),
        (&python, "weir", true),
        (&python, "bare", false),
        (&node, "weir", true),
        (&node, "bare", false),
    ];
    let mut rates = sides.map(|_| Vec::new());
    for turn in 1..=effort.turns {
        progress(&format!("jobs a second, turn {turn} of {}", effort.turns));
        for ((program, how, is_ours), rates) in sides.iter().zip(&mut rates) {
            let stage = if *is_ours { &ours } else { &bare };
            stage.clear().await?;
            if *is_ours {
                fill_within(stage, &users, jobs, effort.filling()).await?;
            } else {
                fill_bare(stage, None, jobs, effort.filling()).await?;
            }
            stage.tidy().await?;
            rates.push(rate(program, stage, how, warm_up, effort.span).await?);
        }
    }
    let [
        go,
        go_in_transactions,
        go_in_batches,
        python,
        bare_python,
        node,
        bare_node,
    ] = rates.map(median);
    let without = |language| format!("jobs of workers in {language}, and of the same loop with plain SQL");
    let lines = vec![
        Line::at_least(
            "jobs of a fleet in Go, each completed in its own transaction (River's JobCompleteTx)",
            go,
            go_in_transactions,
            "1/s",
            0.8,
        ),
        Line::compared(
            "the same, against jobs that River's client completes in batches, without their rows",
            go,
            go_in_batches,
            "1/s",
        ),
        Line::at_least(without("Python"), python, bare_python, "1/s", 0.8),
        Line::at_least(without("TypeScript"), node, bare_node, "1/s", 0.8),
    ];
    ours.end().await?;
    bare.end().await?;
    Ok(Report { conditions, lines })
}

/// Enough jobs for every turn.
fn enough(span: Duration) -> usize {
    (9_000.0 * span.as_secs_f64()) as usize
}

/// Completed jobs a second, after the warm-up.
async fn rate(
    program: &[OsString],
    stage: &Stage,
    how: &str,
    warm_up: Duration,
    span: Duration,
) -> Result<f64, BenchError> {
    let client = stage.database.connect().await?;
    let completed = async || -> Result<i64, BenchError> {
        let count = "SELECT count(*) FROM river_job WHERE state = 'completed'";
        Ok(client.query_one(count, &[]).await?.get(0))
    };
    let _fleet = Fleet::start(program, &stage.url, how)?;
    let begun = Instant::now();
    while completed().await? == 0 {
        if begun.elapsed() > PATIENCE {
            return Err(BenchError::Missing("the fleet completes nothing".to_owned()));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(warm_up).await;
    let (before, started) = (completed().await?, Instant::now());
    tokio::time::sleep(span).await;
    let elapsed = started.elapsed();
    Ok((completed().await? - before) as f64 / elapsed.as_secs_f64())
}
