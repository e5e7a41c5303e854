//! `weir audit`.

use std::process::ExitCode;

use anstyle::AnsiColor;
use clap::Args;
use weir_ledger::audit::{self, Finding};

use super::connection::connected;
use super::output::{CommandResult, colored, print, print_json, with_progress};
use crate::config::Settings;

#[derive(Args)]
pub(super) struct Audit {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Rebuild the counters from their rows before the check.
    #[arg(long)]
    repair: bool,
}

impl Audit {
    pub(super) async fn run(self, settings: &Settings) -> CommandResult {
        let mut client = connected(settings).await?;
        if self.repair {
            with_progress("rebuilding the counters", audit::repair(&mut client)).await?;
        }
        let auditing = audit::audit(&mut client, audit::GRACE);
        let findings = with_progress("checking the invariants", auditing).await?;
        if self.json {
            print_json(&findings)?;
        } else {
            print(&report(&findings))?;
        }
        Ok(if findings.iter().all(Finding::holds) {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

/// The report, with each verdict in color.
fn report(findings: &[Finding]) -> String {
    let lines = audit::report(findings);
    let lines = lines.lines().map(|line| match line.split_at_checked(6) {
        Some(("holds ", rest)) => format!("{}{rest}\n", colored("holds ", AnsiColor::Green)),
        Some(("BROKEN", rest)) => format!("{}{rest}\n", colored("BROKEN", AnsiColor::Red)),
        _ => format!("{line}\n"),
    });
    lines.collect()
}
