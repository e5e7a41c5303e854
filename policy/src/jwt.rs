//! What users' tokens and assertions have in common.

use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, Validation};

/// A validation of format, algorithm and signature (in constant time) only. The caller checks times, issuer and
/// audience: for times, the library would read the system's clock.
pub(crate) fn signature_only(algorithm: Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_aud = false;
    validation
}

/// Why a token is malformed, without any part of it: the library's own messages quote the token.
pub(crate) fn malformed_reason(error: &Error) -> &'static str {
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
    fn what_is_wrong_with_a_token_is_said_without_quoting_it() {
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
