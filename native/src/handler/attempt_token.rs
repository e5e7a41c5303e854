//! Attempt tokens authenticate endpoints that answer later. Each attempt has a separate token. So an endpoint cannot
//! report for another job, and an attempt that was taken over cannot report for its successor.

use jiff::Timestamp;
use secrecy::SecretString;
use uuid::Uuid;
use weir_ledger::attempts::Claim;

use crate::derived_keys::DerivedKeys;
use crate::outbound::Secret;

/// Creates and verifies attempt tokens. A token contains the attempt's number, the job's creation time, and a code over
/// both and the job's id. Nothing has to be stored.
pub struct AttemptTokens(DerivedKeys);

impl AttemptTokens {
    /// Keys derived from the secrets that sign requests to endpoints, the current one first.
    #[must_use]
    pub fn new(secrets: &[Secret], database: Uuid) -> Self {
        let secrets = secrets.iter().map(Secret::reveal);
        Self(DerivedKeys::new("weir attempt token", secrets, database))
    }

    /// The token of an attempt; `None` without a secret.
    #[must_use]
    pub fn of(&self, attempt: Claim<'_>) -> Option<SecretString> {
        let signed = format!("{}.{}", attempt.claim, attempt.created_at.as_microsecond());
        let code = self.0.sign(&[&attempt.job_id.to_be_bytes(), signed.as_bytes()])?;
        Some(format!("{signed}.{code}").into())
    }

    /// The attempt at that job that the token belongs to, if it is valid. Takes the same time for every invalid token.
    #[must_use]
    pub fn verify<'a>(&self, job_id: i64, token: &'a str) -> Option<Claim<'a>> {
        let (signed, code) = token.rsplit_once('.')?;
        let (claim, created) = signed.rsplit_once('.')?;
        let created_at = Timestamp::from_microsecond(created.parse().ok()?).ok()?;
        self.0
            .verify(&[&job_id.to_be_bytes(), signed.as_bytes()], code)
            .then_some(Claim {
                job_id,
                claim,
                created_at,
            })
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn claim(job_id: i64, claim: &str) -> Claim<'_> {
        Claim {
            job_id,
            claim,
            created_at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn an_attempt_token_is_for_one_attempt_and_valid_during_rotation() {
        let (old, new) = (Secret::random(), Secret::random());
        let token = |secrets: &[Secret], database| {
            let token = AttemptTokens::new(secrets, database).of(claim(7, "1.1"));
            token.unwrap().expose_secret().to_owned()
        };
        let before = token(std::slice::from_ref(&old), Uuid::nil());
        let rotated = AttemptTokens::new(&[new.clone(), old], Uuid::nil());
        for good in [
            &before,
            &rotated.of(claim(7, "1.1")).unwrap().expose_secret().to_owned(),
        ] {
            assert_eq!(rotated.verify(7, good).unwrap().claim, "1.1");
        }
        let other_attempt = before.replace("1.1.", "2.2.");
        let other_time = before.replace("1.1.0.", "1.1.1.");
        let other_database = token(std::slice::from_ref(&new), Uuid::from_u128(1));
        for wrong in [
            "",
            "x",
            "1.1",
            "1.1.",
            &before[1..],
            &format!("{before}A"),
            &other_attempt,
            &other_time,
            &other_database,
        ] {
            assert!(rotated.verify(7, wrong).is_none(), "{wrong:?}");
        }
        assert!(rotated.verify(8, &before).is_none(), "another job");
        assert!(
            AttemptTokens::new(&[new], Uuid::nil())
                .verify(7, &before)
                .is_none()
        );
        assert!(AttemptTokens::new(&[], Uuid::nil()).of(claim(7, "1.1")).is_none());
    }
}
