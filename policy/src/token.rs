//! Users' tokens: JWTs (RFC 7519) that identify a user until they expire.
//!
//! A token is signed with the shared secret (HS256) or with a key of a JSON Web Key Set (EdDSA, ES256, ES384,
//! RS256–RS512, PS256–PS512). The key, never the token, determines which algorithms are accepted (RFC 8725, 3.1). Times
//! are seconds since the Unix epoch.

use std::collections::BTreeMap;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use strum::{EnumString, IntoStaticStr};
use thiserror::Error;

use crate::jwt::{MAX_BYTES, Parts, Secret, SecretTooShort};
use crate::subject::{Identity, Subject, SubjectError};

/// The tolerated clock difference for `exp` and `nbf`, in seconds.
pub const LEEWAY_SECS: u64 = 30;

/// The prefix of service keys. They are for the origin. The edge refuses them and never forwards one.
pub const SERVICE_KEY_PREFIX: &str = "weir_sk_";

/// The most keys that are read from a key set. It bounds the search for a `kid`.
pub const MAX_KEYS: usize = 32;

/// Requirements for a token's claims, in addition to subject and times. None by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// The required claim `iss`.
    pub issuer: Option<String>,
    /// The accepted audiences. The `aud` claim must name one of them.
    pub audiences: Option<Vec<String>>,
    /// Other required claims.
    pub claims: Vec<RequiredClaim>,
    /// The claim that names the holder: its name, or a path such as `o.id`. If it is not set, or if a token lacks it,
    /// the subject acts for itself.
    pub holder_claim: Option<String>,
    /// Claims to keep, by name or path.
    pub kept_claims: Vec<String>,
}

/// An invalid secret or key set.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    /// The secret is too short.
    #[error(transparent)]
    TooShort(#[from] SecretTooShort),
    /// The text is not a JSON Web Key Set.
    #[error("this is not a JSON Web Key Set: {0}")]
    NotAKeySet(String),
    /// No key of the set can verify a token. The text lists the kinds of its keys.
    #[error("the key set has no EdDSA, ES256, ES384, RS or PS key for signatures; it has {0}")]
    NoUsableKey(String),
}

/// The reason to refuse a token.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TokenError {
    /// It is longer than [`MAX_BYTES`].
    #[error("the token is longer than {MAX_BYTES} bytes")]
    TooLong,
    /// It is not a signed JWT, or its claims are invalid. The reason is a constant, because it is sent to clients and
    /// must not contain any part of the token.
    #[error("the token is malformed: {0}")]
    Malformed(&'static str),
    /// No key has its `kid` and algorithm.
    #[error("the token is signed with an unknown key")]
    UnknownKey,
    /// The signature is invalid.
    #[error("the token's signature does not match")]
    BadSignature,
    /// It has expired.
    #[error("the token has expired")]
    Expired,
    /// It is not valid yet.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// It comes from another issuer or is for another audience.
    #[error("the token was issued for another service")]
    WrongIssuerOrAudience,
    /// Its type is another one than access token, such as refresh token or ID token.
    #[error("the token is not an access token")]
    NotAnAccessToken,
    /// It lacks one of the required claims.
    #[error("the token lacks a claim that this service requires")]
    MissingClaim,
}

impl TokenError {
    /// Whether a known key has verified the token, and only its time is wrong.
    pub fn is_about_time(&self) -> bool {
        matches!(self, Self::Expired | Self::NotYetValid)
    }
}

/// The reason why a token could not be issued.
#[derive(Debug, Error)]
pub enum IssueError {
    /// The secret is too short.
    #[error(transparent)]
    Key(#[from] SecretTooShort),
    /// The claims cannot be encoded.
    #[error("the token could not be signed: {0}")]
    Sign(#[from] serde_json::Error),
}

/// An authenticated user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The user, by the `sub` claim, and the holder.
    pub identity: Identity,
    /// The `exp` claim.
    pub expires_at: u64,
    /// The kept claims that the token has.
    pub claims: BTreeMap<String, Value>,
}

/// An algorithm of signatures (RFC 7518, 3.1; RFC 8037).
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr)]
#[allow(missing_docs)]
pub enum Algorithm {
    HS256,
    HS384,
    HS512,
    ES256,
    ES384,
    RS256,
    RS384,
    RS512,
    PS256,
    PS384,
    PS512,
    EdDSA,
}

impl Algorithm {
    /// Its name in headers of tokens.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// A key that verifies tokens, with its algorithms. Only an RSA key from a set that does not name its algorithm has
/// several.
#[derive(Clone)]
pub struct VerifyingKey {
    id: Option<String>,
    algorithms: &'static [Algorithm],
    material: Material,
}

#[derive(Clone)]
enum Material {
    Secret(Secret),
    /// A JWK with the members of the public key only.
    Public(String),
}

/// The result of checking a signature with a key.
#[derive(Clone, Copy, Debug)]
pub enum Check<'a> {
    /// Whether the key has signed the token.
    Decided(bool),
    /// The caller decides with this public key: a JWK that has no other members than those of the key.
    Public(&'a str),
}

impl VerifyingKey {
    /// Checks the signature of a token.
    pub fn check(&self, token: &Token<'_>) -> Check<'_> {
        match &self.material {
            Material::Secret(secret) => Check::Decided(secret.verifies(&token.parts)),
            Material::Public(jwk) => Check::Public(jwk),
        }
    }
}

/// The keys that verify tokens: a shared secret or the keys of a key set.
#[derive(Clone, Default)]
pub struct Keys(Vec<VerifyingKey>);

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|key| (&key.id, key.algorithms)))
            .finish()
    }
}

