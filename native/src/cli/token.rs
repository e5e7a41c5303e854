//! `weir token`: bearer tokens for development and tests.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use uuid::Uuid;
use weir_policy::subject::Subject;

use super::connection::connected;
use super::output::{CommandResult, print};
use super::values;
use crate::config::Settings;
use crate::token;

#[derive(Args)]
pub(super) struct Token {
    /// Plan to assign.
    #[arg(long, alias = "tier")]
    plan: String,
    /// The user's subject, as tokens contain it [default: a new UUID].
    #[arg(long)]
    user: Option<Subject>,
    /// The token's lifetime.
    #[arg(long, default_value = "1h", value_parser = values::duration)]
    ttl: Duration,
}

impl Token {
    pub(super) async fn run(self, settings: &Settings) -> CommandResult {
        let Self { plan, user, ttl } = self;
        let client = connected(settings).await?;
        let user = user.unwrap_or_else(|| Uuid::new_v4().into());
        let token = token::issue(&client, settings, &user, &plan, ttl).await?;
        print(&format!("{token}\n"))?;
        Ok(ExitCode::SUCCESS)
    }
}
