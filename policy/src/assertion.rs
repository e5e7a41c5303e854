//! The edge's signed statement to the origin about the caller: a JWT (RFC 7519, HS256) in the [`HEADER`] header. It is
//! bound to one method, path and query, and valid for [`LIFETIME_SECS`]. It has a digest of path and query, so that its
//! length does not depend on theirs.
//!
//! The origin trusts nothing else about the caller, so direct access to it gains nothing. Keys rotate without downtime:
//! each assertion names its key, and the origin accepts a current and a previous one. The assertion does not cover the
//! body, which is streamed; TLS between edge and origin must protect it.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::jwt::{HS256, MAX_BYTES, Parts, Secret, SecretTooShort};
use crate::subject::{Identity, Subject};

/// The request header that carries an assertion.
pub const HEADER: &str = "weir-assertion";

/// The `iss` claim of every assertion.
pub const ISSUER: &str = "weir-edge";

/// The `aud` claim of every assertion about a client.
pub const AUDIENCE: &str = "weir-origin";

/// The `aud` claim of assertions about the edge itself. It differs so that an assertion about a client is never valid
/// as one about the edge, nor the other way round.
const OWN_AUDIENCE: &str = "weir-origin/edge";

/// The lifetime of an assertion, in seconds.
pub const LIFETIME_SECS: u64 = 30;

/// The maximum time by which an assertion's `iat` may be ahead of the verifier's clock, in seconds.
pub const LEEWAY_SECS: u64 = 5;

/// The caller that the edge has authenticated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The verified user; `None` for an anonymous request.
    pub user: Option<Identity>,
    /// The text of the client's [`AddressKey`](crate::address::AddressKey): an IPv4 address, an IPv6 prefix such as
    /// `2001:db8:1:2::/64`, `worker:` and a hash, or `unknown`.
    pub client_address: String,
    /// When the user's token expires, in seconds since the Unix epoch; `None` for an anonymous request. A response that
    /// takes longer, such as a stream, ends then.
    pub token_expires_at: Option<u64>,
}

/// The most bytes that [`TokenClaims`] may have in JSON. With them, an assertion stays well below [`MAX_BYTES`].
pub const MAX_CLAIMS_BYTES: usize = 2048;

/// Claims of the user's token that an assertion repeats.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TokenClaims(BTreeMap<String, Value>);

/// The chosen claims are longer than [`MAX_CLAIMS_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the claims of the token that the origin receives are longer than {MAX_CLAIMS_BYTES} bytes")]
pub struct ClaimsTooLong;