impl Keys {
    /// The key of a shared secret, for HS256. It verifies tokens with any `kid` or none, because issuers with one
    /// secret differ in what they write there.
    ///
    /// # Errors
    /// When the secret is too short.
    pub fn from_secret(secret: &[u8]) -> Result<Self, KeyError> {
        Ok(Self(vec![VerifyingKey {
            id: None,
            algorithms: &[Algorithm::HS256],
            material: Material::Secret(Secret::new(secret)?),
        }]))
    }

    /// The keys of a JSON Web Key Set (RFC 7517) that verify signatures. Other keys are ignored, above all symmetric
    /// ones: everyone who can read a published secret can sign with it.
    ///
    /// # Errors
    /// When the text is not a key set or has no usable key.
    pub fn from_jwks(json: &str) -> Result<Self, KeyError> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<serde_json::Value>,
        }
        let set: Set = serde_json::from_str(json).map_err(|error| KeyError::NotAKeySet(error.to_string()))?;
        // Parse each key separately: one key of an unknown type must not invalidate the others.
        let keys: Vec<_> = set
            .keys
            .iter()
            .filter_map(|key| Jwk::deserialize(key).ok())
            .filter_map(verifying_key)
            .take(MAX_KEYS)
            .collect();
        if keys.is_empty() {
            Err(KeyError::NoUsableKey(kinds(&set.keys)))
        } else {
            Ok(Self(keys))
        }
    }

    /// Whether there are no keys, so that no token is valid.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys that may have signed a token. If a key has an id, the `kid` must match it. A token without `kid` matches
    /// keys without an id, or the only key of its algorithm.
    pub fn candidates(&self, token: &Token<'_>) -> impl Iterator<Item = &VerifyingKey> {
        self.of(token.parts.header.kid.as_deref(), token.algorithm)
    }

    fn of(&self, kid: Option<&str>, algorithm: Algorithm) -> impl Iterator<Item = &VerifyingKey> {
        let of_algorithm = move |key: &&VerifyingKey| key.algorithms.contains(&algorithm);
        let only = self.0.iter().filter(of_algorithm).count() == 1;
        self.0.iter().filter(move |key| {
            of_algorithm(key)
                && match (&key.id, kid) {
                    (None, _) => true,
                    (Some(id), Some(kid)) => id == kid,
                    (Some(_), None) => only,
                }
        })
    }
}

/// The members of a JSON Web Key that are read (RFC 7517, 7518, 8037).
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(rename = "use")]
    key_use: Option<String>,
    alg: Option<String>,
    kid: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

/// The verifying key of a JWK; `None` if the key is for encryption, symmetric, malformed, or of an algorithm that is not
/// accepted.
fn verifying_key(jwk: Jwk) -> Option<VerifyingKey> {
    if jwk.key_use.is_some_and(|key_use| key_use != "sig") {
        return None;
    }
    // A number of this many bytes; 0 for any number.
    let has_length = |number: &Option<String>, length: usize| {
        let bytes = number.as_ref().and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
        bytes.is_some_and(|bytes| !bytes.is_empty() && (length == 0 || bytes.len() == length))
    };
    let curve = jwk.crv.as_deref();
    let (family, is_complete): (&'static [Algorithm], bool) = match (jwk.kty.as_str(), curve) {
        ("RSA", _) => (
            &[
                Algorithm::RS256,
                Algorithm::RS384,
                Algorithm::RS512,
                Algorithm::PS256,
                Algorithm::PS384,
                Algorithm::PS512,
            ],
            has_length(&jwk.n, 0) && has_length(&jwk.e, 0),
        ),
        ("EC", Some("P-256")) => (
            &[Algorithm::ES256],
            has_length(&jwk.x, 32) && has_length(&jwk.y, 32),
        ),
        ("EC", Some("P-384")) => (
            &[Algorithm::ES384],
            has_length(&jwk.x, 48) && has_length(&jwk.y, 48),
        ),
        ("OKP", Some("Ed25519")) => (&[Algorithm::EdDSA], has_length(&jwk.x, 32)),
        _ => return None,
    };
    if !is_complete {
        return None;
    }
    let algorithms = match jwk.alg {
        None => family,
        Some(declared) => {
            let declared = Algorithm::from_str(&declared).ok()?;
            let position = family.iter().position(|algorithm| *algorithm == declared)?;
            family.get(position..=position)?
        }
    };
    let public = match jwk.kty.as_str() {
        "RSA" => json!({"kty": "RSA", "n": jwk.n, "e": jwk.e}),
        "EC" => json!({"kty": "EC", "crv": jwk.crv, "x": jwk.x, "y": jwk.y}),
        _ => json!({"kty": jwk.kty, "crv": jwk.crv, "x": jwk.x}),
    };
    Some(VerifyingKey {
        id: jwk.kid,
        algorithms,
        material: Material::Public(public.to_string()),
    })
}

/// The contents of a key set, for an error message: type, curve, use and algorithm of each key.
fn kinds(keys: &[Value]) -> String {
    let mut kinds: Vec<String> = keys
        .iter()
        .take(MAX_KEYS)
        .map(|key| {
            let members = ["kty", "crv", "use", "alg"];
            let texts = members.iter().filter_map(|member| key.get(member)?.as_str());
            let shown: Vec<String> = texts.map(|text| text.chars().take(20).collect()).collect();
            shown.join(" ")
        })
        .collect();
    kinds.sort();
    kinds.dedup();
    if kinds.is_empty() {
        "no keys".to_owned()
    } else {
        kinds.join(", ")
    }
}

/// The claims of a token with a valid signature.
struct Claims(Map<String, Value>);

