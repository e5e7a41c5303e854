//! Who is calling: a user whose token is valid, or nobody in particular.

use weir_policy::token::{self, TokenError, User};

use crate::call::Call;
use crate::clock;
use crate::jwks;

/// The cookie that carries a token for pages.
const COOKIE: &str = "auth_token";

/// What a request says about who sends it.
#[derive(Debug)]
pub(crate) enum Credentials {
    /// A valid token's user.
    User(User),
    /// No token, or a cookie that does not count.
    Anonymous,
    /// A bearer token that is not valid.
    Refused(TokenError),
}

/// The headers that it is said with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent<'a> {
    /// `Authorization`
    pub(crate) authorization: Option<&'a str>,
    /// `Cookie`
    pub(crate) cookie: Option<&'a str>,
    /// `Origin`
    pub(crate) origin: Option<&'a str>,
}

/// Looks at the bearer token, or else at the cookie. A bearer token that is not valid is an error, as whoever sends one
/// means it; a cookie that is not valid is as good as none, as browsers send it whether or not it is meant.
pub(crate) async fn credentials(call: &Call<'_>, sent: &Sent<'_>, own_origin: &str) -> Credentials {
    if let Some(authorization) = sent.authorization.filter(|value| !value.trim().is_empty()) {
        return match bearer(authorization) {
            Some(token) => match verify(call, token).await {
                Ok(user) => Credentials::User(user),
                Err(error) => Credentials::Refused(error),
            },
            None => Credentials::Refused(TokenError::Malformed(
                "wanted the scheme Bearer and one token".to_owned(),
            )),
        };
    }
    let Some(token) = sent.cookie.and_then(cookie) else {
        return Credentials::Anonymous;
    };
    // Browsers send cookies also with requests that another site's page makes. Such a page acts as its visitor only
    // if it is listed.
    let foreign = sent.origin.is_some_and(|origin| {
        !origin.eq_ignore_ascii_case(own_origin) && !call.config.allowed_origins.access(origin).credentials
    });
    if foreign {
        return Credentials::Anonymous;
    }
    match verify(call, token).await {
        Ok(user) => Credentials::User(user),
        Err(_) => Credentials::Anonymous,
    }
}

async fn verify(call: &Call<'_>, token: &str) -> Result<User, TokenError> {
    if token.len() > token::MAX_BYTES {
        return Err(TokenError::TooLong);
    }
    let config = call.config;
    let now = clock::now_ms() / 1000;
    let Some(url) = &config.jwks_url else {
        return token::verify(&config.token_keys, token, &config.expected, now);
    };
    let keys = jwks::keys(call, url, false).await;
    match token::verify(&keys, token, &config.expected, now) {
        // The issuer may have a new key since.
        Err(TokenError::UnknownKey) => {
            let keys = jwks::keys(call, url, true).await;
            token::verify(&keys, token, &config.expected, now)
        }
        verified => verified,
    }
}

/// The token of an `Authorization` header with the scheme Bearer (RFC 6750).
fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.trim().split_once(' ')?;
    let token = token.trim();
    let one = !token.is_empty() && !token.contains([' ', ',']);
    (scheme.eq_ignore_ascii_case("bearer") && one).then_some(token)
}

/// The token in a `Cookie` header. Two cookies of the name are one too many: a neighbouring subdomain may have set one
/// of them, and which is whose cannot be told.
fn cookie(cookies: &str) -> Option<&str> {
    let mut tokens = cookies
        .split(';')
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(name, _)| *name == COOKIE)
        .map(|(_, value)| value.trim().trim_matches('"'));
    let token = tokens.next()?;
    (tokens.next().is_none() && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_token_is_found_whatever_the_case_of_its_scheme() {
        assert_eq!(bearer("Bearer a.b.c"), Some("a.b.c"));
        assert_eq!(bearer("bearer   a.b.c "), Some("a.b.c"));
        for other in [
            "Bearer",
            "Bearer ",
            "Basic a.b.c",
            "a.b.c",
            "Bearer a b",
            "Bearer a, Bearer b",
        ] {
            assert_eq!(bearer(other), None, "{other}");
        }
    }

    #[test]
    fn the_cookie_is_found_by_its_exact_name() {
        assert_eq!(cookie("theme=dark; auth_token=a.b.c; x=y"), Some("a.b.c"));
        assert_eq!(cookie("auth_token=\"a.b.c\""), Some("a.b.c"));
        for other in [
            "",
            "auth_token=",
            "Auth_Token=a",
            "my_auth_token=a",
            "auth_tokens=a",
            "auth_token",
        ] {
            assert_eq!(cookie(other), None, "{other}");
        }
    }

    #[test]
    fn two_cookies_of_the_name_are_none() {
        assert_eq!(cookie("auth_token=a; auth_token=b"), None);
    }
}
