//! `weir key`: service keys.

use std::process::ExitCode;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::Subcommand;
use comfy_table::{Table, presets};
use jiff::Timestamp;
use weir::config::Settings;
use weir_ledger::control::{self, KEY_PREFIX, Scope, ServiceKey};

use super::connection::connected;
use super::output::{CommandResult, actor, print, print_error};

#[derive(Subcommand)]
pub(crate) enum Key {
    /// Make a key and print it, once: the database has its hash only.
    Create {
        /// Its name, for the log.
        #[arg(long)]
        name: String,
        /// What it is good for, comma separated: submit, read, admin.
        #[arg(long, value_delimiter = ',', required = true)]
        scope: Vec<Scope>,
        /// How long it is good for, such as 90d; for ever unless told.
        #[arg(long, value_parser = some_time)]
        ttl: Option<Duration>,
    },
    /// Show all keys, without their secrets.
    List {
        /// Machine-readable.
        #[arg(long)]
        json: bool,
    },
    /// End a key at once.
    Revoke {
        /// Its name.
        name: String,
    },
}

impl Key {
    pub(crate) async fn run(self, settings: &Settings) -> CommandResult {
        let mut client = connected(settings).await?;
        match self {
            Self::Create { name, scope, ttl } => {
                let expires_at = ttl.map(|ttl| Timestamp::now().checked_add(ttl)).transpose()?;
                // As many random bits as the hash has.
                let secret: [u8; 32] = rand::random();
                let key = format!("{KEY_PREFIX}{}", URL_SAFE_NO_PAD.encode(secret));
                control::create_key(&mut client, &actor(), &name, &key, &scope, expires_at).await?;
                print_error(&format!(
                    "this is the only time that the key {name} is shown; `weir key revoke {name}` ends it"
                ));
                print(&format!("{key}\n"))?;
            }
            Self::List { json } => {
                let keys = control::keys(&client).await?;
                if json {
                    print(&format!("{}\n", serde_json::to_string_pretty(&keys)?))?;
                } else {
                    print(&table(&keys))?;
                }
            }
            Self::Revoke { name } => {
                let ended = control::revoke_key(&mut client, &actor(), &name).await?;
                print(&format!(
                    "{}\n",
                    if ended {
                        "it is not accepted any more"
                    } else {
                        "it was revoked before"
                    }
                ))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A duration that is not over at once.
fn some_time(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("a key that ends at once is good for nothing".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(error.to_string()),
    }
}

fn table(keys: &[ServiceKey]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["key", "scopes", "last used", "ends"]);
    let moment = |at: Option<Timestamp>, none: &str| {
        at.map_or_else(
            || none.to_owned(),
            |at| at.strftime("%Y-%m-%d %H:%M UTC").to_string(),
        )
    };
    for key in keys {
        let ends = match key.revoked_at {
            Some(at) => format!("revoked {}", moment(Some(at), "")),
            None => moment(key.expires_at, "never"),
        };
        table.add_row([
            key.name.clone(),
            key.scopes.join(","),
            moment(key.last_used_at, "never"),
            ends,
        ]);
    }
    let lines = table.lines().map(|line| format!("{}\n", line.trim_end()));
    lines.collect()
}
