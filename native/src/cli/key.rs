//! `weir key`: service keys.

use std::process::ExitCode;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::Subcommand;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use jiff::Timestamp;
use weir_ledger::control::{self, KEY_PREFIX, Scope, ServiceKey};

use super::connection::connected;
use super::output::{CommandResult, actor, plain_table, print, print_error, print_json, table_text};
use super::values;
use crate::config::Settings;

#[derive(Subcommand)]
pub(crate) enum Key {
    /// Create a key and print it once; the database stores only its hash.
    #[command(after_help = "\
Examples:
  weir key create --name billing --scope admin --ttl 90d
  weir key create --name api --scope submit,read")]
    Create {
        /// The key's name, as the audit log shows it.
        #[arg(long)]
        name: String,
        /// Its scopes, separated by commas.
        #[arg(long, value_delimiter = ',', required = true, value_parser = scopes())]
        scope: Vec<Scope>,
        /// The key's lifetime, such as 90d [default: never expires].
        #[arg(long, value_parser = positive_duration)]
        ttl: Option<Duration>,
    },
    /// Show all keys, without their secrets.
    #[command(after_help = "\
Examples:
  weir key list
  weir key list --json | jq -r '.[].name'")]
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key immediately.
    #[command(after_help = "\
Example:
  weir key revoke billing")]
    Revoke {
        /// The key's name.
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
                    "created key {name}; copy it now, it will not be shown again (revoke with `weir key revoke {name}`)"
                ));
                print(&format!("{key}\n"))?;
            }
            Self::List { json } => {
                let keys = control::keys(&client).await?;
                if json {
                    print_json(&keys)?;
                } else {
                    print(&table(&keys))?;
                }
            }
            Self::Revoke { name } => {
                let ended = control::revoke_key(&mut client, &actor(), &name).await?;
                print(&format!(
                    "{}\n",
                    if ended {
                        "revoked"
                    } else {
                        "it was already revoked"
                    }
                ))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Completions and `--help` list the names.
fn scopes() -> impl TypedValueParser<Value = Scope> {
    PossibleValuesParser::new(Scope::ALL.map(Scope::as_str)).try_map(|name| name.parse::<Scope>())
}

/// A duration greater than zero.
fn positive_duration(text: &str) -> Result<Duration, String> {
    match values::duration(text)? {
        Duration::ZERO => Err("the ttl must be more than 0".to_owned()),
        duration => Ok(duration),
    }
}

fn table(keys: &[ServiceKey]) -> String {
    if keys.is_empty() {
        return "no keys; `weir key create` creates one\n".to_owned();
    }
    let mut table = plain_table(["key", "scopes", "last used", "ends"]);
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
    table_text(&table)
}
