//! The common parts of users' tokens and assertions.

use jsonwebtoken::errors::{Error as JwtError, ErrorKind};
use jsonwebtoken::{Algorithm, Validation};
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

/// Refuses a secret that is too short.
pub(crate) fn check_secret(secret: &[u8]) -> Result<(), SecretTooShort> {
    if secret.len() < MIN_SECRET_BYTES {
        return Err(SecretTooShort { got: secret.len() });
    }
    Ok(())
}

/// Validates format, algorithm and signature (in constant time) only. The caller checks times, issuer and audience,
/// because for times the library would read the system's clock.
pub(crate) fn signature_only(algorithm: Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_aud = false;
    validation
}

/// Why a token is malformed, without any part of it. The library's own messages quote the token.
pub(crate) fn malformed_reason(error: &JwtError) -> &'static str {
    match error.kind() {
        ErrorKind::InvalidToken => "it does not have three parts",
        ErrorKind::Base64(_) | ErrorKind::Utf8(_) => "it is not base64url",
        ErrorKind::Json(_) => "its header or its claims are not as expected",
        _ => "it is not a signed JWT",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_shorter_than_the_hash_are_refused() {
        let checked = |length| check_secret(&vec![7; length]);
        assert_eq!(checked(MIN_SECRET_BYTES - 1), Err(SecretTooShort { got: 31 }));
        assert_eq!(
            (checked(MIN_SECRET_BYTES), checked(MIN_SECRET_BYTES + 1)),
            (Ok(()), Ok(()))
        );
    }

    #[test]
    fn reasons_for_refusing_a_token_do_not_quote_it() {
        for (token, reason) in [
            ("", "it does not have three parts"),
            ("a.b", "it does not have three parts"),
            ("!.e30.", "it is not base64url"),
            // `hi`, `{}` and a header without `alg`.
            ("aGk.e30.", "its header or its claims are not as expected"),
            ("e30.e30.", "its header or its claims are not as expected"),
        ] {
            let error = jsonwebtoken::decode_header(token).unwrap_err();
            assert_eq!(malformed_reason(&error), reason, "{token}: {error:?}");
        }
    }
}
