//! Authentication of the caller: a user with a valid token, or anonymous.

use std::pin::Pin;

use wasm_bindgen_futures::JsFuture;
use weir_policy::token::{self, Check, Keys, Token, TokenError, User};

use crate::clock;
use crate::context::RequestContext;
use crate::credential_headers::{bearer, cookie, is_service_key};
use crate::glue;
use crate::jwks;
use crate::verified_tokens::{self, KeySetVersion};

/// A service key at the edge has the wrong address. Its owner must know, because it has left the backend.
pub(crate) const SERVICE_KEY: TokenError =
    TokenError::Malformed("it is a service key, which only the origin accepts");

/// The result of checking the credentials of a request.
#[derive(Debug)]
pub(crate) enum Credentials {
    /// The user of a valid token.
    User(User),
    /// No token, or a cookie that is not accepted.
    Anonymous,
    /// A bearer token that is not valid.
    Refused(TokenError),
    /// A bearer token or a cookie that cannot be verified right now.
    Unverifiable(Unverifiable),
}

/// Why a token cannot be verified right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unverifiable {
    /// The issuer's keys have never been fetched. They may be in this many seconds.
    NoKeys(u64),
    /// The issuer may have newer keys. They may be fetched in this many seconds.
    OldKeys(u64),
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
/// purpose. An invalid cookie is ignored, since browsers send it with every request. A token that only keys could verify
/// that the edge does not have is neither.
///
/// `is_blocked` is whether the client has sent too many bad bearer tokens. Signatures of public keys take longer to check
/// than anything else here, so they are then refused unseen, and the request is denied.
pub(crate) async fn credentials(
    context: &RequestContext<'_>,
    headers: &CredentialHeaders<'_>,
    own_origin: &str,
    is_blocked: &dyn Fn() -> bool,
) -> Credentials {
    if let Some(authorization) = headers.authorization.filter(|value| !value.trim().is_empty()) {
        return match bearer(authorization) {
            Some(token) if is_service_key(token) => Credentials::Refused(SERVICE_KEY),
            Some(token) => match verify(context, token, is_blocked).await {
                Ok(Ok(user)) => Credentials::User(user),
                Ok(Err(error)) => Credentials::Refused(error),
                Err(reason) => Credentials::Unverifiable(reason),
            },
            None => Credentials::Refused(TokenError::Malformed("expected the scheme Bearer and one token")),
        };
    }
    let Some(token) = headers
        .cookie
        .and_then(|cookies| cookie(cookies, &context.config.token_cookie))
    else {
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
    match verify(context, token, &|| false).await {
        Ok(Ok(user)) => Credentials::User(user),
        Ok(Err(_)) => Credentials::Anonymous,
        // A user who may have signed in must not be counted, or submit a job, as an anonymous client.
        Err(reason) => Credentials::Unverifiable(reason),
    }
}

/// The user of a token, or the reason to refuse it.
///
/// # Errors
/// When the token needs keys that the edge does not have.
async fn verify(
    context: &RequestContext<'_>,
    text: &str,
    is_blocked: &dyn Fn() -> bool,
) -> Result<Result<User, TokenError>, Unverifiable> {
    let config = context.config;
    let now = clock::now_ms();
    let is_current = |(url, asked_at): &KeySetVersion| jwks::asked_at(url) == Some(*asked_at);
    if let Some((user, keys)) = verified_tokens::get(config.edge, text, now, is_current) {
        if let Some((url, _)) = keys {
            // Fetches it in the background when it is too old.
            let fetching: Pin<Box<dyn Future<Output = _>>> = Box::pin(jwks::key_set(context, &url, false));
            fetching.await;
        }
        return Ok(Ok(user));
    }
    // As separate code, which isolates compile when they verify a token for the first time.
    let verifying: Pin<Box<dyn Future<Output = _>>> = Box::pin(verify_new(context, text, now, is_blocked));
    let verified = verifying.await?;
    Ok(verified.map(|(user, keys)| {
        verified_tokens::put(config.edge, text, &user, keys, now);
        user
    }))
}

/// The same for a token that was not verified before, with the key set that verified it.
async fn verify_new(
    context: &RequestContext<'_>,
    text: &str,
    now: u64,
    is_blocked: &dyn Fn() -> bool,
) -> Result<Result<(User, Option<KeySetVersion>), TokenError>, Unverifiable> {
    let config = context.config;
    let issuer = config.issuers.of(text);
    let token = match Token::read(text) {
        Ok(token) => token,
        Err(error) => return Ok(Err(error)),
    };
    let user = |verified| {
        token
            .user(verified, &issuer.expected, now / 1000)
            .and_then(|user| config.issuers.named(issuer, user))
    };
    // A token that the shared secret verifies does not wait for the issuer.
    let verified = user(signed_by(&issuer.keys, &token).await);
    let (Err(TokenError::UnknownKey), Some(url)) = (&verified, &issuer.jwks_url) else {
        return Ok(verified.map(|user| (user, None)));
    };
    if is_blocked() {
        return Ok(verified.map(|user| (user, None)));
    }
    let by = |asked_at| move |user| (user, Some((url.clone(), asked_at)));
    let has_no_key =
        |verified: &_| matches!(verified, Err(TokenError::UnknownKey | TokenError::BadSignature));
    let known = jwks::key_set(context, url, false)
        .await
        .ok_or_else(|| Unverifiable::NoKeys(jwks::retry_after_secs(context, url)))?;
    let verified = user(signed_by(&known.keys, &token).await);
    let known_at = known.asked_at;
    let may_be_newer = || {
        token::may_be_valid_with_newer_keys(text, &issuer.expected, known_at / 1000, now / 1000)
            && !jwks::is_settled(url, text)
    };
    if !has_no_key(&verified) || known_at >= now || !may_be_newer() {
        return Ok(verified.map(by(known_at)));
    }
    let newer = jwks::key_set(context, url, true)
        .await
        .ok_or_else(|| Unverifiable::NoKeys(jwks::retry_after_secs(context, url)))?;
    let verified = user(signed_by(&newer.keys, &token).await);
    if has_no_key(&verified) && newer.asked_at < now {
        return Err(Unverifiable::OldKeys(jwks::retry_after_secs(context, url)));
    }
    Ok(verified.map(by(newer.asked_at)))
}

/// Whether one of these keys has signed the token; `None` if none of them could have. The runtime checks signatures with
/// public keys: its native code is several times as fast as Rust's in wasm.
async fn signed_by(keys: &Keys, token: &Token<'_>) -> Option<bool> {
    let mut signed = None;
    for key in keys.candidates(token) {
        let is_signed = match key.check(token) {
            Check::Decided(is_signed) => is_signed,
            Check::Public(jwk) => {
                let algorithm = token.algorithm().name();
                let checked = glue::verify_signature(jwk, algorithm, token.signed(), token.signature());
                JsFuture::from(checked)
                    .await
                    .is_ok_and(|checked| checked.is_truthy())
            }
        };
        signed = Some(is_signed);
        if is_signed {
            break;
        }
    }
    signed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_key_is_refused_by_its_name() {
        assert!(SERVICE_KEY.to_string().contains("service key"));
    }
}
