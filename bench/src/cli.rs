//! The command line.

use std::error::Error;
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use weir::config::Settings;

use crate::path::Part;
use crate::peers::PeerPart;
use crate::report::{Effort, Line};
use crate::{fairness, faults, growth, languages, path, peers, reserve, share, work};

/// Measure Weir against bare River and other queues.
///
/// Each benchmark creates its own databases on the server of `DATABASE_URL`, and drops them at the end. Settings come from
/// the environment, as for `weir`.
#[derive(Parser)]
#[command(name = "weir-bench", version)]
pub(crate) struct Cli {
    /// The benchmark to run.
    what: Benchmark,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
    /// Measure for a shorter time, under a minute, with less certain results. `peers` leaves out waits and kills.
    #[arg(long)]
    quick: bool,
    /// Compare Weir with other queues and not with bare River. For `snapshot`; needs the same programs as `peers`.
    #[arg(long)]
    peers: bool,
    /// The number of usage events in the large database [default: 10000000]. For `growth`; with it, the other sizes are
    /// a tenth of the default.
    #[arg(long, value_name = "COUNT")]
    events: Option<u32>,
    /// The `weir` to measure [default: the one in this program's folder].
    #[arg(long, value_name = "PROGRAM")]
    weir: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Benchmark {
    /// Reservations a second.
    Reserve,
    /// Jobs a second.
    Work,
    /// The cost of a flood to other users, and how soon a freed slot is reused.
    Fairness,
    /// Idle workers that are lent to jobs over their user's slots.
    Share,
    /// The cost of some users' failures to the others.
    Faults,
    /// A job's whole path, from HTTP to its settlement.
    Path,
    /// The cost of a job at 20 to 400 a second, and of an installation without jobs.
    Light,
    /// The cost of an old snapshot held by another session. Takes most of an hour, also with `--peers`.
    Snapshot,
    /// The cost of a large database.
    Growth,
    /// Jobs a second of a fleet in Go. Needs Go and a clone.
    Languages,
    /// The same jobs through other queues. Takes minutes; needs Go, Rust, npm and a clone.
    Peers,
    #[value(hide = true)]
    PathWorkers,
    #[value(hide = true)]
    PathBareOrigin,
    #[value(hide = true)]
    PathBareWorkers,
    #[value(hide = true)]
    PathLiteralOrigin,
    #[value(hide = true)]
    PathLiteralWorkers,
    #[value(hide = true)]
    PeersSetup,
    #[value(hide = true)]
    PeersProduce,
    #[value(hide = true)]
    PeersWork,
}

pub(crate) async fn run(cli: Cli) -> Result<ExitCode, Box<dyn Error>> {
    let mut settings = Settings::from_env()?;
    settings.application_name = "weir-bench";
    let effort = Effort::of(cli.quick);
    if cli.peers && !matches!(cli.what, Benchmark::Snapshot) {
        return Err("--peers is an option of snapshot only".into());
    }
    if cli.events.is_some() && !matches!(cli.what, Benchmark::Growth) {
        return Err("--events is an option of growth only".into());
    }
    let weir = match cli.weir {
        Some(weir) => weir,
        None => std::env::current_exe()?.with_file_name("weir"),
    };
    let report = match cli.what {
        Benchmark::Reserve => reserve::reserve(&settings, effort).await?,
        Benchmark::Work => work::work(&settings, effort).await?,
        Benchmark::Fairness => fairness::fairness(&settings, effort, &weir).await?,
        Benchmark::Share => share::share(&settings, effort).await?,
        Benchmark::Faults => faults::faults(&settings, effort).await?,
        Benchmark::Path => path::path(&settings, effort, &weir).await?,
        Benchmark::Light => path::light::light(&settings, effort, &weir).await?,
        Benchmark::Snapshot if cli.peers => {
            let field = peers::snapshot::snapshot(&settings, effort).await?;
            return show(cli.json, &field.lines(), &field.table());
        }
        Benchmark::Snapshot => path::snapshot::snapshot(&settings, effort, &weir).await?,
        Benchmark::Growth => growth::growth(&settings, effort, &weir, cli.events).await?,
        Benchmark::Languages => languages::languages(&settings, effort).await?,
        Benchmark::Peers => {
            let field = peers::peers(&settings, effort).await?;
            return show(cli.json, &field.lines(), &field.table());
        }
        Benchmark::PathWorkers => return path_part(settings, Part::Workers).await,
        Benchmark::PathBareOrigin => return path_part(settings, Part::BareOrigin).await,
        Benchmark::PathBareWorkers => return path_part(settings, Part::BareWorkers).await,
        Benchmark::PathLiteralOrigin => return path_part(settings, Part::LiteralOrigin).await,
        Benchmark::PathLiteralWorkers => return path_part(settings, Part::LiteralWorkers).await,
        Benchmark::PeersSetup => return peer_part(settings, PeerPart::Setup).await,
        Benchmark::PeersProduce => return peer_part(settings, PeerPart::Produce).await,
        Benchmark::PeersWork => return peer_part(settings, PeerPart::Work).await,
    };
    show(cli.json, &report.lines, &report.table())
}

/// One of the processes that `path` starts. It runs until it is killed.
async fn path_part(settings: Settings, part: Part) -> Result<ExitCode, Box<dyn Error>> {
    path::part(settings, part).await?;
    Ok(ExitCode::FAILURE)
}

/// One of the processes that `peers` starts for Weir.
async fn peer_part(settings: Settings, part: PeerPart) -> Result<ExitCode, Box<dyn Error>> {
    peers::peer_part(settings, part).await?;
    Ok(ExitCode::SUCCESS)
}

fn show(json: bool, lines: &[Line], table: &str) -> Result<ExitCode, Box<dyn Error>> {
    let text = if json {
        format!("{}\n", serde_json::to_string_pretty(lines)?)
    } else {
        table.to_owned()
    };
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        // A reader such as `head` may have closed the pipe.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}
