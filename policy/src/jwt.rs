//! The format of users' tokens and assertions: JSON Web Tokens (RFC 7515, 7519), and signatures by HMAC.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::Sha256;
use thiserror::Error;

/// The longest token or assertion that is decoded, in bytes.
pub const MAX_BYTES: usize = 8192;

/// The shortest secret for HS256, in bytes: the length of the hash (RFC 7518, 3.2).
pub const MIN_SECRET_BYTES: usize = 32;

/// A secret that is shorter than [`MIN_SECRET_BYTES`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "the secret has {got} bytes; it needs at least {MIN_SECRET_BYTES}, for example from `openssl rand -hex 32`"
)]
pub struct SecretTooShort {
    /// The secret's length in bytes.
    pub got: usize,
}

/// A secret for HS256.
#[derive(Clone)]
pub(crate) struct Secret(Hmac<Sha256>);

impl Secret {
    /// # Errors
    /// When it is too short.
    pub(crate) fn new(secret: &[u8]) -> Result<Self, SecretTooShort> {
        let too_short = SecretTooShort { got: secret.len() };
        if secret.len() < MIN_SECRET_BYTES {
            return Err(too_short);
        }
        // It takes a key of any length.
        Hmac::new_from_slice(secret).map(Self).map_err(|_| too_short)
    }

    /// The signed token with this header and these claims.
    pub(crate) fn sign(&self, kid: Option<&str>, claims: &impl Serialize) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Header<'a> {
            typ: &'static str,
            alg: &'static str,
            #[serde(skip_serializing_if = "Option::is_none")]
            kid: Option<&'a str>,
        }
        let header = Header {
            typ: "JWT",
            alg: HS256,
            kid,
        };
        let mut token = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&header)?);
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(serde_json::to_vec(claims)?, &mut token);
        let signature = self.mac(token.as_bytes()).finalize().into_bytes();
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        Ok(token)
    }

    /// Whether it has signed the token. Takes the same time for all signatures of this length.
    pub(crate) fn verifies(&self, token: &Parts<'_>) -> bool {
        self.mac(token.signed.as_bytes())
            .verify_slice(&token.signature)
            .is_ok()
    }

    fn mac(&self, signed: &[u8]) -> Hmac<Sha256> {
        self.0.clone().chain_update(signed)
    }
}

/// The name of the algorithm of a [`Secret`].
pub(crate) const HS256: &str = "HS256";

/// The members of a token's header that are read.
#[derive(Debug, Deserialize)]
pub(crate) struct Header {
    pub(crate) alg: String,
    pub(crate) kid: Option<String>,
    pub(crate) typ: Option<String>,
    pub(crate) crit: Option<Value>,
}

/// The parts of a token. Nothing is verified.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    pub(crate) header: Header,
    /// Header and claims, as they are signed.
    pub(crate) signed: &'a str,
    pub(crate) signature: Vec<u8>,
    claims: &'a str,
}

impl<'a> Parts<'a> {
    /// Reads a token.
    ///
    /// # Errors
    /// The reason why it is malformed. It is a constant, because it is sent to clients and must not contain any part of
    /// the token.
    pub(crate) fn of(token: &'a str) -> Result<Self, &'static str> {
        const THREE: &str = "it does not have three parts";
        let (signed, signature) = token.rsplit_once('.').ok_or(THREE)?;
        let (header, claims) = signed.split_once('.').ok_or(THREE)?;
        if claims.contains('.') {
            return Err(THREE);
        }
        Ok(Self {
            header: json(header)?,
            signed,
            signature: decoded(signature)?,
            claims,
        })
    }

    /// Its claims.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub(crate) fn claims<T: for<'de> Deserialize<'de>>(&self) -> Result<T, &'static str> {
        json(self.claims)
    }
}

fn decoded(part: &str) -> Result<Vec<u8>, &'static str> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| "it is not base64url")
}

fn json<T: for<'de> Deserialize<'de>>(part: &str) -> Result<T, &'static str> {
    serde_json::from_slice(&decoded(part)?).map_err(|_| "its header or its claims are not as expected")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_shorter_than_the_hash_are_refused() {
        let got = |length| Secret::new(&vec![7; length]).err().map(|error| error.got);
        assert_eq!(got(MIN_SECRET_BYTES - 1), Some(31));
        assert_eq!((got(MIN_SECRET_BYTES), got(MIN_SECRET_BYTES + 1)), (None, None));
    }

    #[test]
    fn reasons_for_refusing_a_token_do_not_quote_it() {
        for (token, reason) in [
            ("", "it does not have three parts"),
            ("a.b", "it does not have three parts"),
            ("a.b.c.d", "it does not have three parts"),
            ("!.e30.", "it is not base64url"),
            // `hi`, `{}` and a header without `alg`.
            ("aGk.e30.", "its header or its claims are not as expected"),
            ("e30.e30.", "its header or its claims are not as expected"),
        ] {
            assert_eq!(Parts::of(token).unwrap_err(), reason, "{token}");
        }
    }

    /// RFC 7515, A.1.
    #[test]
    fn the_example_of_the_standard_is_verified() {
        let key = URL_SAFE_NO_PAD
            .decode("AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow")
            .unwrap();
        let token = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.\
            eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.\
            dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
        let secret = Secret::new(&key).unwrap();
        assert!(secret.verifies(&Parts::of(token).unwrap()));
        assert!(
            !Secret::new(&[7; 32])
                .unwrap()
                .verifies(&Parts::of(token).unwrap())
        );
        let cut = &token[..token.len() - 3];
        assert!(!secret.verifies(&Parts::of(cut).unwrap()), "a shorter signature");
    }
}