impl Claims {
    /// The claim of this name. Without such a claim, the name is read as a path into an object. A null claim counts as
    /// absent.
    fn named(&self, name: &str) -> Option<&Value> {
        let found = self.0.get(name).or_else(|| {
            let mut steps = name.split('.');
            let first = self.0.get(steps.next()?)?;
            steps.try_fold(first, |value, step| value.get(step))
        });
        found.filter(|value| !value.is_null())
    }

    /// A NumericDate (RFC 7519, 2): seconds since the Unix epoch, possibly with a fraction.
    fn date(&self, name: &str, reason: &'static str) -> Result<Option<u64>, TokenError> {
        let Some(value) = self.0.get(name) else {
            return Ok(None);
        };
        let seconds = value.as_f64().ok_or(TokenError::Malformed(reason))?;
        // From 2^53 on, a double cannot represent every second.
        if (0.0..9_007_199_254_740_992.0).contains(&seconds) {
            Ok(Some(seconds as u64))
        } else {
            Err(TokenError::Malformed(reason))
        }
    }

    /// Whether the `aud` claim, one text or several (RFC 7519, 4.1.3), names one of these audiences.
    fn is_for(&self, audiences: &[String]) -> Result<bool, TokenError> {
        let reason = TokenError::Malformed("its aud claim is neither a string nor a list of strings");
        let named = match self.named("aud") {
            None => &[][..],
            Some(Value::Array(several)) => several.as_slice(),
            Some(one) => std::slice::from_ref(one),
        };
        let named: Option<Vec<&str>> = named.iter().map(Value::as_str).collect();
        let named = named.ok_or(reason)?;
        Ok(audiences
            .iter()
            .any(|audience| named.contains(&audience.as_str())))
    }

    /// Whether a claim that declares the token's type names something other than an access token.
    fn declare_another_type(&self) -> bool {
        ["token_type", "token_use", "type", "typ"]
            .iter()
            .filter_map(|name| self.0.get(*name)?.as_str())
            .any(|kind| {
                OTHER_TOKEN_TYPES
                    .iter()
                    .any(|other| kind.eq_ignore_ascii_case(other))
            })
    }
}

/// The names that issuers give tokens other than access tokens, in a claim.
const OTHER_TOKEN_TYPES: [&str; 6] = [
    "refresh",
    "refresh_token",
    "refresh-token",
    "offline",
    "id",
    "id_token",
];

/// Whether the `typ` header declares something other than an access token (RFC 8725, 3.11; RFC 9068).
fn is_not_access_token(typ: &str) -> bool {
    let typ = typ.to_ascii_lowercase();
    let typ = typ.strip_prefix("application/").unwrap_or(&typ);
    typ.ends_with("+jwt") && typ != "at+jwt"
}

/// A claim that tokens must have, with its value. Written `name=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequiredClaim {
    name: String,
    value: String,
}

/// A text that is not a [`RequiredClaim`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not a claim; expected a name and a value, such as `token_use=access`")]
pub struct RequiredClaimError(String);

impl FromStr for RequiredClaim {
    type Err = RequiredClaimError;

    fn from_str(text: &str) -> Result<Self, RequiredClaimError> {
        let parts = text
            .split_once('=')
            .map(|(name, value)| (name.trim(), value.trim()));
        match parts {
            Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok(Self {
                name: name.to_owned(),
                value: value.to_owned(),
            }),
            _ => Err(RequiredClaimError(text.to_owned())),
        }
    }
}

impl RequiredClaim {
    /// Whether the claim is this value, or a list that contains it.
    fn is_in(&self, claims: &Claims) -> bool {
        let equals = |value: &Value| match value {
            Value::String(text) => *text == self.value,
            Value::Bool(_) | Value::Number(_) => {
                self.value.parse().is_ok_and(|wanted: Value| wanted == *value)
            }
            _ => false,
        };
        claims.named(&self.name).is_some_and(|value| match value {
            Value::Array(values) => values.iter().any(equals),
            value => equals(value),
        })
    }
}

/// Issues a token for a user, HS256 with the shared secret. Times are seconds since the Unix epoch.
///
/// # Errors
/// When the secret is too short.
pub fn issue(
    secret: &[u8],
    subject: &Subject,
    issued_at: u64,
    expires_at: u64,
    issuer: Option<&str>,
    audience: Option<&str>,
) -> Result<String, IssueError> {
    let secret = Secret::new(secret)?;
    #[derive(Serialize)]
    struct Issued<'a> {
        sub: &'a str,
        exp: u64,
        iat: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        iss: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        aud: Option<&'a str>,
    }
    let claims = Issued {
        sub: subject.as_str(),
        exp: expires_at,
        iat: issued_at,
        iss: issuer,
        aud: audience,
    };
    Ok(secret.sign(None, &claims)?)
}

/// A token that can be read. Nothing is verified.
#[derive(Debug)]
pub struct Token<'a> {
    parts: Parts<'a>,
    algorithm: Algorithm,
}

impl<'a> Token<'a> {
    /// Reads the format and the header of a token.
    ///
    /// # Errors
    /// When no key could verify it.
    pub fn read(text: &'a str) -> Result<Self, TokenError> {
        if text.len() > MAX_BYTES {
            return Err(TokenError::TooLong);
        }
        let parts = Parts::of(text).map_err(TokenError::Malformed)?;
        let algorithm = Algorithm::from_str(&parts.header.alg)
            .map_err(|_| TokenError::Malformed("its algorithm is not supported"))?;
        if parts.header.crit.is_some() {
            return Err(TokenError::Malformed("critical header fields are not supported"));
        }
        Ok(Self { parts, algorithm })
    }

