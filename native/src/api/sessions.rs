//! Sessions of the console. A session has the key's name, an end, and a code of both, so nothing is stored. All end when
//! `EDGE_SECRET` changes.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use secrecy::{ExposeSecret, SecretString};
use uuid::Uuid;

use crate::derived_keys::DerivedKeys;

/// How long a session lasts.
pub(super) const LIFETIME: SignedDuration = SignedDuration::from_hours(8);

/// Creates and verifies sessions.
pub(super) struct Sessions(DerivedKeys);

impl Sessions {
    /// Keys derived from the secrets that the edge and the origin share, the current one first.
    pub(super) fn new<'a>(secrets: impl IntoIterator<Item = &'a SecretString>, database: Uuid) -> Self {
        let secrets = secrets.into_iter().map(ExposeSecret::expose_secret);
        Self(DerivedKeys::new("weir console session", secrets, database))
    }

    /// A session of the key with this name.
    pub(super) fn of(&self, key: &str, ends_at: Timestamp) -> Option<String> {
        let ends = ends_at.as_second();
        let code = self.0.sign(&[&ends.to_be_bytes(), key.as_bytes()])?;
        Some(format!("{}.{ends}.{code}", URL_SAFE_NO_PAD.encode(key)))
    }

    /// The name of the key, if this is a session that has not ended.
    pub(super) fn verify(&self, session: &str, now: Timestamp) -> Option<String> {
        let mut parts = session.split('.');
        let (key, ends, code) = (parts.next()?, parts.next()?, parts.next()?);
        let key = String::from_utf8(URL_SAFE_NO_PAD.decode(key).ok()?).ok()?;
        let ends: i64 = ends.parse().ok()?;
        let is_ours = self.0.verify(&[&ends.to_be_bytes(), key.as_bytes()], code);
        (is_ours && ends > now.as_second()).then_some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_valid_until_its_end_and_for_its_key() {
        let secret = SecretString::from("a secret of the edge that only tests use");
        let sessions = Sessions::new([&secret], Uuid::nil());
        let (start, end) = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH + LIFETIME);
        let session = sessions.of("anne.ops", end).unwrap();
        assert_eq!(sessions.verify(&session, start).as_deref(), Some("anne.ops"));
        assert_eq!(sessions.verify(&session, end), None);
        let other = URL_SAFE_NO_PAD.encode("bea");
        let rest = session.split_once('.').unwrap().1;
        for wrong in [
            "",
            ".",
            "..",
            &format!("{other}.{rest}"),
            &session[1..],
            &format!("{session}x"),
        ] {
            assert_eq!(sessions.verify(wrong, start), None, "{wrong}");
        }
        let another = Sessions::new([&secret], Uuid::from_u128(1));
        assert_eq!(another.verify(&session, start), None);
        assert_eq!(Sessions::new([], Uuid::nil()).of("anne", end), None);
    }
}
