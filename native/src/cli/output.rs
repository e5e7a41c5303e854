//! The output and the exit of a subcommand.

use std::error::Error;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use comfy_table::{Row, Table, presets};
use serde::Serialize;
use weir_ledger::control::ControlError;

pub(crate) type CommandResult = Result<ExitCode, Box<dyn Error>>;

/// The interval at which progress is shown.
const PROGRESS: Duration = Duration::from_millis(500);

/// The exit code of a command that named something that does not exist.
pub(super) const NOT_FOUND: u8 = 3;

/// The exit code of wrong usage and of all other errors. Wrong arguments have it, too.
const ERROR: u8 = 2;

/// Something that a command named does not exist.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NotFound(pub(super) String);

/// The exit code of a failed command.
pub(crate) fn exit_code(error: &(dyn Error + 'static)) -> ExitCode {
    let is_not_found = error.is::<NotFound>()
        || error
            .downcast_ref::<ControlError>()
            .is_some_and(ControlError::is_not_found);
    ExitCode::from(if is_not_found { NOT_FOUND } else { ERROR })
}

/// Writes to standard output, in color only on a terminal (and without `NO_COLOR`). Returns whether the output is still
/// read: `| head` closes it early. That is not an error, but would make `println!` panic.
pub(super) fn print(text: &str) -> std::io::Result<bool> {
    let mut out = anstream::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes a value as JSON, with the indentation of all commands.
pub(super) fn print_json(value: &impl Serialize) -> Result<(), Box<dyn Error>> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))?;
    Ok(())
}

/// Writes a line to standard error; `eprintln!` would panic on a closed pipe.
pub(crate) fn print_error(line: &str) {
    let _ = writeln!(anstream::stderr(), "{line}");
}

/// The last line of a failed command.
pub(crate) fn print_failure(error: &dyn Error) {
    let name = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    print_error(&format!("{name}weir:{name:#} {error}"));
}

/// Colored text, where color is on.
pub(super) fn colored(text: &str, color: AnsiColor) -> String {
    let style = Style::new().fg_color(Some(color.into()));
    format!("{style}{text}{style:#}")
}

/// Bold text, where color is on.
pub(super) fn bold(text: &str) -> String {
    let style = Style::new().bold();
    format!("{style}{text}{style:#}")
}

/// A table without borders.
pub(super) fn plain_table(header: impl Into<Row>) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    table
}

/// A table's lines, the header in bold.
pub(super) fn table_text(table: &Table) -> String {
    let lines = table.lines().enumerate().map(|(index, line)| {
        let line = line.trim_end();
        match index {
            0 => format!("{}\n", bold(line)),
            _ => format!("{line}\n"),
        }
    });
    lines.collect()
}

/// A number with its noun.
pub(super) fn counted(count: impl Into<i128>, one: &str, many: &str) -> String {
    let count = count.into();
    format!("{count} {}", if count == 1 { one } else { many })
}

/// A line on a terminal's standard error that is overwritten, and finally removed. Elsewhere nothing is written.
pub(super) struct ProgressLine {
    on_terminal: bool,
    shown: Option<Instant>,
}

impl ProgressLine {
    pub(super) fn new() -> Self {
        Self {
            on_terminal: std::io::stderr().is_terminal(),
            shown: None,
        }
    }

    /// Whether the line is on a terminal.
    pub(super) const fn is_shown(&self) -> bool {
        self.on_terminal
    }

    /// Shows the progress, at most twice a second.
    pub(super) fn show(&mut self, text: impl FnOnce() -> String) {
        if self.on_terminal && self.shown.is_none_or(|shown| shown.elapsed() >= PROGRESS) {
            self.shown = Some(Instant::now());
            let _ = write!(std::io::stderr(), "\r{}\x1b[K", text());
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.on_terminal && self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// Shows the work's name and duration on a terminal until it is done.
pub(super) async fn with_progress<T>(what: &str, work: impl Future<Output = T>) -> T {
    let mut line = ProgressLine::new();
    let mut work = std::pin::pin!(work);
    let started = Instant::now();
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(PROGRESS) => {
                line.show(|| format!("{what}: {} s", started.elapsed().as_secs()));
            }
        }
    }
}

/// The author of changes from the command line, for the audit log.
pub(super) fn actor() -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
    user.map_or_else(
        || format!("shell:{}", nix::unistd::getuid()),
        |user| format!("shell:{}", user.name),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        let of = |count: i64| counted(count, "delivery", "deliveries");
        assert_eq!(
            [of(0), of(1), of(2)],
            ["0 deliveries", "1 delivery", "2 deliveries"]
        );
    }
}