    /// The algorithm of its signature.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The text that is signed.
    pub fn signed(&self) -> &str {
        self.parts.signed
    }

    /// The signature.
    pub fn signature(&self) -> &[u8] {
        &self.parts.signature
    }

    /// The user, at `now_unix_secs` (seconds since the Unix epoch). `verified` is whether one of the keys that may have
    /// signed the token has, and `None` without such keys.
    ///
    /// # Errors
    /// The first reason found to refuse it. After [`TokenError::UnknownKey`] and [`TokenError::BadSignature`], ask
    /// [`may_be_valid_with_newer_keys`].
    pub fn user(
        &self,
        verified: Option<bool>,
        expected: &Expected,
        now_unix_secs: u64,
    ) -> Result<User, TokenError> {
        match verified {
            None => return Err(TokenError::UnknownKey),
            Some(false) => return Err(TokenError::BadSignature),
            Some(true) => {}
        }
        if self.is_not_access_token() {
            return Err(TokenError::NotAnAccessToken);
        }
        let claims = self.parts.claims().map_err(TokenError::Malformed)?;
        check(&Claims(claims), expected, now_unix_secs)
    }

    fn is_not_access_token(&self) -> bool {
        self.parts.header.typ.as_deref().is_some_and(is_not_access_token)
    }
}

