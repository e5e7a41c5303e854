//! Making webhooks: the URL is looked at, and the secret made.

use jiff::SignedDuration;
use reqwest::Url;
use tokio_postgres::Client;
use uuid::Uuid;
use weir_ledger::control::{self, ControlError, WantedWebhook, Webhook};

use crate::config::Settings;
use crate::outbound::{self, Reach, Secret};

/// How long the secret before signs besides the new one.
pub const BOTH_SECRETS: SignedDuration = SignedDuration::from_hours(24);

/// A webhook with the secret that its deliveries are signed by, which is shown this once.
#[derive(Debug)]
pub struct Revealed {
    /// The webhook.
    pub webhook: Webhook,
    /// `whsec_…`.
    pub secret: String,
}

/// Makes a webhook.
///
/// # Errors
///
/// When the URL is not one to send requests to, and all that [`control::add_webhook`] refuses.
pub async fn add(
    client: &mut Client,
    settings: &Settings,
    actor: &str,
    url: &str,
    events: &[String],
    thresholds: &[i16],
) -> Result<Revealed, ControlError> {
    let url = usable(url, settings)?;
    let secret = Secret::random().reveal();
    let wanted = WantedWebhook {
        url: url.as_str(),
        events,
        thresholds,
        secret: &secret,
    };
    let webhook = control::add_webhook(client, actor, &wanted).await?;
    Ok(Revealed { webhook, secret })
}

/// Gives a webhook another secret. For a day, the one before signs besides.
///
/// # Errors
///
/// All that [`control::rotate_webhook`] refuses.
pub async fn rotate(client: &mut Client, actor: &str, id: Uuid) -> Result<Revealed, ControlError> {
    let secret = Secret::random().reveal();
    let webhook = control::rotate_webhook(client, actor, id, &secret, BOTH_SECRETS).await?;
    Ok(Revealed { webhook, secret })
}

fn usable(text: &str, settings: &Settings) -> Result<Url, ControlError> {
    let invalid = |reason: String| ControlError::Invalid(format!("url: {reason}"));
    let url: Url = text
        .trim()
        .parse()
        .map_err(|error| invalid(format!("{error}; write one such as https://example.com/weir")))?;
    outbound::check(&url, Reach::of(settings.webhook_private_networks)).map_err(|error| {
        let hint = if error == outbound::Unreachable::Private {
            "; WEBHOOK_PRIVATE_NETWORKS=true allows it"
        } else {
            ""
        };
        invalid(format!("{error}{hint}"))
    })?;
    if url.fragment().is_some() {
        return Err(invalid("a fragment (#…) is never sent; leave it out".to_owned()));
    }
    if url.as_str().len() > 2000 {
        return Err(invalid("it is longer than 2000 bytes".to_owned()));
    }
    Ok(url)
}
