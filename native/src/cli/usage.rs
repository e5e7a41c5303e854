//! `weir usage`: the usage of all users.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Subcommand;
use jiff::Timestamp;
use weir_ledger::control::{self, UsageEvent};

use super::connection::connected;
use super::output::{CommandResult, ProgressLine, actor, counted, print, print_error};
use super::values;
use crate::api::admin::CloudEvent;
use crate::config::Settings;

#[derive(Subcommand)]
pub(crate) enum Usage {
    /// Move the usage events of past billing periods to a file; their totals stay in the database.
    ///
    /// Balances, grants and `weir audit` need the totals, so do not delete usage events with SQL.
    #[command(after_help = "\
Example:
  weir usage archive --before 2026-01-01T00:00:00Z --to usage-2025.jsonl")]
    Archive {
        /// Archive the periods that ended before this time, such as 2026-01-01T00:00:00Z; at least 31 days ago.
        #[arg(long, value_parser = values::time)]
        before: Timestamp,
        /// The file to append to, one CloudEvent per line, as in `GET /admin/usage/events`.
        #[arg(long)]
        to: PathBuf,
    },
}

/// The interval at which progress is logged if standard error is not a terminal.
const LOG: Duration = Duration::from_secs(5);

impl Usage {
    pub(crate) async fn run(self, settings: &Settings) -> CommandResult {
        let Self::Archive { before, to } = self;
        let mut client = connected(settings).await?;
        let mut archive = Archive::open(&to, &settings.usage_event_source)
            .map_err(|error| format!("{}: {error}", to.display()))?;
        let (mut written, mut logged, mut line) = (0, Instant::now(), ProgressLine::new());
        let archived = control::archive_usage(&mut client, &actor(), before, |events| {
            archive.store(events)?;
            written += events.len();
            line.show(|| format!("{written} usage events so far"));
            if !line.is_shown() && logged.elapsed() >= LOG {
                logged = Instant::now();
                print_error(&format!("{written} usage events so far"));
            }
            Ok(())
        })
        .await?;
        drop(line);
        let events = counted(i128::from(archived), "usage event", "usage events");
        print(&format!("{events} moved to {}\n", to.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A file to which usage events are appended.
struct Archive {
    file: File,
    /// The `source` of the events.
    source: String,
}

impl Archive {
    /// Other users of the machine must not read the usage.
    fn open(path: &Path, source: &str) -> std::io::Result<Self> {
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        // A new file survives a crash only after its folder is synced.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        // A process that crashed may have left half a line.
        if file.metadata()?.len() > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        Ok(Self {
            file,
            source: source.to_owned(),
        })
    }

    /// The events are on disk when this returns.
    fn store(&mut self, events: &[UsageEvent]) -> std::io::Result<()> {
        let mut lines = BufWriter::new(&mut self.file);
        for event in events {
            serde_json::to_writer(&mut lines, &CloudEvent::new(event.clone(), &self.source))?;
            lines.write_all(b"\n")?;
        }
        lines.flush()?;
        drop(lines);
        self.file.sync_data()
    }
}