/// Verifies a token at `now_unix_secs` and returns its user. `verify` checks a signature with a public key, as in
/// [`Check::Public`].
///
/// # Errors
/// As [`Token::read`] and [`Token::user`].
pub fn verify(
    keys: &Keys,
    text: &str,
    expected: &Expected,
    now_unix_secs: u64,
    verify: impl Fn(&str, &Token<'_>) -> bool,
) -> Result<User, TokenError> {
    let token = Token::read(text)?;
    let mut verified = None;
    for key in keys.candidates(&token) {
        let is_signed = match key.check(&token) {
            Check::Decided(is_signed) => is_signed,
            Check::Public(jwk) => verify(jwk, &token),
        };
        verified = Some(is_signed);
        if is_signed {
            break;
        }
    }
    token.user(verified, expected, now_unix_secs)
}

/// The `iss` claim of a token that is not verified. Any client can write it. It only selects the keys that must verify
/// the token.
pub fn claimed_issuer(token: &str) -> Option<String> {
    let claims = Token::read(token).ok()?.parts.claims().ok()?;
    Claims(claims).named("iss")?.as_str().map(str::to_owned)
}

/// Whether a token that the keys of `keys_from_secs` do not verify may be valid with a newer key set. Both times are in
/// seconds since the Unix epoch. Anyone can write such a token. The result therefore decides only whether to fetch
/// newer keys, and whether the answer until then is "cannot be verified" instead of a refusal.
///
/// - A token that every key set would refuse, for its claims or its algorithm, is refused. So a token cannot be
///   unverifiable for longer than it claims to be valid.
/// - A token that claims to have been issued before the keys were fetched is refused: its key would be among them. So
///   bad tokens that use up the one fetch per cooldown do not change the answer to older tokens.
pub fn may_be_valid_with_newer_keys(
    token: &str,
    expected: &Expected,
    keys_from_secs: u64,
    now_unix_secs: u64,
) -> bool {
    let Ok(token) = Token::read(token) else {
        return false;
    };
    let Ok(claims) = token.parts.claims() else {
        return false;
    };
    let claims = Claims(claims);
    let is_of_key_set = !matches!(
        token.algorithm,
        Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512
    );
    let is_newer = match claims.date("iat", "") {
        Ok(Some(issued_at)) => issued_at.saturating_add(LEEWAY_SECS) > keys_from_secs,
        Ok(None) => true,
        Err(_) => false,
    };
    is_of_key_set
        && is_newer
        && !token.is_not_access_token()
        && check(&claims, expected, now_unix_secs).is_ok()
}

fn check(claims: &Claims, expected: &Expected, now: u64) -> Result<User, TokenError> {
    let expires_at = claims
        .date("exp", "its exp claim is not a time in seconds")?
        .ok_or(TokenError::Malformed("it has no exp claim"))?;
    let not_before = claims.date("nbf", "its nbf claim is not a time in seconds")?;
    claims.date("iat", "its iat claim is not a time in seconds")?;
    let issuer = match claims.named("iss") {
        Some(issuer) => Some(
            issuer
                .as_str()
                .ok_or(TokenError::Malformed("its iss claim is not a string"))?,
        ),
        None => None,
    };
    let meant_for_us = claims.is_for(expected.audiences.as_deref().unwrap_or_default())?;

    if now >= expires_at.saturating_add(LEEWAY_SECS) {
        return Err(TokenError::Expired);
    }
    if not_before.is_some_and(|not_before| not_before > now.saturating_add(LEEWAY_SECS)) {
        return Err(TokenError::NotYetValid);
    }
    let issued_here = expected.issuer.is_none() || issuer == expected.issuer.as_deref();
    if !issued_here || (expected.audiences.is_some() && !meant_for_us) {
        return Err(TokenError::WrongIssuerOrAudience);
    }
    if claims.declare_another_type() {
        return Err(TokenError::NotAnAccessToken);
    }
    if !expected.claims.iter().all(|claim| claim.is_in(claims)) {
        return Err(TokenError::MissingClaim);
    }
    Ok(User {
        identity: identity(claims, expected.holder_claim.as_deref())?,
        expires_at,
        claims: expected
            .kept_claims
            .iter()
            .filter_map(|name| Some((name.clone(), claims.named(name)?.clone())))
            .collect(),
    })
}

fn identity(claims: &Claims, holder_claim: Option<&str>) -> Result<Identity, TokenError> {
    let subject = claims
        .0
        .get("sub")
        .ok_or(TokenError::Malformed("it has no sub claim"))?
        .as_str()
        .ok_or(TokenError::Malformed("its sub claim is not a string"))?;
    let subject: Subject = subject.parse().map_err(|error| {
        TokenError::Malformed(match error {
            SubjectError::Empty => "its subject is empty",
            SubjectError::TooLong => "its subject is longer than 255 bytes",
            SubjectError::Control => "its subject contains control characters",
            SubjectError::Address => "its subject is the id of a client address",
        })
    })?;
    let Some(claim) = holder_claim.and_then(|name| claims.named(name)) else {
        return Ok(Identity::own(subject));
    };
    // Counting an unreadable organisation's usage against the user would hide the mistake.
    let holder = claim
        .as_str()
        .and_then(|text| text.parse().ok())
        .ok_or(TokenError::Malformed(
            "the claim that names its holder is not a valid subject",
        ))?;
    Ok(Identity { holder, subject })
}

#[cfg(test)]
mod tests {
    use super::*;
    use jsonwebtoken::jwk;
    use jsonwebtoken::{DecodingKey, EncodingKey, Header};
    use proptest::prelude::*;
    use serde_json::json;

    const NOW: u64 = 1_800_000_000;
    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
    const USER: &str = "2b0c5d9e-5ad9-4f43-9f0a-0d4b4e0d3a55";

    /// Verifies as `jsonwebtoken` does.
    fn verify(keys: &Keys, token: &str, expected: &Expected, now: u64) -> Result<User, TokenError> {
        super::verify(keys, token, expected, now, |jwk, token| {
            let jwk: jwk::Jwk = serde_json::from_str(jwk).unwrap();
            let signature = URL_SAFE_NO_PAD.encode(token.signature());
            let algorithm = token.algorithm().name().parse().unwrap();
            DecodingKey::from_jwk(&jwk)
                .and_then(|key| {
                    jsonwebtoken::crypto::verify(&signature, token.signed().as_bytes(), &key, algorithm)
                })
                .unwrap()
        })
    }

    fn keys() -> Keys {
        Keys::from_secret(SECRET).unwrap()
    }

    fn signed(claims: &serde_json::Value) -> String {
        jsonwebtoken::encode(
            &Header::new(jsonwebtoken::Algorithm::HS256),
            claims,
            &EncodingKey::from_secret(SECRET),
        )
        .unwrap()
    }

    fn verified(claims: &serde_json::Value) -> Result<User, TokenError> {
        verify(&keys(), &signed(claims), &Expected::default(), NOW)
    }

    fn subject_of(user: Result<User, TokenError>) -> String {
        user.unwrap().identity.subject.into()
    }

    #[test]
    fn a_token_with_only_sub_and_exp_is_valid() {
        let user = verified(&json!({"sub": USER, "exp": NOW + 60})).unwrap();
        assert_eq!(
            user,
            User {
                identity: Identity::own(USER.parse().unwrap()),
                expires_at: NOW + 60,
                claims: BTreeMap::new(),
            }
        );
    }

    #[test]
    fn an_issued_token_is_valid_until_it_expires() {
        let token = issue(SECRET, &USER.parse().unwrap(), NOW, NOW + 3600, None, None).unwrap();
        assert_eq!(
            subject_of(verify(&keys(), &token, &Expected::default(), NOW)),
            USER
        );
        assert!(
            verify(
                &keys(),
                &token,
                &Expected::default(),
                NOW + 3600 + LEEWAY_SECS - 1
            )
            .is_ok()
        );
        assert_eq!(
            verify(&keys(), &token, &Expected::default(), NOW + 3600 + LEEWAY_SECS),
            Err(TokenError::Expired)
        );
    }

    #[test]
    fn a_token_without_an_expiry_is_refused() {
        assert!(matches!(
            verified(&json!({"sub": USER})),
            Err(TokenError::Malformed(_))
        ));
        assert!(matches!(
            verified(&json!({"sub": USER, "exp": "tomorrow"})),
            Err(TokenError::Malformed(_))
        ));
        assert!(matches!(
            verified(&json!({"sub": USER, "exp": 1e300})),
            Err(TokenError::Malformed(_))
        ));
    }

    #[test]
    fn a_refusal_does_not_echo_any_part_of_the_token() {
        let wrong_claims = signed(&json!({"sub": USER, "exp": "injected"}));
        let wrong_subject = signed(&json!({"sub": "injected\n", "exp": NOW + 60}));
        // {"alg":"injected"} . {} .
        let wrong_algorithm = "eyJhbGciOiJpbmplY3RlZCJ9.e30.";
        for token in [
            &wrong_claims,
            &wrong_subject,
            wrong_algorithm,
            "injected",
            "injected.injected.injected",
        ] {
            let reason = verify(&keys(), token, &Expected::default(), NOW)
                .unwrap_err()
                .to_string();
            assert!(
                reason.contains("malformed") && !reason.contains("injected"),
                "{reason}"
            );
        }
    }

    #[test]
    fn numeric_dates_may_have_a_fraction() {
        assert!(verified(&json!({"sub": USER, "exp": NOW as f64 + 60.5, "nbf": NOW as f64 - 0.5})).is_ok());
    }

    #[test]
    fn a_token_is_refused_before_nbf() {
        let claims = json!({"sub": USER, "exp": NOW + 3600, "nbf": NOW + LEEWAY_SECS + 1});
        assert_eq!(verified(&claims), Err(TokenError::NotYetValid));
        let claims = json!({"sub": USER, "exp": NOW + 3600, "nbf": NOW + LEEWAY_SECS});
        assert!(verified(&claims).is_ok());
    }

    #[test]
    fn a_user_id_is_normalised() {
        let claims = json!({"sub": USER.to_uppercase(), "exp": NOW + 60});
        assert_eq!(subject_of(verified(&claims)), USER);
    }

    #[test]
    fn any_text_without_control_characters_is_a_valid_subject() {
        let longest = "a".repeat(255);
        for sub in ["user_2aB", "auth0|1", "17", "anne@example.com", "Zoë", &longest] {
            assert_eq!(subject_of(verified(&json!({"sub": sub, "exp": NOW + 60}))), sub);
        }
        for sub in ["", "a\0", "a\nb", &format!("{longest}a")] {
            let refused = verified(&json!({"sub": sub, "exp": NOW + 60}));
            assert!(matches!(refused, Err(TokenError::Malformed(_))), "{sub:?}");
        }
        // RFC 7519, 4.1.2: `sub` is a string.
        let number = verified(&json!({"sub": 17, "exp": NOW + 60}));
        assert_eq!(
            number,
            Err(TokenError::Malformed("its sub claim is not a string"))
        );
    }

    fn holder_by(claim: &str, mut claims: Value) -> Result<String, TokenError> {
        claims["sub"] = "user_1".into();
        claims["exp"] = (NOW + 60).into();
        let expected = Expected {
            holder_claim: Some(claim.to_owned()),
            ..Expected::default()
        };
        let user = verify(&keys(), &signed(&claims), &expected, NOW)?;
        assert_eq!(user.identity.subject.as_str(), "user_1");
        Ok(user.identity.holder.into())
    }

    #[test]
    fn the_configured_claim_determines_the_holder() {
        let org = || Ok("org_1".to_owned());
        assert_eq!(holder_by("org_id", json!({"org_id": "org_1"})), org());
        assert_eq!(holder_by("o.id", json!({"o": {"id": "org_1"}})), org());
        // A name with dots is first looked up as a name, then as a path.
        let url = "https://example.com/org";
        assert_eq!(holder_by(url, json!({url: "org_1"})), org());
    }

    #[test]
    fn the_holder_is_the_subject_without_an_organisation() {
        let own = || Ok("user_1".to_owned());
        for claim in ["org_id", "o.id", "sub", "org_id.", "."] {
            assert_eq!(holder_by(claim, json!({})), own(), "{claim}");
        }
        assert_eq!(holder_by("org_id", json!({"org_id": null})), own());
        assert_eq!(holder_by("o.id", json!({"o": "flat"})), own());
    }

    #[test]
    fn a_token_with_an_invalid_organisation_is_refused() {
        for org in [
            json!(""),
            json!("a\0"),
            json!("a".repeat(256)),
            json!(17),
            json!({}),
        ] {
            let refused = holder_by("org_id", json!({"org_id": org}));
            assert!(matches!(refused, Err(TokenError::Malformed(_))), "{org}");
        }
    }

    #[test]
    fn issuer_and_audience_are_enforced_when_expected() {
        let expected = Expected {
            issuer: Some("https://id.test".into()),
            audiences: Some(vec!["other-api".into(), "weir".into()]),
            ..Expected::default()
        };
        let at = |claims: serde_json::Value| verify(&keys(), &signed(&claims), &expected, NOW);
        let exp = NOW + 60;
        assert!(at(json!({"sub": USER, "exp": exp, "iss": "https://id.test", "aud": "weir"})).is_ok());
        assert!(at(json!({"sub": USER, "exp": exp, "iss": "https://id.test", "aud": ["x", "weir"]})).is_ok());
        for claims in [
            json!({"sub": USER, "exp": exp}),
            json!({"sub": USER, "exp": exp, "iss": "https://id.test"}),
            json!({"sub": USER, "exp": exp, "iss": "https://other.test", "aud": "weir"}),
            json!({"sub": USER, "exp": exp, "iss": "https://id.test", "aud": ["other"]}),
        ] {
            assert_eq!(at(claims), Err(TokenError::WrongIssuerOrAudience));
        }
    }

    #[test]
    fn required_claims_have_a_name_and_a_value() {
        let claim = |name: &str, value: &str| {
            Ok(RequiredClaim {
                name: name.to_owned(),
                value: value.to_owned(),
            })
        };
        assert_eq!("token_use=access".parse(), claim("token_use", "access"));
        assert_eq!(" a.b = c=d ".parse(), claim("a.b", "c=d"));
        for text in ["", "access", "=access", "token_use=", " = "] {
            let wrong = Err(RequiredClaimError(text.to_owned()));
            assert_eq!(text.parse::<RequiredClaim>(), wrong);
        }
    }

    #[test]
    fn a_required_claim_may_be_a_boolean_or_a_number() {
        let with = |required: &str, value: Value| {
            let expected = Expected {
                claims: vec![required.parse().unwrap()],
                ..Expected::default()
            };
            let claims = json!({"sub": USER, "exp": NOW + 60, "a": value});
            verify(&keys(), &signed(&claims), &expected, NOW).is_ok()
        };
        assert!(with("a=true", json!(true)) && with("a=5", json!(5)) && with("a=5", json!(["x", 5])));
        assert!(!with("a=true", json!(false)) && !with("a=5", json!(50)) && !with("a=5", json!({"a": 5})));
    }

    #[test]
    fn another_secret_and_another_algorithm_are_refused() {
        let claims = json!({"sub": USER, "exp": NOW + 60});
        let other = EncodingKey::from_secret(&[9; 32]);
        let token =
            jsonwebtoken::encode(&Header::new(jsonwebtoken::Algorithm::HS256), &claims, &other).unwrap();
        assert_eq!(
            verify(&keys(), &token, &Expected::default(), NOW),
            Err(TokenError::BadSignature)
        );
        let token = jsonwebtoken::encode(
            &Header::new(jsonwebtoken::Algorithm::HS512),
            &claims,
            &EncodingKey::from_secret(SECRET),
        )
        .unwrap();
        assert_eq!(
            verify(&keys(), &token, &Expected::default(), NOW),
            Err(TokenError::UnknownKey)
        );
        // {"alg":"none"} with an empty signature.
        assert!(verify(&keys(), "eyJhbGciOiJub25lIn0.e30.", &Expected::default(), NOW).is_err());
    }

    #[test]
    fn a_token_with_critical_extensions_is_refused() {
        let mut header = Header::new(jsonwebtoken::Algorithm::HS256);
        header.crit = Some(vec!["b64".into()]);
        let claims = json!({"sub": USER, "exp": NOW + 60});
        let token = jsonwebtoken::encode(&header, &claims, &EncodingKey::from_secret(SECRET)).unwrap();
        assert!(matches!(
            verify(&keys(), &token, &Expected::default(), NOW),
            Err(TokenError::Malformed(_))
        ));
    }

    #[test]
    fn an_oversized_token_is_refused_before_decoding() {
        let token = "a".repeat(MAX_BYTES + 1);
        assert_eq!(
            verify(&keys(), &token, &Expected::default(), NOW),
            Err(TokenError::TooLong)
        );
        assert!(matches!(
            verify(&keys(), &token[1..], &Expected::default(), NOW),
            Err(TokenError::Malformed(_))
        ));
    }

    #[test]
    fn tokens_are_not_valid_without_keys() {
        let token = signed(&json!({"sub": USER, "exp": NOW + 60}));
        assert!(Keys::default().is_empty() && !keys().is_empty());
        assert_eq!(
            verify(&Keys::default(), &token, &Expected::default(), NOW),
            Err(TokenError::UnknownKey)
        );
    }

    /// An RSA, a P-256 and an Ed25519 public key, a symmetric one, one for encryption and one of an unknown kind.
    const JWKS: &str = include_str!("../tests/fixtures/jwks.json");
    /// Tokens for USER, signed with the private keys, valid until the year 2100.
    const JWKS_TOKENS: &str = include_str!("../tests/fixtures/jwks_tokens.json");

    fn jwks_token(name: &str) -> String {
        serde_json::from_str::<serde_json::Value>(JWKS_TOKENS).unwrap()[name]
            .as_str()
            .unwrap()
            .to_owned()
    }

    #[test]
    fn a_key_set_verifies_eddsa_es256_and_rs256() {
        let keys = Keys::from_jwks(JWKS).unwrap();
        for name in ["EdDSA", "ES256", "RS256"] {
            let user = verify(&keys, &jwks_token(name), &Expected::default(), NOW);
            assert_eq!(subject_of(user), USER, "{name}");
        }
    }

    #[test]
    fn symmetric_keys_in_a_key_set_are_ignored() {
        let keys = Keys::from_jwks(JWKS).unwrap();
        assert_eq!(
            verify(&keys, &jwks_token("HS256"), &Expected::default(), NOW),
            Err(TokenError::UnknownKey)
        );
        assert_eq!(
            Keys::from_jwks(r#"{"keys":[{"kty":"oct","k":"AAAA"}]}"#).unwrap_err(),
            KeyError::NoUsableKey("oct".to_owned())
        );
    }

    #[test]
    fn a_short_secret_is_refused() {
        let error = KeyError::TooShort(SecretTooShort { got: 31 });
        assert_eq!(Keys::from_secret(&[7; 31]).unwrap_err(), error);
    }

    #[test]
    fn keys_on_unsupported_curves_are_ignored() {
        for (key, kind) in [
            (
                json!({"kty": "EC", "crv": "P-521", "alg": "ES512", "x": "AQ", "y": "AQ"}),
                "EC P-521 ES512",
            ),
            (json!({"kty": "OKP", "crv": "P-256", "x": "AQ"}), "OKP P-256"),
        ] {
            let set = json!({ "keys": [key] }).to_string();
            let error = KeyError::NoUsableKey(kind.to_owned());
            assert_eq!(Keys::from_jwks(&set).unwrap_err(), error, "{set}");
        }
        let none = KeyError::NoUsableKey("no keys".to_owned());
        assert_eq!(Keys::from_jwks(r#"{"keys":[]}"#).unwrap_err(), none);
    }

    #[test]
    fn keys_verify_their_declared_algorithm_or_their_family() {
        let set: serde_json::Value = serde_json::from_str(JWKS).unwrap();
        let algorithms = |kty: &str, alg: Option<&str>| {
            let keys = set["keys"].as_array().unwrap();
            let mut key = keys.iter().find(|key| key["kty"] == kty).unwrap().clone();
            match alg {
                Some(alg) => key["alg"] = alg.into(),
                None => drop(key.as_object_mut().unwrap().remove("alg")),
            }
            let keys = Keys::from_jwks(&json!({"keys": [key]}).to_string());
            keys.map(|keys| keys.0[0].algorithms.to_vec()).unwrap_or_default()
        };
        assert_eq!(algorithms("RSA", None).len(), 6);
        assert_eq!(algorithms("RSA", Some("PS256")), [Algorithm::PS256]);
        assert_eq!(algorithms("RSA", Some("RS512")), [Algorithm::RS512]);
        assert_eq!(algorithms("EC", None), [Algorithm::ES256]);
        for (kty, alg) in [
            ("RSA", "ES256"),
            ("RSA", "RSA-OAEP"),
            ("EC", "ES384"),
            ("OKP", "HS256"),
            ("RSA", "HS256"),
        ] {
            assert_eq!(algorithms(kty, Some(alg)), [], "{kty} {alg}");
        }
    }

    /// A token that no key has signed.
    fn unsigned(header: &serde_json::Value, claims: &serde_json::Value) -> String {
        let part = |value: &serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}.AAAA", part(header), part(claims))
    }

    #[test]
    fn only_tokens_that_newer_keys_could_verify_cause_a_refetch() {
        let may = |alg: &str, mut claims: serde_json::Value| {
            claims["sub"] = USER.into();
            let token = unsigned(&json!({"alg": alg, "kid": "new"}), &claims);
            may_be_valid_with_newer_keys(&token, &Expected::default(), NOW - 100, NOW)
        };
        let exp = NOW + 60;
        assert!(may("RS256", json!({"exp": exp})));
        assert!(may("EdDSA", json!({"exp": exp, "iat": NOW})));
        assert!(may(
            "ES384",
            json!({"exp": exp, "iat": NOW - 100 - LEEWAY_SECS + 1})
        ));
        assert!(
            !may("RS256", json!({"exp": exp, "iat": NOW - 100 - LEEWAY_SECS})),
            "it is older"
        );
        assert!(!may("RS256", json!({"exp": NOW - 60})), "it has expired");
        assert!(!may("RS256", json!({})), "it never expires");
        assert!(!may("RS256", json!({"exp": exp, "iat": "now"})));
        assert!(!may("RS256", json!({"exp": exp, "token_use": "id"})));
        assert!(!may("HS256", json!({"exp": exp})), "no key set has its key");
        assert!(!may("ES512", json!({"exp": exp})));
        for text in ["", "a.b.c", "not a token"] {
            assert!(
                !may_be_valid_with_newer_keys(text, &Expected::default(), 0, NOW),
                "{text}"
            );
        }
    }

    #[test]
    fn unsupported_algorithms_are_refused_without_quoting_the_name() {
        let claims = json!({"sub": USER, "exp": NOW + 60});
        for alg in ["ES512", "none", "injected"] {
            let refused = verify(
                &keys(),
                &unsigned(&json!({"alg": alg}), &claims),
                &Expected::default(),
                NOW,
            );
            assert_eq!(
                refused,
                Err(TokenError::Malformed("its algorithm is not supported"))
            );
        }
    }

    #[test]
    fn encryption_keys_are_ignored() {
        let keys = Keys::from_jwks(JWKS).unwrap();
        assert_eq!(
            verify(&keys, &jwks_token("enc"), &Expected::default(), NOW),
            Err(TokenError::UnknownKey)
        );
    }

    #[test]
    fn a_public_key_used_as_hmac_secret_does_not_verify_tokens() {
        // Algorithm confusion: a token signed HS256 with the text of the public key.
        let claims = json!({"sub": USER, "exp": NOW + 60});
        let mut header = Header::new(jsonwebtoken::Algorithm::HS256);
        header.kid = Some("rsa-1".into());
        let token =
            jsonwebtoken::encode(&header, &claims, &EncodingKey::from_secret(JWKS.as_bytes())).unwrap();
        let keys = Keys::from_jwks(JWKS).unwrap();
        assert_eq!(
            verify(&keys, &token, &Expected::default(), NOW),
            Err(TokenError::UnknownKey)
        );
    }

    #[test]
    fn an_unknown_kid_is_an_unknown_key() {
        let keys = Keys::from_jwks(JWKS).unwrap();
        assert_eq!(
            verify(&keys, &jwks_token("unknown kid"), &Expected::default(), NOW),
            Err(TokenError::UnknownKey)
        );
    }

    #[test]
    fn a_token_without_kid_needs_exactly_one_key_of_its_algorithm() {
        let key = |id: &str, algorithms| VerifyingKey {
            id: Some(id.to_owned()),
            algorithms,
            material: Material::Public(String::new()),
        };
        let keys = Keys(vec![
            key("a", &[Algorithm::RS256]),
            key("b", &[Algorithm::ES256]),
            key("c", &[Algorithm::ES256]),
        ]);
        let ids = |kid, algorithm| -> Vec<_> {
            keys.of(kid, algorithm)
                .filter_map(|key| key.id.as_deref())
                .collect()
        };
        assert_eq!(ids(None, Algorithm::RS256), ["a"]);
        assert_eq!(ids(None, Algorithm::ES256), [""; 0]);
        assert_eq!(ids(Some("c"), Algorithm::ES256), ["c"]);
        assert_eq!(ids(Some("a"), Algorithm::ES256), [""; 0]);
    }

    #[test]
    fn debug_output_does_not_show_secrets() {
        assert_eq!(format!("{:?}", keys()), "[(None, [HS256])]");
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_refused_without_a_panic(token in "[ -~]{0,300}") {
            prop_assert!(verify(&keys(), &token, &Expected::default(), NOW).is_err());
        }

        #[test]
        fn arbitrary_claims_with_a_valid_signature_do_not_panic(
            sub in ".{0,60}", exp in any::<f64>(), nbf in any::<i64>(),
        ) {
            let _ = verified(&json!({"sub": sub, "exp": exp, "nbf": nbf}));
        }

        #[test]
        fn arbitrary_text_is_not_a_key_set(json in "[ -~]{0,200}") {
            prop_assert!(Keys::from_jwks(&json).is_err());
        }
    }
}
