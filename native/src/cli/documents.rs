//! Completions for shells, and the manual pages.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use clap::{Command, ValueHint};
use clap_complete::Shell;
use clap_mangen::Man;

use super::output::{CommandResult, print};

/// Prints the completions for a shell.
pub(super) fn completions(command: Command, shell: Shell) -> CommandResult {
    let mut command = without_file_names(without_hidden(&command));
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "weir", &mut script);
    print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

/// The command without its hidden subcommands, which `clap_complete` would offer.
fn without_hidden(command: &Command) -> Command {
    let visible = command.get_subcommands().filter(|below| !below.is_hide_set());
    Command::new("weir")
        .version(env!("CARGO_PKG_VERSION"))
        .about(command.get_about().cloned().unwrap_or_default())
        .args(command.get_arguments())
        .subcommands(visible)
}

/// Without a hint, a shell offers file names for every value.
fn without_file_names(command: Command) -> Command {
    command
        .mut_args(|argument| {
            if argument.get_action().takes_values() && argument.get_value_hint() == ValueHint::Unknown {
                argument.value_hint(ValueHint::Other)
            } else {
                argument
            }
        })
        .mut_subcommands(without_file_names)
}

/// Writes a manual page for each command.
pub(super) fn manual(command: Command, folder: &Path) -> CommandResult {
    std::fs::create_dir_all(folder)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_pages(&command, folder)?;
    Ok(ExitCode::SUCCESS)
}

fn write_pages(command: &Command, folder: &Path) -> Result<(), Box<dyn Error>> {
    // Only the first command has a version.
    let page = Man::new(command.clone()).source(concat!("weir ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    page.render(&mut text)?;
    // `clap_mangen` puts the end of the help under EXTRA.
    let text = String::from_utf8(text)?
        .replace(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n")
        .replace(".SH EXTRA\nExample:\n", ".SH EXAMPLES\n")
        .replace(".SH EXTRA\n", ".SH ENVIRONMENT\n");
    std::fs::write(folder.join(page.get_filename()), text)?;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below, folder)?;
    }
    Ok(())
}
