//! Authentication of the caller: a user with a valid token, or anonymous.

use weir_policy::token::{self, Keys, TokenError, User};

use crate::clock;
use crate::context::RequestContext;
use crate::credential_headers::{bearer, cookie, is_service_key};
use crate::jwks;

/// Whoever sends a service key here has the wrong address, and had better know: it has left the backend.
const SERVICE_KEY: TokenError = TokenError::Malformed("it is a service key, which is for the origin alone");

/// The result of checking the credentials of a request.
#[derive(Debug)]
pub(crate) enum Credentials {
    /// The user of a valid token.
    User(User),
    /// No token, or a cookie that is not accepted.
    Anonymous,
    /// A bearer token that is not valid.
    Refused(TokenError),
    /// A bearer token or a cookie that only the issuer's keys could verify, which were never had.
    Unverifiable,
}

/// The headers that carry credentials or decide whether they are accepted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CredentialHeaders<'a> {
    /// `Authorization`
    pub(crate) authorization: Option<&'a str>,
    /// `Cookie`
    pub(crate) cookie: Option<&'a str>,
    /// `Origin`
    pub(crate) origin: Option<&'a str>,
}

/// Checks the bearer token or, without one, the cookie. An invalid bearer token is refused, since clients send it on
/// purpose. An invalid cookie is ignored, since browsers send it with every request. A token that only the issuer's keys
/// could verify is neither while there are none.
pub(crate) async fn credentials(
    context: &RequestContext<'_>,
    headers: &CredentialHeaders<'_>,
    own_origin: &str,
) -> Credentials {
    if let Some(authorization) = headers.authorization.filter(|value| !value.trim().is_empty()) {
        return match bearer(authorization) {
            Some(token) if is_service_key(token) => Credentials::Refused(SERVICE_KEY),
            Some(token) => match verify(context, token).await {
                Some(Ok(user)) => Credentials::User(user),
                Some(Err(error)) => Credentials::Refused(error),
                None => Credentials::Unverifiable,
            },
            None => Credentials::Refused(TokenError::Malformed("expected the scheme Bearer and one token")),
        };
    }
    let Some(token) = headers.cookie.and_then(cookie) else {
        return Credentials::Anonymous;
    };
    // Browsers also send cookies with requests of other sites' pages. Only a page of a listed origin may act as its
    // visitor.
    let cross_origin = headers.origin.is_some_and(|origin| {
        !origin.eq_ignore_ascii_case(own_origin) && !context.config.allowed_origins.access(origin).credentials
    });
    if cross_origin {
        return Credentials::Anonymous;
    }
    match verify(context, token).await {
        Some(Ok(user)) => Credentials::User(user),
        Some(Err(_)) => Credentials::Anonymous,
        // Somebody who may have signed in must not be counted, or submit a job, as nobody.
        None => Credentials::Unverifiable,
    }
}

/// The user of a token; `None` when it takes the issuer's key set to tell, which was never had.
async fn verify(context: &RequestContext<'_>, token: &str) -> Option<Result<User, TokenError>> {
    let config = context.config;
    let now = clock::now_ms() / 1000;
    let verified_by = |keys: &Keys| token::verify(keys, token, &config.expected, now);
    // What the shared secret verifies does not wait for the issuer.
    let verified = verified_by(&config.token_keys);
    let (Err(TokenError::UnknownKey), Some(url)) = (&verified, &config.jwks_url) else {
        return Some(verified);
    };
    match verified_by(&jwks::keys(context, url, false).await?) {
        // The issuer may have rotated its keys.
        Err(TokenError::UnknownKey) => Some(verified_by(&jwks::keys(context, url, true).await?)),
        verified => Some(verified),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_key_is_refused_by_its_name() {
        assert!(SERVICE_KEY.to_string().contains("service key"));
    }
}
