//! Completions for shells, and the manual pages.

use std::path::Path;
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

use super::output::{CommandResult, print};

/// Prints the completions for a shell.
pub(super) fn completions(mut command: Command, shell: Shell) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "weir", &mut script);
    print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a manual page for each command.
pub(super) fn manual(command: Command, folder: &Path) -> CommandResult {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(command, folder)?;
    Ok(ExitCode::SUCCESS)
}
