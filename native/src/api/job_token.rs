//! Job tokens: what an anonymous submitter proves itself with. An address is shared by all who are behind the same
//! router, and by whatever website a browser there visits; so it opens no job.

use secrecy::{ExposeSecret, SecretString};
use uuid::Uuid;

use crate::derived_keys::DerivedKeys;

/// The header with a job's token.
pub(super) const HEADER: &str = "weir-job-token";

/// The query parameter, for event streams, to which a browser adds no header.
pub(super) const PARAMETER: &str = "token";

/// Makes and verifies job tokens. A token is a code of the job's id, so nothing has to be stored for it.
pub(super) struct JobTokens(DerivedKeys);

impl JobTokens {
    /// Keys derived from the secrets that the edge and the origin share, the current one first.
    pub(super) fn new<'a>(secrets: impl IntoIterator<Item = &'a SecretString>, database: Uuid) -> Self {
        let secrets = secrets.into_iter().map(ExposeSecret::expose_secret);
        Self(DerivedKeys::new("weir job token", secrets, database))
    }

    /// The token of a job; `None` without a secret.
    pub(super) fn of(&self, job_id: i64) -> Option<String> {
        self.0.sign(&[&job_id.to_be_bytes()])
    }

    /// Whether this is the token of that job. Takes the same time whatever is wrong with it.
    pub(super) fn verify(&self, job_id: i64, token: &str) -> bool {
        self.0.verify(&[&job_id.to_be_bytes()], token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_opens_its_job_and_no_other_also_while_the_secret_is_rotated() {
        let (old, new) = (SecretString::from("old"), SecretString::from("new"));
        let before = JobTokens::new([&old], Uuid::nil()).of(7).unwrap();
        let rotated = JobTokens::new([&new, &old], Uuid::nil());
        assert!(rotated.verify(7, &before));
        assert!(rotated.verify(7, &rotated.of(7).unwrap()));
        assert!(!rotated.verify(8, &before));
        let elsewhere = JobTokens::new([&old], Uuid::from_u128(1));
        assert!(!elsewhere.verify(7, &before), "another database");
        assert!(!JobTokens::new([&new], Uuid::nil()).verify(7, &before));
        for wrong in ["", "x", &before[1..], &format!("{before}A")] {
            assert!(!rotated.verify(7, wrong), "{wrong:?}");
        }
        assert_eq!(JobTokens::new([], Uuid::nil()).of(7), None);
    }
}
