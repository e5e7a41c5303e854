//! `peers`: other queues with the same jobs, in separate programs on the same server, in one run.

mod arena;
mod killed;
mod measure;
mod own;
mod program;
pub(crate) mod snapshot;
mod table;

use super::progress::progress;
use super::report::{BenchError, Effort, conditions, median};
use arena::{AT_ONCE, CONNECTIONS};
use measure::{JOB_MS, Number, Speed};
use program::{Program, Rescue, versions};
pub(crate) use table::Field;
use table::{Row, row};
use weir::config::Settings;

/// The list price of a core for an hour, in dollars.
const CORE_HOUR: f64 = 0.04;

/// The tasks of Weir's own program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerPart {
    /// Migrate, and subscribe the users.
    Setup,
    /// Submit jobs.
    Produce,
    /// Run them.
    Work,
}

/// Runs Weir's own program, on the database of the settings.
///
/// # Errors
///
/// When the task fails.
pub(crate) async fn peer_part(settings: Settings, part: PeerPart) -> Result<(), BenchError> {
    match part {
        PeerPart::Setup => own::setup(&settings).await,
        PeerPart::Produce => own::produce(&settings).await,
        PeerPart::Work => own::work(settings).await,
    }
}

/// Runs the benchmark.
///
/// # Errors
///
/// When a program cannot be built or fails, or the database cannot be used. Their databases may then be left on the
/// server.
pub(crate) async fn peers(settings: &Settings, effort: Effort) -> Result<Field, BenchError> {
    let programs = program::all().await?;
    let mut conditions = conditions(&settings.database()?.connect().await?).await?;
    conditions.push(format!(
        "each a process to insert with {CONNECTIONS} callers, one job a call, and one to work {AT_ONCE} jobs at once; \
         settings as in bench/peers; {} turns of {} s; a core is {CORE_HOUR} $ an hour",
        effort.turns,
        effort.span.as_secs_f64()
    ));
    let mut rows = speeds(settings, &programs, effort).await?;
    // Some programs take minutes for these.
    if !effort.is_quick {
        rows.extend(waits(settings, &programs, effort).await?);
        rows.extend(kills(settings, &programs).await?);
    }
    Ok(Field {
        conditions,
        programs: versions(&programs),
        rows,
    })
}

/// All programs take turns, so that other load on the machine affects all of them.
async fn speeds(settings: &Settings, programs: &[Program], effort: Effort) -> Result<Vec<Row>, BenchError> {
    let effort = effort.with_long_turns();
    let mut measured: Vec<[Vec<Speed>; 2]> = programs.iter().map(|_| [Vec::new(), Vec::new()]).collect();
    for turn in 1..=effort.turns {
        for (program, speeds) in programs.iter().zip(&mut measured) {
            progress(&format!(
                "{}: jobs a second, turn {turn} of {}",
                program.name, effort.turns
            ));
            let lengths: &[u64] = if effort.is_quick { &[0] } else { &[0, JOB_MS] };
            for (speeds, job_ms) in speeds.iter_mut().zip(lengths) {
                speeds.push(measure::speed(settings, program, effort, *job_ms).await?);
            }
        }
    }
    let each = |of: &dyn Fn(&[Vec<Speed>; 2]) -> Vec<f64>| -> Vec<Option<Number>> {
        let numbers = measured.iter().map(of);
        numbers
            .map(|numbers| (!numbers.is_empty()).then(|| Number::Is(median(numbers))))
            .collect()
    };
    let of = |speeds: &[Speed], which: fn(&Speed) -> f64| speeds.iter().map(which).collect::<Vec<_>>();
    Ok(vec![
        row(
            "submitted",
            "1/s",
            each(&|speeds| of(&speeds[0], |speed| speed.inserted)),
        ),
        row(
            "worked, no-op",
            "1/s",
            each(&|speeds| of(&speeds[0], |speed| speed.worked)),
        ),
        row(
            format!("worked, {JOB_MS} ms each"),
            "1/s",
            each(&|speeds| of(&speeds[1], |speed| speed.worked)),
        ),
        row(
            "processor time of a no-op job",
            "µs",
            each(&|speeds| of(&speeds[0], |speed| speed.cpu * 1e6)),
        ),
        row(
            "a million of them, processors",
            "$",
            each(&|speeds| of(&speeds[0], |speed| speed.cpu * 1e6 / 3600.0 * CORE_HOUR)),
        ),
    ])
}

/// The waits of newcomers and freed slots.
async fn waits(settings: &Settings, programs: &[Program], effort: Effort) -> Result<Vec<Row>, BenchError> {
    let mut measured = [const { Vec::new() }; 5];
    for program in programs {
        progress(&format!("{}: a newcomer's wait", program.name));
        let newcomers = measure::newcomers(settings, program, effort).await?;
        progress(&format!("{}: a freed slot's wait", program.name));
        let [half, nearly_all] = measure::slots(settings, program).await?;
        let numbers = [
            newcomers.first,
            newcomers.half,
            newcomers.nearly_all,
            half,
            nearly_all,
        ];
        for (measured, number) in measured.iter_mut().zip(numbers) {
            measured.push(Some(number));
        }
    }
    let flood = measure::flood_of(effort);
    let names = [
        format!("first newcomer behind {flood} of another"),
        "those that follow, p50".to_owned(),
        "those that follow, p99".to_owned(),
        "a freed slot to its user's next start, p50".to_owned(),
        "the same, p99".to_owned(),
    ];
    Ok(names
        .into_iter()
        .zip(measured)
        .map(|(name, numbers)| row(name, "ms", numbers))
        .collect())
}

/// The cost of a worker's death.
async fn kills(settings: &Settings, programs: &[Program]) -> Result<Vec<Row>, BenchError> {
    let mut measured = [const { Vec::new() }; 4];
    for program in programs {
        progress(&format!("{}: kill -9, its defaults", program.name));
        let default = killed::killed(settings, program, Rescue::Default).await?;
        let mut hurried = None;
        if program.can_hurry {
            progress(&format!("{}: kill -9, its shortest setting", program.name));
            hurried = Some(killed::killed(settings, program, Rescue::Shortest).await?.jobs);
        }
        let most = Some(Number::Is(default.most as f64));
        let numbers = [Some(default.jobs), hurried, Some(default.users), most];
        for (measured, number) in measured.iter_mut().zip(numbers) {
            measured.push(number);
        }
    }
    let names = [
        ("kill -9 until its jobs run again, by default", "s"),
        ("the same, the shortest setting for jobs of 2 s", "s"),
        ("until their users have any job run, by default", "s"),
        ("most at once of a user with one slot, two workers", ""),
    ];
    Ok(names
        .into_iter()
        .zip(measured)
        .map(|((name, unit), numbers)| row(name, unit, numbers))
        .collect())
}
