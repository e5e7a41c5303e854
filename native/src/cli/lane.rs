//! `weir lane`: pauses and resumes lanes.

use std::process::ExitCode;

use clap::Subcommand;

use super::connection::connected;
use super::output::{CommandResult, NotFound, actor, print};
use crate::config::Settings;
use crate::river_control::{PauseError, set_paused};

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
        let client = connected(settings).await?;
        let pool = settings.database()?.river_pool(1)?;
        let river = riverqueue::Client::builder(pool).build()?;
        let (queue, pauses) = match &self {
            Self::Pause { queue } => (queue, true),
            Self::Resume { queue } => (queue, false),
        };
        set_paused(settings, &river, &client, &actor(), queue, pauses)
            .await
            .map_err(|error| -> Box<dyn std::error::Error> {
                match error {
                    PauseError::Unknown(_) => NotFound(error.to_string()).into(),
                    _ => error.into(),
                }
            })?;
        print(&format!(
            "{} {queue}\n",
            if pauses { "paused" } else { "resumed" }
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}
