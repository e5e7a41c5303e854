//! Tokens in the headers of a request. Anyone may write them.

use std::str::FromStr;

use thiserror::Error;
use weir_policy::header::is_name;
use weir_policy::token::SERVICE_KEY_PREFIX;

/// The name of the cookie that carries a token for pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CookieName(String);

/// A text that is not the name of a cookie.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not the name of a cookie; expected a name such as `auth_token`")]
pub(crate) struct CookieNameError(String);

impl FromStr for CookieName {
    type Err = CookieNameError;

    fn from_str(text: &str) -> Result<Self, CookieNameError> {
        if is_name(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(CookieNameError(text.to_owned()))
        }
    }
}

/// The token of an `Authorization` header with the scheme Bearer (RFC 6750).
pub(crate) fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.trim().split_once(' ')?;
    let token = token.trim();
    let one = !token.is_empty() && !token.contains([' ', ',']);
    (scheme.eq_ignore_ascii_case("bearer") && one).then_some(token)
}

/// Whether a bearer token is a key of the origin's.
pub(crate) fn is_service_key(token: &str) -> bool {
    token
        .get(..SERVICE_KEY_PREFIX.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(SERVICE_KEY_PREFIX))
}

/// The token in a `Cookie` header. Two cookies of the name with different values count as none, because a sibling
/// subdomain may have set one of them.
pub(crate) fn cookie<'a>(cookies: &'a str, name: &CookieName) -> Option<&'a str> {
    let mut tokens = cookies
        .split(';')
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(other, _)| *other == name.0)
        .map(|(_, value)| value.trim().trim_matches('"'));
    let token = tokens.next()?;
    (tokens.all(|other| other == token) && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> CookieName {
        text.parse().unwrap()
    }

    #[test]
    fn the_bearer_scheme_is_case_insensitive() {
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
    fn service_keys_are_recognised() {
        for key in ["weir_sk_AAAA", "WEIR_SK_AAAA", "weir_sk_"] {
            assert!(is_service_key(key), "{key}");
        }
        for other in ["weir_sk", "eyJ.weir_sk_.x", "", "weir_s\u{212a}_x"] {
            assert!(!is_service_key(other), "{other}");
        }
    }

    #[test]
    fn the_cookie_name_must_match_exactly() {
        let cookie = |cookies| cookie(cookies, &name("auth_token"));
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
    fn cookies_with_different_values_are_ignored() {
        let cookies = "auth_token=a; auth_token=b; __Host-token=c";
        assert_eq!(cookie(cookies, &name("auth_token")), None);
        let equal = "auth_token=a; x=y; auth_token=\"a\"";
        assert_eq!(cookie(equal, &name("auth_token")), Some("a"));
        assert_eq!(cookie(cookies, &name("__Host-token")), Some("c"));
    }

    #[test]
    fn a_cookie_name_is_one_token() {
        for wrong in ["", "a b", "a=b", "a;b", "a,b", "\"a\""] {
            assert!(wrong.parse::<CookieName>().is_err(), "{wrong}");
        }
    }
}
