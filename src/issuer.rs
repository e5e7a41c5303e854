//! The issuers of users' tokens.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use weir_policy::namespace::Namespace;
use weir_policy::subject::Identity;
use weir_policy::token::{self, Expected, Keys, RequiredClaim, RequiredClaimError, TokenError, User};

use crate::settings::{SECRETS, SETTINGS, texts_of};
use crate::url;

/// An issuer, and the requirements for its tokens.
#[derive(Debug)]
pub(crate) struct Issuer {
    /// The key of the shared secret, if there is one.
    pub(crate) keys: Keys,
    /// The URL of the issuer's key set, if there is one.
    pub(crate) jwks_url: Option<String>,
    /// The claims that a token must have.
    pub(crate) expected: Expected,
    /// The names of its users. The first issuer has none.
    pub(crate) namespace: Option<Namespace>,
}

/// All issuers.
#[derive(Debug)]
pub(crate) struct Issuers {
    pub(crate) first: Issuer,
    pub(crate) others: Vec<Issuer>,
}

impl Issuers {
    /// The issuer that must have signed this token.
    pub(crate) fn of(&self, token: &str) -> &Issuer {
        if self.others.is_empty() {
            return &self.first;
        }
        let claimed = token::claimed_issuer(token);
        self.others
            .iter()
            .find(|other| claimed.is_some() && other.expected.issuer == claimed)
            .unwrap_or(&self.first)
    }

    /// The namespace of a user; `None` for users of the first issuer.
    pub(crate) fn namespace_of(&self, identity: &Identity) -> Option<&Namespace> {
        self.others
            .iter()
            .filter_map(|other| other.namespace.as_ref())
            .find(|namespace| namespace.has(identity))
    }

    /// The user of an issuer's verified token, with the names that user and holder have here.
    ///
    /// # Errors
    /// When a name is too long, or belongs to another issuer.
    pub(crate) fn named(&self, issuer: &Issuer, user: User) -> Result<User, TokenError> {
        let identity = match &issuer.namespace {
            Some(namespace) => namespace
                .identity(&user.identity)
                .map_err(|_| TokenError::Malformed("its subject is too long together with its issuer"))?,
            None => {
                if self.namespace_of(&user.identity).is_some() {
                    return Err(TokenError::Malformed("its subject belongs to another issuer"));
                }
                user.identity
            }
        };
        Ok(User { identity, ..user })
    }
}

/// Whether a claim cannot name a holder: registered claims other than `sub` do not identify a user.
pub(crate) fn is_not_a_holder_claim(claim: &str) -> bool {
    ["iss", "aud", "exp", "nbf", "iat", "jti"].contains(&claim)
}

/// The members of an issuer in [`from_json`].
const MEMBERS: [&str; 6] = [
    "issuer",
    "jwks_url",
    "secret",
    "audience",
    "required_claims",
    "holder_claim",
];

/// Reads the issuers other than the first from a JSON array of objects. `name` is that of the setting. `secret` returns
/// the secret of this name.
///
/// # Errors
/// All errors, each with the path of the faulty member.
// Isolates compile whole functions, and need this one only if the setting is set.
#[inline(never)]
pub(crate) fn from_json(
    name: &str,
    json: &Value,
    first: &Issuer,
    secret: impl Fn(&str) -> Option<String>,
) -> Result<Vec<Issuer>, Vec<String>> {
    let Value::Array(items) = json else {
        return Err(vec![format!(
            "{name}: expected a list, such as [{{\"issuer\": \"https://b.example\", \"jwks_url\": \"https://b.example/jwks\"}}]"
        )]);
    };
    let mut errors = Vec::new();
    if first.expected.issuer.is_none() {
        errors.push(format!(
            "JWT_ISSUER is not set; with {name}, it names the first issuer"
        ));
    }
    let mut taken = Taken {
        namespaces: first
            .expected
            .issuer
            .iter()
            .map(|issuer| Namespace::of(issuer))
            .collect(),
        secrets: SECRETS.into_iter().filter_map(&secret).collect(),
    };
    let mut issuers = Vec::new();
    for (place, item) in items.iter().enumerate() {
        let mut fail = |error: &str| errors.push(format!("{name}[{place}]{error}"));
        let Value::Object(members) = item else {
            fail(": expected an object with `issuer`, and `jwks_url` or `secret`");
            continue;
        };
        for member in members
            .keys()
            .filter(|member| !MEMBERS.contains(&member.as_str()))
        {
            fail(&format!(".{member}: expected one of {}", MEMBERS.join(", ")));
        }
        let keys = keys(members, &secret, &mut taken, &mut fail);
        let jwks_url = text(members, "jwks_url", &mut fail);
        if let Some(Err(error)) = jwks_url.as_deref().map(url::parse_trusted) {
            fail(&format!(".jwks_url: {error}"));
        }
        if !members.contains_key("jwks_url") && !members.contains_key("secret") {
            fail(": it has neither jwks_url nor secret; expected one to verify its tokens");
        }
        let expected = expected(members, &first.expected, &mut taken, &mut fail);
        issuers.push(Issuer {
            keys,
            jwks_url,
            namespace: expected.issuer.as_deref().map(Namespace::of),
            expected,
        });
    }
    if errors.is_empty() {
        Ok(issuers)
    } else {
        Err(errors)
    }
}

