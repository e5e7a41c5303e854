//! The results of a benchmark, and their presentation.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use weir_ledger::database::DatabaseError;

/// One line of a benchmark's result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    /// The measurement and its baseline.
    pub(crate) name: String,
    /// Weir's result.
    pub(crate) value: f64,
    /// The unit of `value` and `baseline`.
    pub(crate) unit: &'static str,
    /// The baseline's result; null for a number that is only printed.
    pub(crate) baseline: Option<f64>,
    /// `value / baseline`.
    pub(crate) ratio: Option<f64>,
    /// The target of the ratio: a minimum, or a maximum if the text states that.
    pub(crate) target: Option<String>,
    /// Whether the target was reached.
    pub(crate) holds: Option<bool>,
}

impl Line {
    pub(super) fn at_least(
        name: impl Into<String>,
        value: f64,
        baseline: f64,
        unit: &'static str,
        target: f64,
    ) -> Self {
        let ratio = value / baseline;
        Self {
            name: name.into(),
            value,
            unit,
            baseline: Some(baseline),
            ratio: Some(ratio),
            target: Some(format!(">= {target}")),
            holds: Some(ratio >= target),
        }
    }

    pub(super) fn at_most(
        name: impl Into<String>,
        value: f64,
        baseline: f64,
        unit: &'static str,
        target: f64,
    ) -> Self {
        let ratio = value / baseline;
        Self {
            target: Some(format!("<= {target}")),
            holds: Some(ratio <= target),
            ..Self::at_least(name, value, baseline, unit, 0.0)
        }
    }

    /// A ratio without a target.
    pub(super) fn compared(name: impl Into<String>, value: f64, baseline: f64, unit: &'static str) -> Self {
        Self {
            target: None,
            holds: None,
            ..Self::at_least(name, value, baseline, unit, 0.0)
        }
    }

    pub(super) fn printed(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self {
            name: name.into(),
            value,
            unit,
            baseline: None,
            ratio: None,
            target: None,
            holds: None,
        }
    }
}

/// The conditions and the results of a benchmark.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// One sentence each.
    pub(crate) conditions: Vec<String>,
    /// The results.
    pub(crate) lines: Vec<Line>,
}

impl Report {
    /// As human-readable text.
    #[must_use]
    pub(crate) fn table(&self) -> String {
        use comfy_table::{CellAlignment, Table, presets};
        let mut text = String::new();
        for condition in &self.conditions {
            let _ = writeln!(text, "{condition}");
        }
        let mut table = Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header(["", "Weir", "against", "unit", "ratio", "target", ""]);
        let number = |value: f64| {
            if value >= 100.0 {
                format!("{value:.0}")
            } else {
                format!("{value:.2}")
            }
        };
        for line in &self.lines {
            let holds = match line.holds {
                Some(true) => "holds",
                Some(false) => "does not hold",
                None => "",
            };
            table.add_row([
                line.name.clone(),
                number(line.value),
                line.baseline.map_or_else(String::new, number),
                line.unit.to_owned(),
                line.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
                line.target.clone().unwrap_or_default(),
                holds.to_owned(),
            ]);
        }
        for column in [1, 2, 4] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let _ = writeln!(text, "{table}");
        text
    }
}

/// The length and the number of measurements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// The length of one measurement.
    pub(crate) span: Duration,
    /// The number of turns of each side.
    pub(crate) turns: usize,
    /// The amount of history in the database, for measurements that depend on it.
    pub(crate) history: i64,
    /// Whether the whole benchmark must end within a minute.
    pub(crate) is_quick: bool,
}

impl Effort {
    /// The effort for published numbers, or a shorter one.
    #[must_use]
    pub(crate) fn of(quick: bool) -> Self {
        if quick {
            Self {
                span: Duration::from_millis(1200),
                turns: 2,
                history: 100_000,
                is_quick: true,
            }
        } else {
            Self {
                span: Duration::from_secs(4),
                turns: 3,
                history: 1_000_000,
                is_quick: false,
            }
        }
    }

    /// The maximum time for one turn to fill its queue, so that a quick run ends in time on a slow machine.
    pub(super) fn filling(self) -> Duration {
        if self.is_quick {
            Duration::from_millis(1500)
        } else {
            Duration::MAX
        }
    }

    /// The same with one turn in a quick run, for benchmarks with long turns.
    #[must_use]
    pub(super) fn with_long_turns(self) -> Self {
        Self {
            turns: if self.is_quick { 1 } else { self.turns },
            ..self
        }
    }
}

/// Why a benchmark did not finish.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// The database cannot be used.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The benchmark's database could not be migrated.
    #[error(transparent)]
    Migrate(#[from] weir_ledger::migrate::MigrateError),
    /// A reservation failed.
    #[error(transparent)]
    Reserve(#[from] weir_ledger::reservation::ReserveError),
    /// The loopback proxy or a worker process failed.
    #[error("a proxy or a process failed: {0}")]
    Io(#[from] std::io::Error),
    /// The services could not be copied to its database.
    #[error(transparent)]
    Catalogue(#[from] weir_ledger::catalogue::CatalogueError),
    /// A requirement is missing. The text explains how to install it.
    #[error("{0}")]
    Missing(String),
    /// A task of the benchmark panicked.
    #[error("a caller died: {0}")]
    Join(#[from] tokio::task::JoinError),
    /// A webhook could not be created.
    #[error(transparent)]
    Control(#[from] weir_ledger::control::ControlError),
}

impl From<tokio_postgres::Error> for BenchError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}

impl From<riverqueue::Error> for BenchError {
    fn from(error: riverqueue::Error) -> Self {
        Self::Database(error.into())
    }
}

/// The median of several measurements.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// The percentile `of`, in milliseconds.
pub(super) fn percentile(latencies: &mut [Duration], of: f64) -> f64 {
    latencies.sort_unstable();
    let index = ((latencies.len() as f64 * of) as usize).min(latencies.len().saturating_sub(1));
    latencies
        .get(index)
        .map_or(0.0, |latency| latency.as_secs_f64() * 1000.0)
}

/// The machine and the server.
pub(super) async fn conditions(client: &tokio_postgres::Client) -> Result<Vec<String>, BenchError> {
    let row = client
        .query_one(
            "SELECT version(), current_setting('fsync'), current_setting('synchronous_commit'), \
                    current_setting('shared_buffers')",
            &[],
        )
        .await?;
    let version: String = row.get(0);
    let (fsync, commit, buffers): (String, String, String) = (row.get(1), row.get(2), row.get(3));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let build = if cfg!(debug_assertions) {
        "DEBUG BUILD: numbers mean nothing"
    } else {
        "release build"
    };
    let version = version.split(" on ").next().unwrap_or_default().to_owned();
    Ok(vec![
        format!("{version}, fsync={fsync}, synchronous_commit={commit}, shared_buffers={buffers}"),
        format!(
            "{cores} cores shared with the server, load {}, {build}",
            load.split(' ').next().unwrap_or("?")
        ),
    ])
}
