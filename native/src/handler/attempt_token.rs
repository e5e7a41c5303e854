//! Attempt tokens: what an endpoint that answers later proves itself with. Each attempt has its own, so that nobody speaks
//! for another job, nor an attempt that was taken back for the one after it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use secrecy::SecretString;
use sha2::Sha256;
use uuid::Uuid;
use weir_ledger::attempts::Claim;

use crate::outbound::Secret;

/// Makes and verifies attempt tokens: which attempt it is, and the HMAC-SHA256 of that and the job's id; so nothing has to
/// be stored for it.
#[derive(Clone)]
pub struct AttemptTokens {
    /// The current key first; the one before is accepted while secrets are rotated.
    keys: Vec<Hmac<Sha256>>,
}

impl AttemptTokens {
    /// Keys derived from the secrets that requests to endpoints are signed with, the current one first. `database` tells
    /// databases apart: the same id is another job there.
    #[must_use]
    pub fn new(secrets: &[Secret], database: Uuid) -> Self {
        let keys = secrets.iter().filter_map(|secret| {
            let mut key = Hmac::<Sha256>::new_from_slice(secret.reveal().as_bytes()).ok()?;
            // Nothing else that is signed with this secret starts so.
            key.update(b"weir attempt token\0");
            key.update(database.as_bytes());
            Some(key)
        });
        Self { keys: keys.collect() }
    }

    /// The token of an attempt; `None` without a secret.
    #[must_use]
    pub fn of(&self, attempt: Claim<'_>) -> Option<SecretString> {
        let mac = with(self.keys.first()?, attempt).finalize().into_bytes();
        Some(format!("{}.{}", attempt.claim, URL_SAFE_NO_PAD.encode(mac)).into())
    }

    /// Which attempt at that job it is the token of, if of any. Takes the same time whatever is wrong with it.
    #[must_use]
    pub fn verify<'a>(&self, job_id: i64, token: &'a str) -> Option<Claim<'a>> {
        let (claim, mac) = token.rsplit_once('.')?;
        let mac = URL_SAFE_NO_PAD.decode(mac).ok()?;
        let claim = Claim { job_id, claim };
        let is_one = |key| with(key, claim).verify_slice(&mac).is_ok();
        self.keys.iter().any(is_one).then_some(claim)
    }
}

fn with(key: &Hmac<Sha256>, attempt: Claim<'_>) -> Hmac<Sha256> {
    key.clone()
        .chain_update(attempt.job_id.to_be_bytes())
        .chain_update(attempt.claim)
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn claim(job_id: i64, claim: &str) -> Claim<'_> {
        Claim { job_id, claim }
    }

    #[test]
    fn a_token_is_for_one_attempt_at_one_job_also_while_the_secret_is_rotated() {
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
        let elsewhere = token(std::slice::from_ref(&new), Uuid::from_u128(1));
        for wrong in [
            "",
            "x",
            "1.1",
            "1.1.",
            &before[1..],
            &format!("{before}A"),
            &other_attempt,
            &elsewhere,
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
