//! `weir lane`: pauses and resumes lanes.

use std::process::ExitCode;

use clap::Subcommand;
use weir::config::Settings;

use super::connection::connected;
use super::output::{CommandResult, NotFound, print};

#[derive(Subcommand)]
pub(crate) enum Lane {
    /// Start no more jobs of a lane; running jobs continue, and submissions are accepted.
    #[command(after_help = "\
Example:
  weir lane pause analysis_default")]
    Pause {
        /// The lane's queue, as `weir status` prints it.
        queue: String,
    },
    /// Start jobs of a paused lane again.
    #[command(after_help = "\
Example:
  weir lane resume analysis_default")]
    Resume {
        /// The lane's queue, as `weir status` prints it.
        queue: String,
    },
}

impl Lane {
    pub(crate) async fn run(self, settings: &Settings) -> CommandResult {
        // Also checks the database.
        connected(settings).await?;
        let (Self::Pause { queue } | Self::Resume { queue }) = &self;
        let mut queues = settings.services.iter().flat_map(|service| service.queues());
        if !queues.any(|(_, name, _)| name == *queue) {
            let text = format!("no service has a lane {queue:?}; `weir status` lists the lanes");
            return Err(NotFound(text).into());
        }
        let pool = settings.database()?.river_pool(1)?;
        let river = riverqueue::Client::builder(pool).build()?;
        let (changed, state) = match &self {
            Self::Pause { .. } => (river.queues().pause(queue.as_str()).await, "paused"),
            Self::Resume { .. } => (river.queues().resume(queue.as_str()).await, "resumed"),
        };
        match changed {
            Err(riverqueue::Error::NotFound(_)) => {
                Err(format!("no worker has ever worked {queue:?}, so River has no row to pause it by").into())
            }
            Err(error) => Err(error.into()),
            Ok(()) => {
                print(&format!("{state} {queue}\n"))?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}