/// Names and secrets that an issuer must not share with another one.
struct Taken {
    namespaces: Vec<Namespace>,
    /// With one secret, an issuer could sign tokens of another one.
    secrets: BTreeSet<String>,
}

/// The key of an issuer's secret.
fn keys(
    members: &Map<String, Value>,
    secret: impl Fn(&str) -> Option<String>,
    taken: &mut Taken,
    fail: &mut impl FnMut(&str),
) -> Keys {
    let Some(named) = text(members, "secret", fail) else {
        return Keys::default();
    };
    if SETTINGS.contains(&named.as_str()) && !SECRETS.contains(&named.as_str()) {
        fail(".secret: this is a plain variable, which others can read; expected the name of a secret");
        return Keys::default();
    }
    let Some(secret) = secret(&named) else {
        fail(".secret: there is no secret with this name; add it with `wrangler secret put`");
        return Keys::default();
    };
    let keys = Keys::from_secret(secret.as_bytes());
    if !taken.secrets.insert(secret) {
        fail(".secret: it is also used elsewhere; expected a secret that only this issuer uses");
    }
    keys.unwrap_or_else(|error| {
        fail(&format!(".secret: {error}"));
        Keys::default()
    })
}

/// The required claims in these texts, each with one or several, separated by commas.
pub(crate) fn required_claims(
    texts: &[String],
) -> impl Iterator<Item = Result<RequiredClaim, RequiredClaimError>> {
    texts.iter().flat_map(|text| text.split(',')).map(str::parse)
}

/// The claims that an issuer's tokens must have.
fn expected(
    members: &Map<String, Value>,
    first: &Expected,
    taken: &mut Taken,
    fail: &mut impl FnMut(&str),
) -> Expected {
    let issuer = text(members, "issuer", fail);
    if !members.contains_key("issuer") {
        fail(".issuer: expected the `iss` claim of its tokens");
    }
    if issuer.as_deref().is_some_and(|issuer| !issuer.contains("://")) {
        // The first issuer may have users such as `auth0|17`.
        fail(".issuer: expected a URL, which no subject of the first issuer starts with");
    }
    if let Some(namespace) = issuer.as_deref().map(Namespace::of) {
        if taken.namespaces.iter().any(|other| other.overlaps(&namespace)) {
            fail(".issuer: another issuer has this name, or one that starts with it and `|`");
        }
        taken.namespaces.push(namespace);
    }
    let holder_claim = text(members, "holder_claim", fail).filter(|claim| claim != "sub");
    if holder_claim.as_deref().is_some_and(is_not_a_holder_claim) {
        fail(".holder_claim: expected the claim that names an organisation, such as `org_id`");
    }
    let mut claims: Vec<RequiredClaim> = Vec::new();
    for claim in required_claims(&texts(members, "required_claims", fail).unwrap_or_default()) {
        match claim {
            Ok(claim) => claims.push(claim),
            Err(error) => fail(&format!(".required_claims: {error}")),
        }
    }
    Expected {
        issuer,
        audiences: texts(members, "audience", fail),
        claims,
        holder_claim,
        kept_claims: first.kept_claims.clone(),
    }
}

/// A member that is a text, if it is set.
fn text(members: &Map<String, Value>, name: &str, fail: &mut impl FnMut(&str)) -> Option<String> {
    let value = members.get(name)?;
    let text = value.as_str().map(str::trim).filter(|text| !text.is_empty());
    if text.is_none() {
        fail(&format!(".{name}: expected a string"));
    }
    text.map(str::to_owned)
}

/// A field that is a string or a list of strings, if it is set.
fn texts(members: &Map<String, Value>, name: &str, fail: &mut impl FnMut(&str)) -> Option<Vec<String>> {
    let value = members.get(name)?;
    let texts = texts_of(value).filter(|texts| texts.first().is_some_and(|text| !text.is_empty()));
    if texts.is_none() {
        fail(&format!(".{name}: expected a string or a list of strings"));
    }
    texts
}
