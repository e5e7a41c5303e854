//! Signatures by Standard Webhooks: HMAC-SHA256 over id, time and body. No part of a request can be replaced, and an
//! old request cannot be replayed.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac as _};
use jiff::Timestamp;
use sha2::Sha256;

const PREFIX: &str = "whsec_";

/// Allowed lengths of a secret, in bytes (Standard Webhooks: between 24 and 64).
const LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;

/// A secret that sender and receiver share: `whsec_` and Base64 of 24 to 64 bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

/// The text is not a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a signing secret is whsec_ followed by 24 to 64 random bytes in Base64, such as: echo whsec_$(openssl rand \
     -base64 32)"
)]
pub struct InvalidSecret;

impl Secret {
    /// Generates a secret.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random::<[u8; 32]>().to_vec())
    }

    /// The text that the receiver needs.
    #[must_use]
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}", STANDARD.encode(&self.0))
    }

    fn sign(&self, id: &str, seconds: i64, body: &[u8]) -> String {
        #[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length");
        mac.update(format!("{id}.{seconds}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

impl FromStr for Secret {
    type Err = InvalidSecret;

    fn from_str(text: &str) -> Result<Self, InvalidSecret> {
        let encoded = text.trim().strip_prefix(PREFIX).ok_or(InvalidSecret)?;
        let bytes = STANDARD.decode(encoded).map_err(|_| InvalidSecret)?;
        LENGTHS
            .contains(&bytes.len())
            .then_some(Self(bytes))
            .ok_or(InvalidSecret)
    }
}

/// Hides the secret.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("whsec_…")
    }
}

/// The three headers of a signed request. During a rotation there are several secrets, and the request has a signature
/// by each.
#[must_use]
pub fn headers(secrets: &[Secret], id: &str, now: Timestamp, body: &[u8]) -> [(&'static str, String); 3] {
    let seconds = now.as_second();
    let signatures = secrets.iter().fold(String::new(), |mut all, secret| {
        let space = if all.is_empty() { "" } else { " " };
        let _ = write!(all, "{space}{}", secret.sign(id, seconds, body));
        all
    });
    [
        ("webhook-id", id.to_owned()),
        ("webhook-timestamp", seconds.to_string()),
        ("webhook-signature", signatures),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test panics")]

    use super::*;

    /// Computed by OpenSSL from a key of the bytes 0 to 31.
    #[test]
    fn signatures_equal_those_of_openssl() {
        let secret: Secret = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
            .parse()
            .unwrap();
        let now = Timestamp::from_second(1_763_812_800).unwrap();
        let [id, timestamp, signature] = headers(&[secret], "msg_1", now, br#"{"type":"job.completed"}"#);
        assert_eq!(id, ("webhook-id", "msg_1".to_owned()));
        assert_eq!(timestamp, ("webhook-timestamp", "1763812800".to_owned()));
        assert_eq!(
            signature,
            (
                "webhook-signature",
                "v1,at9SQkG9Brh/brBIimHWdiTtIgS3pt6e3HWif6tXNmE=".to_owned()
            )
        );
    }

    #[test]
    fn two_secrets_produce_two_signatures() {
        let (new, old) = (Secret::random(), Secret::random());
        let now = Timestamp::UNIX_EPOCH;
        let by = |secrets: &[Secret]| headers(secrets, "a", now, b"b")[2].1.clone();
        let (by_new, by_old) = (by(std::slice::from_ref(&new)), by(std::slice::from_ref(&old)));
        assert_ne!(by_new, by_old);
        assert_eq!(by(&[new, old]), format!("{by_new} {by_old}"));
    }

    #[test]
    fn secrets_are_parsed_and_never_shown() {
        let secret = Secret::random();
        assert_eq!(secret.reveal().parse(), Ok(secret.clone()));
        assert_eq!(format!("{secret:?}"), "whsec_…");
        for wrong in [
            "",
            "whsec_",
            "whsec_c2hvcnQ=",
            "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0",
            "whsec_%%%",
        ] {
            assert_eq!(wrong.parse::<Secret>(), Err(InvalidSecret), "{wrong}");
        }
    }
}
