//! Job tokens, with which anonymous clients read their jobs. An address is no proof of identity: all clients behind a
//! router share it, and so does every website that a browser there visits.

use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use uuid::Uuid;

use crate::derived_keys::DerivedKeys;

/// The header with a job token.
pub(super) const HEADER: &str = "weir-job-token";

/// The query parameter for event streams, because a browser cannot add headers to them.
pub(super) const PARAMETER: &str = "token";

/// Creates and verifies job tokens. A token has the job's creation time, and a code of that time and the job's id, so
/// nothing has to be stored. The time is needed because a failover may reuse ids.
pub(super) struct JobTokens(DerivedKeys);

impl JobTokens {
    /// Keys derived from the secrets that the edge and the origin share, the current one first.
    pub(super) fn new<'a>(secrets: impl IntoIterator<Item = &'a SecretString>, database: Uuid) -> Self {
        let secrets = secrets.into_iter().map(ExposeSecret::expose_secret);
        Self(DerivedKeys::new("weir job token", secrets, database))
    }

    /// The token of a job; `None` without a secret.
    pub(super) fn of(&self, job_id: i64, created_at: Timestamp) -> Option<String> {
        let created = created_at.as_microsecond();
        let code = self.0.sign(&[&job_id.to_be_bytes(), &created.to_be_bytes()])?;
        Some(format!("{created}.{code}"))
    }

    /// If this is a token of the job, returns when that job was created. The check takes the same time for every wrong
    /// token.
    pub(super) fn verify(&self, job_id: i64, token: &str) -> Option<Timestamp> {
        let (created, code) = token.split_once('.')?;
        let created: i64 = created.parse().ok()?;
        self.0
            .verify(&[&job_id.to_be_bytes(), &created.to_be_bytes()], code)
            .then(|| Timestamp::from_microsecond(created).ok())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_token_is_valid_for_its_job_only_and_during_rotation() {
        let (old, new) = (SecretString::from("old"), SecretString::from("new"));
        let at = Timestamp::UNIX_EPOCH;
        let before = JobTokens::new([&old], Uuid::nil()).of(7, at).unwrap();
        let rotated = JobTokens::new([&new, &old], Uuid::nil());
        assert_eq!(rotated.verify(7, &before), Some(at));
        assert_eq!(rotated.verify(7, &rotated.of(7, at).unwrap()), Some(at));
        assert_eq!(rotated.verify(8, &before), None);
        let other_database = JobTokens::new([&old], Uuid::from_u128(1));
        assert_eq!(other_database.verify(7, &before), None, "another database");
        assert_eq!(JobTokens::new([&new], Uuid::nil()).verify(7, &before), None);
        let (_, code) = before.split_once('.').unwrap();
        for wrong in [
            "",
            "x",
            code,
            &format!("1.{code}"),
            &before[1..],
            &format!("{before}A"),
        ] {
            assert_eq!(rotated.verify(7, wrong), None, "{wrong:?}");
        }
        assert_eq!(JobTokens::new([], Uuid::nil()).of(7, at), None);
    }
}
