//! How a subcommand ends, and what it prints.

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

pub(crate) type CommandResult = Result<ExitCode, Box<dyn Error>>;

/// Writes to standard output, and says whether anybody still reads: `| head` has seen enough at some point, which is
/// no fault, where `println!` would panic.
pub(super) fn print(text: &str) -> std::io::Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes a line to standard error, where `eprintln!` would panic if nobody reads it.
pub(crate) fn print_error(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Who changes something from here, as the log of changes has it.
pub(super) fn actor() -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
    user.map_or_else(
        || format!("shell:{}", nix::unistd::getuid()),
        |user| format!("shell:{}", user.name),
    )
}
