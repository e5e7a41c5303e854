//! Creates webhooks: checks the URL and generates the secret.

use jiff::SignedDuration;
use reqwest::Url;
use tokio_postgres::Client;
use uuid::Uuid;
use weir_ledger::control::{self, ControlError, NewWebhook, Webhook};

use crate::config::Settings;
use crate::outbound::{self, Reach, Secret};

/// The previous secret also signs for this long after a rotation.
pub const BOTH_SECRETS: SignedDuration = SignedDuration::from_hours(24);

/// A webhook with the secret that signs its deliveries. The secret is shown only now.
#[derive(Debug)]
pub struct Revealed {
    /// The webhook.
    pub webhook: Webhook,
    /// `whsec_…`.
    pub secret: String,
}

/// Creates a webhook.
///
/// # Errors
///
/// When Weir must not send requests to the URL, and all errors of [`control::add_webhook`].
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
    let wanted = NewWebhook {
        url: url.as_str(),
        events,
        thresholds,
        secret: &secret,
    };
    let webhook = control::add_webhook(client, actor, &wanted).await?;
    Ok(Revealed { webhook, secret })
}

/// Replaces a webhook's secret. The old secret stays valid for a day.
///
/// # Errors
///
/// All errors of [`control::rotate_webhook`].
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
