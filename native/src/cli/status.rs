//! `weir status`: once, repeatedly, or on an alternate screen.

use std::error::Error;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tokio_postgres::Client;

use super::connection::connected;
use super::output::{CommandResult, print};
use super::screen::{Next, Screen};
use super::signals::StopSignals;
use crate::config::Settings;
use crate::status;

/// The interval of `--watch`.
const EVERY: Duration = Duration::from_secs(1);

/// The time limit of a query, in case the database hangs.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Args)]
pub(super) struct Status {
    /// Print JSON; with --watch, one line per refresh.
    #[arg(long)]
    json: bool,
    /// Refresh every second until interrupted; on a terminal, q quits.
    #[arg(long)]
    watch: bool,
}

impl Status {
    pub(super) async fn run(self, settings: &Settings) -> CommandResult {
        // The first query precedes the screen, so that errors in the settings are printed on the terminal.
        let client = connected(settings).await?;
        let text = self.look(&client, settings).await?;
        if self.watch && !self.json && std::io::stdout().is_terminal() {
            return self.on_screen(settings, client, text).await;
        }
        let mut text = text;
        loop {
            if !print(&format!("{text}\n"))? || !self.watch {
                return Ok(ExitCode::SUCCESS);
            }
            tokio::time::sleep(EVERY).await;
            text = self.look(&client, settings).await?;
            if !self.json {
                // Separates two outputs. Programs that read JSON expect one line each.
                text.insert(0, '\n');
            }
        }
    }

    async fn look(&self, client: &Client, settings: &Settings) -> Result<String, Box<dyn Error>> {
        let overview = status::overview(client, settings).await?;
        Ok(match (self.json, self.watch) {
            (true, true) => serde_json::to_string(&overview)?,
            (true, false) => serde_json::to_string_pretty(&overview)?,
            (false, _) => status::overview_text(&overview, settings.leads_river),
        })
    }

    /// Draws until the user quits. Waits for an unavailable database, because outages are when people watch.
    async fn on_screen(&self, settings: &Settings, client: Client, first: String) -> CommandResult {
        let mut signals = StopSignals::listen()?;
        let mut screen = Screen::open()?;
        let mut client = Some(client);
        let mut text = first;
        loop {
            screen.draw(&text)?;
            let next = tokio::select! {
                next = screen.next(EVERY) => next,
                _ = signals.next() => Next::Quit,
            };
            if matches!(next, Next::Quit) {
                break;
            }
            let looking = async {
                match &client {
                    Some(client) => self.look(client, settings).await,
                    None => match connected(settings).await {
                        Ok(connected) => self.look(client.insert(connected), settings).await,
                        Err(error) => Err(error),
                    },
                }
            };
            // The user can quit while the database hangs.
            let looked = tokio::select! {
                looked = tokio::time::timeout(LOOK_TIMEOUT, looking) => looked
                    .unwrap_or_else(|_| Err("the database does not answer".into())),
                _ = signals.next() => break,
                () = screen.quit() => break,
            };
            text = looked.unwrap_or_else(|error| {
                client = None;
                format!(
                    "{}\n\ntrying again every second",
                    status::wrapped(&error.to_string())
                )
            });
        }
        drop(screen);
        // The last status stays readable.
        print(&format!("{text}\n"))?;
        Ok(ExitCode::SUCCESS)
    }
}