impl TokenClaims {
    /// The claims with these names. A name without a claim is left out.
    ///
    /// # Errors
    /// When they are longer than [`MAX_CLAIMS_BYTES`].
    pub fn chosen(claims: &BTreeMap<String, Value>, names: &[String]) -> Result<Self, ClaimsTooLong> {
        let chosen: BTreeMap<_, _> = names
            .iter()
            .filter_map(|name| claims.get_key_value(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let json = serde_json::to_vec(&chosen).map_err(|_| ClaimsTooLong)?;
        if json.len() > MAX_CLAIMS_BYTES {
            return Err(ClaimsTooLong);
        }
        Ok(Self(chosen))
    }
}

/// A verified assertion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assertion {
    /// The caller.
    pub caller: Caller,
    /// The id that the edge gave the request.
    pub request_id: String,
    /// When the edge issued it, in seconds since the Unix epoch.
    pub issued_at: u64,
    /// When it expires, in seconds since the Unix epoch.
    pub expires_at: u64,
}

/// An assertion could not be signed.
#[derive(Debug, Error)]
#[error("the assertion could not be signed: {0}")]
pub struct SignError(#[from] serde_json::Error);

/// The reason to refuse an assertion.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AssertionError {
    /// The request has none.
    #[error("the request has no assertion, so it did not come through the edge")]
    Missing,
    /// It is longer than [`MAX_BYTES`].
    #[error("the assertion is longer than {MAX_BYTES} bytes")]
    TooLong,
    /// It is not a JWT with the required claims.
    /// The reason is a constant: it is sent to clients, and must not contain any part of the assertion.
    #[error("the assertion is malformed: {0}")]
    Malformed(&'static str),
    /// Its `kid` is not that of a known key.
    #[error("the assertion is signed with an unknown key: do edge and origin share EDGE_SECRET?")]
    UnknownKey,
    /// The signature is invalid.
    #[error("the assertion's signature does not match")]
    BadSignature,
    /// It has expired.
    #[error("the assertion has expired")]
    Expired,
    /// Its `iat` is too far in the future.
    #[error("the assertion was issued in the future: compare the clocks of edge and origin")]
    NotYetValid,
    /// It is for another method, path or query.
    #[error("the assertion was made for another request")]
    WrongRequest,
}

/// A secret that signs and verifies assertions, with an id derived from it.
#[derive(Clone)]
pub struct AssertionKey {
    id: String,
    secret: Secret,
}

impl AssertionKey {
    /// A key from a secret of at least [`MIN_SECRET_BYTES`](crate::jwt::MIN_SECRET_BYTES) bytes. Its id is derived from
    /// the secret, so that ids need no configuration.
    ///
    /// # Errors
    /// When the secret is too short.
    pub fn new(secret: &[u8]) -> Result<Self, SecretTooShort> {
        Ok(Self {
            secret: Secret::new(secret)?,
            id: key_id(secret),
        })
    }

    /// The key's id for the `kid` header: 16 hexadecimal digits.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl std::fmt::Debug for AssertionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AssertionKey")
            .field("id", &self.id)
            .field("secret", &"[redacted]")
            .finish()
    }
}

/// The first 16 hexadecimal digits of SHA-256 over a fixed text and the secret. Without the text, the id would be a
/// plain hash of the secret, which might also be used elsewhere.
fn key_id(secret: &[u8]) -> String {
    use std::fmt::Write;
    let digest = Sha256::new()
        .chain_update(b"weir-assertion-key")
        .chain_update(secret)
        .finalize();
    digest
        .iter()
        .take(8)
        .fold(String::with_capacity(16), |mut id, byte| {
            // Writing to a String never fails.
            let _ = write!(id, "{byte:02x}");
            id
        })
}

#[derive(Serialize, Deserialize)]
struct Claims {
    iss: String,
    aud: String,
    iat: u64,
    exp: u64,
    /// The holder. Origins that do not know `act` read only this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sub: Option<Subject>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    act: Option<Actor>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_address: Option<String>,
    /// An edge that does not know this claim omits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token_exp: Option<u64>,
    htm: String,
    /// The digest of path and query, as [`target_digest`] makes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    htd: Option<String>,
    /// Path and query, in assertions of an edge that does not know `htd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    htu: Option<String>,
    /// Claims of the user's token, for other backends. Weir's origin ignores them.
    #[serde(skip_deserializing, skip_serializing_if = "BTreeMap::is_empty")]
    claims: BTreeMap<String, Value>,
    jti: String,
}

/// SHA-256 of path and query, in base64url without padding.
fn target_digest(path_and_query: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(path_and_query))
}

/// The `act` claim (RFC 8693, 4.1): the acting user, if that is not the subject.
#[derive(Serialize, Deserialize)]
struct Actor {
    sub: Subject,
}

/// Signs an assertion for one request: `method` and `path_and_query` exactly as they are forwarded.
/// `now_unix_secs` is the time in seconds since the Unix epoch.
///
/// # Errors
/// When the claims cannot be encoded, which does not happen with these types.
pub fn sign(
    key: &AssertionKey,
    caller: &Caller,
    method: &str,
    path_and_query: &str,
    request_id: &str,
    now_unix_secs: u64,
) -> Result<String, SignError> {
    let claims = TokenClaims::default();
    sign_with_claims(
        key,
        caller,
        &claims,
        method,
        path_and_query,
        request_id,
        now_unix_secs,
    )
}

