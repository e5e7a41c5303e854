//! Service keys, with which backends authenticate at the origin.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio_postgres::Client;

use super::error::ControlError;
use super::log::Change;

/// The prefix of every key, by which scanners of source code and logs recognise one.
pub const KEY_PREFIX: &str = weir_policy::token::SERVICE_KEY_PREFIX;

/// The permission of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Submitting and cancelling jobs for a user.
    Submit,
    /// Reading a user's jobs and quota.
    Read,
    /// The routes below `/admin`.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 3] = [Self::Submit, Self::Read, Self::Admin];

    /// The key's name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Read => "read",
            Self::Admin => "admin",
        }
    }
}

impl std::str::FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|scope| scope.as_str() == text)
            .ok_or_else(|| format!("{text:?} is not a scope; expected submit, read or admin"))
    }
}

/// A key, without its secret.
#[derive(Clone, Debug, Serialize)]
pub struct ServiceKey {
    /// Its name, as in the log.
    pub name: String,
    /// Its permissions.
    pub scopes: Vec<String>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it expires.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// When it was last used, to the minute.
    pub last_used_at: Option<Timestamp>,
}

impl ServiceKey {
    /// Whether the key has this scope.
    #[must_use]
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.iter().any(|one| one == scope.as_str())
    }
}

/// Why a key is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRefusal {
    /// Unknown key.
    Unknown,
    /// It has expired.
    Expired,
    /// It was revoked.
    Revoked,
}

impl KeyRefusal {
    /// The label in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
        }
    }
}

/// SHA-256. The secret has 256 random bits, which cannot be guessed, so a slow hash or a salt would add nothing.
fn hash(secret: &str) -> Vec<u8> {
    Sha256::digest(secret.as_bytes()).to_vec()
}

/// Creates a key with this secret. Without `expires_at`, it never expires.
///
/// # Errors
///
/// When there is a key of that name, or the database cannot be used.
pub async fn create_key(
    client: &mut Client,
    actor: &str,
    name: &str,
    secret: &str,
    scopes: &[Scope],
    expires_at: Option<Timestamp>,
) -> Result<(), ControlError> {
    if name.is_empty() || name.len() > 100 {
        return Err(ControlError::Invalid(
            "a key's name must have 1 to 100 bytes".to_owned(),
        ));
    }
    let scopes: Vec<&str> = scopes.iter().map(|scope| scope.as_str()).collect();
    if scopes.is_empty() {
        return Err(ControlError::Invalid(
            "a key needs a scope: submit, read or admin".to_owned(),
        ));
    }
    let transaction = client.transaction().await?;
    let made = transaction
        .execute(
            "INSERT INTO service_keys (name, secret_hash, scopes, expires_at) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (name) DO NOTHING",
            &[&name, &hash(secret), &scopes, &expires_at],
        )
        .await?;
    if made == 0 {
        return Err(ControlError::Conflict(format!(
            "a key named {name} already exists; choose another name, because the audit log identifies keys by name"
        )));
    }
    let change = Change {
        actor,
        action: "key.create",
        after: Some(json!({ "name": name, "scopes": scopes, "expires_at": expires_at })),
        ..Change::default()
    };
    change.write(&transaction).await?;
    transaction.commit().await?;
    Ok(())
}

/// All keys by name, including expired and revoked ones.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn keys(client: &Client) -> Result<Vec<ServiceKey>, tokio_postgres::Error> {
    let rows = client
        .query("SELECT * FROM service_keys ORDER BY name", &[])
        .await?;
    Ok(rows.iter().map(from_row).collect())
}

fn from_row(row: &tokio_postgres::Row) -> ServiceKey {
    ServiceKey {
        name: row.get("name"),
        scopes: row.get("scopes"),
        created_at: row.get("created_at"),
        expires_at: row.get("expires_at"),
        revoked_at: row.get("revoked_at"),
        last_used_at: row.get("last_used_at"),
    }
}

/// Revokes a key immediately. Returns false when it was already revoked.
///
/// # Errors
///
/// When there is none of that name, or the database cannot be used.
pub async fn revoke_key(client: &mut Client, actor: &str, name: &str) -> Result<bool, ControlError> {
    let transaction = client.transaction().await?;
    let row = transaction
        .query_opt(
            "SELECT * FROM service_keys WHERE name = $1 FOR NO KEY UPDATE",
            &[&name],
        )
        .await?;
    let Some(before) = row.as_ref().map(from_row) else {
        return Err(ControlError::KeyNotFound(name.to_owned()));
    };
    if before.revoked_at.is_some() {
        return Ok(false);
    }
    transaction
        .execute(
            "UPDATE service_keys SET revoked_at = now() WHERE name = $1",
            &[&name],
        )
        .await?;
    let change = Change {
        actor,
        action: "key.revoke",
        before: Some(json!({ "name": name, "scopes": before.scopes, "expires_at": before.expires_at })),
        ..Change::default()
    };
    change.write(&transaction).await?;
    transaction.commit().await?;
    Ok(true)
}

/// Whether a key is neither revoked nor expired.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn is_valid_key(client: &Client, name: &str) -> Result<bool, tokio_postgres::Error> {
    let valid = "SELECT 1 FROM service_keys WHERE name = $1 AND revoked_at IS NULL AND (expires_at > now()) IS NOT FALSE";
    Ok(client.query_opt(valid, &[&name]).await?.is_some())
}

/// Whether a valid key has this scope.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn has_key(client: &Client, scope: Scope) -> Result<bool, tokio_postgres::Error> {
    let valid = "SELECT 1 FROM service_keys WHERE $1 = ANY (scopes) AND revoked_at IS NULL AND (expires_at > now()) IS NOT FALSE LIMIT 1";
    Ok(client.query_opt(valid, &[&scope.as_str()]).await?.is_some())
}

/// Finds the key with this secret, and records its use.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn verify_key(
    client: &Client,
    secret: &str,
) -> Result<Result<ServiceKey, KeyRefusal>, tokio_postgres::Error> {
    let row = client
        .query_opt(include_str!("sql/verify_key.sql"), &[&hash(secret)])
        .await?;
    let Some(row) = row else {
        return Ok(Err(KeyRefusal::Unknown));
    };
    let key = from_row(&row);
    Ok(match (key.revoked_at, row.get("is_over")) {
        (Some(_), _) => Err(KeyRefusal::Revoked),
        (None, true) => Err(KeyRefusal::Expired),
        (None, false) => Ok(key),
    })
}
