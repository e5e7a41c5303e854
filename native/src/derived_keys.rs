//! Tokens that need no storage: an HMAC-SHA256 over their contents, with keys derived from secrets.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use uuid::Uuid;

/// Keys for one purpose, derived from a setting's secrets. The current one comes first; the previous one is accepted
/// during a rotation.
#[derive(Clone)]
pub(crate) struct DerivedKeys(Vec<Hmac<Sha256>>);

impl DerivedKeys {
    /// `purpose` separates the uses of one secret. `database` separates databases, because the same id is another job
    /// there.
    pub(crate) fn new(
        purpose: &str,
        secrets: impl IntoIterator<Item = impl AsRef<[u8]>>,
        database: Uuid,
    ) -> Self {
        let keys = secrets.into_iter().filter_map(|secret| {
            let key = Hmac::<Sha256>::new_from_slice(secret.as_ref()).ok()?;
            Some(
                key.chain_update(purpose)
                    .chain_update(b"\0")
                    .chain_update(database.as_bytes()),
            )
        });
        Self(keys.collect())
    }

    /// The code of the concatenated parts, in base64url; `None` without a secret.
    pub(crate) fn sign(&self, parts: &[&[u8]]) -> Option<String> {
        let mac = with(self.0.first()?, parts).finalize();
        Some(URL_SAFE_NO_PAD.encode(mac.into_bytes()))
    }

    /// Whether this is the code of these parts. Takes the same time for every invalid code.
    pub(crate) fn verify(&self, parts: &[&[u8]], code: &str) -> bool {
        URL_SAFE_NO_PAD.decode(code).is_ok_and(|code| {
            self.0
                .iter()
                .any(|key| with(key, parts).verify_slice(&code).is_ok())
        })
    }
}

fn with(key: &Hmac<Sha256>, parts: &[&[u8]]) -> Hmac<Sha256> {
    parts.iter().fold(key.clone(), |mac, part| mac.chain_update(part))
}