/// As [`sign`], with claims of the user's token under the `claims` claim.
///
/// # Errors
/// As [`sign`].
pub fn sign_with_claims(
    key: &AssertionKey,
    caller: &Caller,
    claims: &TokenClaims,
    method: &str,
    path_and_query: &str,
    request_id: &str,
    now_unix_secs: u64,
) -> Result<String, SignError> {
    encode(
        key,
        AUDIENCE,
        Some((caller, claims)),
        method,
        path_and_query,
        request_id,
        now_unix_secs,
    )
}

/// Signs an assertion about the edge itself, for one of its requests. `id` becomes the `jti` claim.
///
/// # Errors
/// As [`sign`].
pub fn sign_own(
    key: &AssertionKey,
    method: &str,
    path_and_query: &str,
    id: &str,
    now_unix_secs: u64,
) -> Result<String, SignError> {
    encode(key, OWN_AUDIENCE, None, method, path_and_query, id, now_unix_secs)
}

fn encode(
    key: &AssertionKey,
    audience: &str,
    about: Option<(&Caller, &TokenClaims)>,
    method: &str,
    path_and_query: &str,
    id: &str,
    now_unix_secs: u64,
) -> Result<String, SignError> {
    let caller = about.map(|(caller, _)| caller);
    let user = caller.and_then(|caller| caller.user.as_ref());
    let claims = Claims {
        iss: ISSUER.to_owned(),
        aud: audience.to_owned(),
        iat: now_unix_secs,
        exp: now_unix_secs.saturating_add(LIFETIME_SECS),
        sub: user.map(|user| user.holder.clone()),
        act: user.filter(|user| user.subject != user.holder).map(|user| Actor {
            sub: user.subject.clone(),
        }),
        client_address: caller.map(|caller| caller.client_address.clone()),
        token_exp: caller.and_then(|caller| caller.token_expires_at),
        htm: method.to_owned(),
        htd: Some(target_digest(path_and_query)),
        htu: None,
        claims: about.map(|(_, claims)| claims.0.clone()).unwrap_or_default(),
        jti: id.to_owned(),
    };
    Ok(key.secret.sign(Some(&key.id), &claims)?)
}

/// Verifies that `token` was signed with one of `keys` for this method, path and query, and is valid at `now_unix_secs`
/// (seconds since the Unix epoch).
///
/// # Errors
/// The first reason found to refuse it.
pub fn verify(
    keys: &[AssertionKey],
    token: &str,
    method: &str,
    path_and_query: &str,
    now_unix_secs: u64,
) -> Result<Assertion, AssertionError> {
    let claims = verified(keys, token, AUDIENCE, method, path_and_query, now_unix_secs)?;
    let client_address = claims
        .client_address
        .ok_or(AssertionError::Malformed("it has no client address"))?;
    let actor = claims.act.map(|actor| actor.sub);
    Ok(Assertion {
        caller: Caller {
            user: claims.sub.map(|holder| Identity {
                subject: actor.unwrap_or_else(|| holder.clone()),
                holder,
            }),
            client_address,
            token_expires_at: claims.token_exp,
        },
        request_id: claims.jti,
        issued_at: claims.iat,
        expires_at: claims.exp,
    })
}

/// Verifies an assertion about the edge itself and returns its id.
///
/// # Errors
/// As [`verify`], and for an assertion about a client.
pub fn verify_own(
    keys: &[AssertionKey],
    token: &str,
    method: &str,
    path_and_query: &str,
    now_unix_secs: u64,
) -> Result<String, AssertionError> {
    verified(keys, token, OWN_AUDIENCE, method, path_and_query, now_unix_secs).map(|claims| claims.jti)
}

