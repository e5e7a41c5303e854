//! `weir uninstall`.

use std::process::ExitCode;

use clap::Args;
use weir_ledger::migrate::{self, Uninstalled};

use super::connection::needs_sessions;
use super::output::{CommandResult, print, with_progress};
use crate::config::Settings;

/// The options of `weir uninstall`.
#[derive(Args)]
pub(super) struct Uninstall {
    /// Move unfinished jobs from the lanes to this queue, which your own River client works.
    #[arg(long)]
    queue: Option<String>,
    /// Do it; without this option, `uninstall` only prints what it would do.
    #[arg(long)]
    yes: bool,
}

impl Uninstall {
    pub(super) async fn run(self, settings: &Settings) -> CommandResult {
        let database = settings.database()?;
        needs_sessions(&database).await?;
        let queue = self.queue.as_deref();
        if self.yes {
            let removing = migrate::uninstall(&database, queue);
            let done = with_progress("removing Weir from the database", removing).await?;
            print(&text(&done, true))?;
        } else {
            print(&text(&migrate::uninstall_preview(&database, queue).await?, false))?;
            print("nothing was changed; `weir uninstall --yes` does this\n")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The changes, one line each.
fn text(change: &Uninstalled, is_done: bool) -> String {
    let verb = if is_done { "dropped" } else { "will drop" };
    let jobs = change.jobs;
    let mut lines = vec![
        format!(
            "{verb} {:?}: users, plans, usage, webhooks, the audit log",
            change.schema
        ),
        format!(
            "jobs made available: {} (they waited for a slot or an answer, or lost the worker)",
            jobs.available
        ),
        format!("jobs scheduled for the time they wait for: {}", jobs.scheduled),
        format!(
            "jobs discarded, because they lost the worker in the last attempt: {}",
            jobs.discarded
        ),
        format!("deliveries to webhooks cancelled: {}", jobs.cancelled),
    ];
    if !change.drops_schema {
        lines[0] = format!(
            "{verb} Weir's objects in {:?}, but not the schema: users, plans, usage, webhooks, the audit log",
            change.schema
        );
    }
    if !change.queues.is_empty() {
        lines.push(format!(
            "queues with unfinished jobs for your River client: {}",
            change.queues.join(", ")
        ));
    }
    if !is_done {
        lines.push(
            "will drop the roles weir_submitter and weir_worker, unless another database uses them"
                .to_owned(),
        );
    }
    lines.extend(
        change
            .kept_roles
            .iter()
            .map(|role| format!("kept the role {role}")),
    );
    lines.iter().map(|line| format!("{line}\n")).collect()
}