fn verified(
    keys: &[AssertionKey],
    token: &str,
    audience: &str,
    method: &str,
    path_and_query: &str,
    now_unix_secs: u64,
) -> Result<Claims, AssertionError> {
    if token.is_empty() {
        return Err(AssertionError::Missing);
    }
    if token.len() > MAX_BYTES {
        return Err(AssertionError::TooLong);
    }
    let parts = Parts::of(token).map_err(AssertionError::Malformed)?;
    let header = &parts.header;
    if header.alg != HS256 {
        return Err(AssertionError::Malformed("the algorithm must be HS256"));
    }
    if header.crit.is_some() {
        return Err(AssertionError::Malformed(
            "critical header fields are not supported",
        ));
    }
    let key = keys
        .iter()
        .find(|key| header.kid.as_deref() == Some(key.id()))
        .ok_or(AssertionError::UnknownKey)?;

    if !key.secret.verifies(&parts) {
        return Err(AssertionError::BadSignature);
    }
    let claims: Claims = parts.claims().map_err(AssertionError::Malformed)?;

    if claims.iss != ISSUER || claims.aud != audience {
        return Err(AssertionError::Malformed("its issuer or audience is wrong"));
    }
    if claims.exp > claims.iat.saturating_add(LIFETIME_SECS) {
        return Err(AssertionError::Malformed("its lifetime is too long"));
    }
    if now_unix_secs >= claims.exp {
        return Err(AssertionError::Expired);
    }
    if claims.iat > now_unix_secs.saturating_add(LEEWAY_SECS) {
        return Err(AssertionError::NotYetValid);
    }
    let is_for_target = match (&claims.htd, &claims.htu) {
        (Some(digest), _) => *digest == target_digest(path_and_query),
        (None, Some(text)) => text == path_and_query,
        (None, None) => false,
    };
    if claims.htm != method || !is_for_target {
        return Err(AssertionError::WrongRequest);
    }
    Ok(claims)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: u64 = 1_800_000_000;

    fn key(byte: u8) -> AssertionKey {
        AssertionKey::new(&[byte; 32]).unwrap()
    }

    fn caller() -> Caller {
        Caller {
            user: Some(Identity {
                holder: "org_1".parse().unwrap(),
                subject: "2b0c5d9e-5ad9-4f43-9f0a-0d4b4e0d3a55".parse().unwrap(),
            }),
            client_address: "203.0.113.7".into(),
            token_expires_at: Some(NOW + 600),
        }
    }

    fn signed(key: &AssertionKey) -> String {
        sign(key, &caller(), "POST", "/api/jobs/analysis?x=1", "req-1", NOW).unwrap()
    }

    fn verified(token: &str, now: u64) -> Result<Assertion, AssertionError> {
        verify(&[key(1)], token, "POST", "/api/jobs/analysis?x=1", now)
    }

    #[test]
    fn a_new_assertion_is_valid_and_contains_the_caller() {
        let assertion = verified(&signed(&key(1)), NOW).unwrap();
        assert_eq!(assertion.caller, caller());
        assert_eq!(assertion.request_id, "req-1");
        assert_eq!((assertion.issued_at, assertion.expires_at), (NOW, NOW + 30));
    }

    #[test]
    fn claims_of_the_maximum_size_fit_in_an_assertion() {
        let chosen = |bytes: usize| {
            let all = BTreeMap::from([("roles".to_owned(), Value::from("é".repeat(bytes / 2)))]);
            TokenClaims::chosen(&all, &["roles".to_owned()])
        };
        let overhead = "{'roles':''}".len();
        assert_eq!(chosen(MAX_CLAIMS_BYTES - overhead + 2), Err(ClaimsTooLong));
        let longest = chosen(MAX_CLAIMS_BYTES - overhead).unwrap();
        let long_subject = |letter: &str| letter.repeat(255).parse().unwrap();
        let caller = Caller {
            user: Some(Identity {
                holder: long_subject("\""),
                subject: long_subject("\\"),
            }),
            ..caller()
        };
        let token = sign_with_claims(&key(1), &caller, &longest, "GET", "/", "req-1", NOW).unwrap();
        assert!(verify(&[key(1)], &token, "GET", "/", NOW).is_ok());
    }

    #[test]
    fn an_anonymous_caller_has_no_subject() {
        let anonymous = Caller {
            user: None,
            client_address: "2001:db8:1:2::/64".into(),
            token_expires_at: None,
        };
        let token = sign(&key(1), &anonymous, "GET", "/api/lanes", "req-2", NOW).unwrap();
        assert_eq!(
            verify(&[key(1)], &token, "GET", "/api/lanes", NOW)
                .unwrap()
                .caller,
            anonymous
        );
    }

    /// Claims as an edge or an origin of another version writes them.
    fn with_claims(change: impl FnOnce(&mut serde_json::Value)) -> String {
        let mut claims = serde_json::json!({
            "iss": ISSUER, "aud": AUDIENCE, "iat": NOW, "exp": NOW + LIFETIME_SECS, "client_address": "203.0.113.7",
            "htm": "POST", "htu": "/api/jobs/analysis?x=1", "jti": "req-1",
        });
        change(&mut claims);
        key(1).secret.sign(Some(key(1).id()), &claims).unwrap()
    }

    #[test]
    fn an_assertion_without_digests_is_valid_for_its_request_only() {
        assert!(verified(&with_claims(|_| {}), NOW).is_ok());
        for htu in ["/api/jobs/analysis".into(), serde_json::Value::Null] {
            let other = with_claims(|claims| claims["htu"] = htu);
            assert_eq!(verified(&other, NOW), Err(AssertionError::WrongRequest));
        }
        let both = with_claims(|claims| claims["htd"] = "another".into());
        assert_eq!(verified(&both, NOW), Err(AssertionError::WrongRequest));
    }

    #[test]
    fn a_long_url_does_not_lengthen_the_assertion() {
        let path = format!("/api/usage?{}", "a".repeat(16 * 1024));
        let token = sign(&key(1), &caller(), "GET", &path, "req-1", NOW).unwrap();
        assert!(token.len() < 600, "{}", token.len());
        assert!(verify(&[key(1)], &token, "GET", &path, NOW).is_ok());
    }

    #[test]
    fn an_assertion_without_an_organisation_names_the_subject() {
        let token = with_claims(|claims| claims["sub"] = "user_2aB".into());
        let user = verified(&token, NOW).unwrap().caller.user;
        assert_eq!(user, Some(Identity::own("user_2aB".parse().unwrap())));
    }

    #[test]
    fn the_subject_of_an_assertion_is_the_holder() {
        let token = signed(&key(1));
        let claims: Value = Parts::of(&token).unwrap().claims().unwrap();
        assert_eq!(claims["sub"], "org_1");
        assert_eq!(claims["act"]["sub"], "2b0c5d9e-5ad9-4f43-9f0a-0d4b4e0d3a55");
    }

    #[test]
    fn an_assertion_with_an_invalid_subject_is_refused() {
        for subject in ["", "a\0b", &"a".repeat(256)] {
            let token = with_claims(|claims| claims["sub"] = subject.into());
            assert!(matches!(verified(&token, NOW), Err(AssertionError::Malformed(_))));
        }
    }

    #[test]
    fn an_assertion_expires_after_thirty_seconds() {
        let token = signed(&key(1));
        assert!(verified(&token, NOW + 29).is_ok());
        assert_eq!(verified(&token, NOW + 30), Err(AssertionError::Expired));
    }

    #[test]
    fn five_seconds_of_clock_skew_are_tolerated() {
        let token = signed(&key(1));
        assert!(verified(&token, NOW - 5).is_ok());
        assert_eq!(verified(&token, NOW - 6), Err(AssertionError::NotYetValid));
    }

    #[test]
    fn an_assertion_for_another_request_is_refused() {
        let token = signed(&key(1));
        for (method, path) in [
            ("GET", "/api/jobs/analysis?x=1"),
            ("POST", "/api/jobs/specview?x=1"),
            ("POST", "/api/jobs/analysis?x=2"),
            ("POST", "/api/jobs/analysis"),
            ("post", "/api/jobs/analysis?x=1"),
        ] {
            assert_eq!(
                verify(&[key(1)], &token, method, path, NOW),
                Err(AssertionError::WrongRequest)
            );
        }
    }

    #[test]
    fn edge_assertions_and_client_assertions_are_not_interchangeable() {
        let (method, path) = ("POST", "/api/jobs/analysis?x=1");
        let own = sign_own(&key(1), method, path, "report-1", NOW).unwrap();
        assert_eq!(
            verify_own(&[key(1)], &own, method, path, NOW),
            Ok("report-1".to_owned())
        );
        assert!(matches!(verified(&own, NOW), Err(AssertionError::Malformed(_))));
        let about_a_client = verify_own(&[key(1)], &signed(&key(1)), method, path, NOW);
        assert!(matches!(about_a_client, Err(AssertionError::Malformed(_))));
        assert_eq!(
            verify_own(&[key(1)], &own, method, "/api/jobs/specview", NOW),
            Err(AssertionError::WrongRequest)
        );
    }

    #[test]
    fn the_previous_key_is_valid_during_rotation() {
        let token = signed(&key(1));
        assert!(verify(&[key(2), key(1)], &token, "POST", "/api/jobs/analysis?x=1", NOW).is_ok());
        assert_eq!(
            verify(&[key(2)], &token, "POST", "/api/jobs/analysis?x=1", NOW),
            Err(AssertionError::UnknownKey)
        );
    }

    #[test]
    fn a_different_key_with_a_known_id_is_refused() {
        let mut forger = key(9);
        forger.id = key(1).id;
        assert_eq!(verified(&signed(&forger), NOW), Err(AssertionError::BadSignature));
    }

    #[test]
    fn missing_and_oversized_assertions_are_refused_before_decoding() {
        assert_eq!(verified("", NOW), Err(AssertionError::Missing));
        assert_eq!(
            verified(&"a".repeat(MAX_BYTES + 1), NOW),
            Err(AssertionError::TooLong)
        );
        assert!(matches!(
            verified(&"a".repeat(MAX_BYTES), NOW),
            Err(AssertionError::Malformed(_))
        ));
    }

    #[test]
    fn other_algorithms_are_refused_even_with_the_right_key() {
        for algorithm in ["HS384", "HS512"] {
            let header = serde_json::json!({"alg": algorithm, "kid": key(1).id()}).to_string();
            let token = format!("{}.e30.", URL_SAFE_NO_PAD.encode(header));
            let error = AssertionError::Malformed("the algorithm must be HS256");
            assert_eq!(verified(&token, NOW), Err(error));
        }
        // {"alg":"none","typ":"JWT"} . {} .
        assert!(matches!(
            verified("eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.e30.", NOW),
            Err(AssertionError::Malformed(_))
        ));
    }

    #[test]
    fn a_refusal_does_not_echo_any_part_of_the_assertion() {
        let claims = serde_json::json!({"iss": "injected", "exp": "injected"});
        let wrong_claims = key(1).secret.sign(Some(key(1).id()), &claims).unwrap();
        // {"alg":"injected"} . {} .
        let wrong_algorithm = "eyJhbGciOiJpbmplY3RlZCJ9.e30.";
        for token in [
            wrong_claims.as_str(),
            wrong_algorithm,
            "injected",
            "injected.injected.injected",
        ] {
            let reason = verified(token, NOW).unwrap_err().to_string();
            assert!(
                reason.contains("malformed") && !reason.contains("injected"),
                "{reason}"
            );
        }
    }

    #[test]
    fn an_assertion_that_lives_too_long_is_refused() {
        let claims = serde_json::json!({
            "iss": ISSUER, "aud": AUDIENCE, "iat": NOW, "exp": NOW + 3600, "client_address": "203.0.113.7",
            "htm": "POST", "htu": "/api/jobs/analysis?x=1", "jti": "req-1",
        });
        let token = key(1).secret.sign(Some(key(1).id()), &claims).unwrap();
        assert!(matches!(verified(&token, NOW), Err(AssertionError::Malformed(_))));
    }

    #[test]
    fn a_short_secret_is_refused() {
        assert_eq!(
            AssertionKey::new(&[7; 31]).unwrap_err(),
            SecretTooShort { got: 31 }
        );
    }

    #[test]
    fn debug_output_does_not_show_secrets() {
        let shown = format!(
            "{:?}",
            AssertionKey::new(b"correct-horse-battery-staple-0123456789").unwrap()
        );
        assert!(!shown.contains("horse") && shown.contains("[redacted]"));
    }

    #[test]
    fn the_key_id_is_derived_from_the_secret() {
        assert_eq!(key(1).id().len(), 16);
        assert_eq!(key(1).id(), key(1).id());
        assert_ne!(key(1).id(), key(2).id());
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_refused_without_a_panic(token in "[ -~]{0,300}") {
            prop_assert!(verified(&token, NOW).is_err());
        }

        #[test]
        fn one_changed_character_invalidates_an_assertion(position in 0usize..400, replacement in "[A-Za-z0-9_.-]") {
            let token = signed(&key(1));
            let position = position % token.len();
            let mut changed = token.clone();
            changed.replace_range(position..=position, &replacement);
            // The last character of a base64 segment may have unused bits.
            let same_bits = position + 1 == token.len() || token.as_bytes()[position + 1] == b'.';
            prop_assume!(changed != token && !same_bits);
            prop_assert!(verified(&changed, NOW).is_err());
        }

        #[test]
        fn an_assertion_repeats_only_the_listed_claims(
            listed in proptest::collection::btree_map("[a-z_.]{1,8}", "listed-[a-z\"é]{0,8}", 0..5),
            others in proptest::collection::btree_map("[a-z_.]{1,8}", "other-[a-z]{0,8}", 0..5),
            absent in proptest::collection::vec("[A-Z]{1,8}", 0..3),
        ) {
            let listed: BTreeMap<_, _> = listed.into_iter().map(|(name, text)| (name, Value::from(text))).collect();
            let mut all: BTreeMap<_, _> = others.into_iter().map(|(name, text)| (name, Value::from(text))).collect();
            all.extend(listed.clone());
            let names: Vec<_> = listed.keys().chain(&absent).cloned().collect();
            let claims = TokenClaims::chosen(&all, &names).unwrap();
            let token = sign_with_claims(&key(1), &caller(), &claims, "GET", "/v1/x", "req-1", NOW).unwrap();
            let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
            let payload: BTreeMap<String, Value> = serde_json::from_slice(&payload).unwrap();
            let known = [
                "act", "aud", "claims", "client_address", "exp", "htd", "htm", "iat", "iss", "jti", "sub", "token_exp",
            ];
            prop_assert!(payload.keys().all(|name| known.contains(&name.as_str())));
            match payload.get("claims") {
                Some(Value::Object(repeated)) => {
                    let repeated: BTreeMap<_, _> = repeated.clone().into_iter().collect();
                    prop_assert_eq!(repeated, listed);
                }
                other => prop_assert!(other.is_none() && listed.is_empty()),
            }
            prop_assert!(!serde_json::to_string(&payload).unwrap().contains("other-"));
            prop_assert_eq!(verify(&[key(1)], &token, "GET", "/v1/x", NOW).unwrap().caller, caller());
        }

        #[test]
        fn verification_returns_what_was_signed(
            user in proptest::option::of(("\\PC{1,60}", "\\PC{1,60}")),
            address in "[0-9a-f.:/]{1,43}",
            method in "[A-Z]{3,7}",
            path in "/[ -~]{0,60}",
            id in "[a-z0-9-]{1,36}",
            age in 0u64..30,
            token_expires_at in proptest::option::of(any::<u64>()),
        ) {
            let user = user.map(|(holder, subject)| Identity {
                holder: holder.parse().unwrap(),
                subject: subject.parse().unwrap(),
            });
            let caller = Caller { user, client_address: address, token_expires_at };
            let token = sign(&key(1), &caller, &method, &path, &id, NOW).unwrap();
            let assertion = verify(&[key(2), key(1)], &token, &method, &path, NOW + age).unwrap();
            prop_assert_eq!(assertion.caller, caller);
            prop_assert_eq!(assertion.request_id, id);
        }
    }
}
