//! Service keys: authenticate backends that call the origin directly.

use axum::http::header;
use axum::http::request::Parts;
use weir_ledger::control::{self, KEY_PREFIX, Scope, ServiceKey};
use weir_ledger::database::DatabaseError;
use weir_policy::assertion;
use weir_policy::subject::{Identity, Subject};

use super::problem::ApiError;
use super::state::Api;

/// The user that a backend acts for.
pub(super) const ON_BEHALF_OF: &str = "weir-on-behalf-of";

/// The service key of a request, if its `Authorization` header has one.
pub(super) fn shown(parts: &Parts) -> Option<&str> {
    let value = parts.headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.trim().split_once(' ')?;
    let key = key.trim();
    (scheme.eq_ignore_ascii_case("bearer") && key.starts_with(KEY_PREFIX)).then_some(key)
}

/// Verifies the key of a request and its scope.
pub(super) async fn verified(api: &Api, parts: &Parts, scope: Scope) -> Result<ServiceKey, ApiError> {
    let values = parts.headers.get_all(header::AUTHORIZATION).iter().count();
    let secret = match shown(parts) {
        // Requests from the edge have no key. They name their caller in the assertion.
        Some(secret) if values == 1 && !parts.headers.contains_key(assertion::HEADER) => secret.to_owned(),
        Some(_) => return Err(api.wrong_keys.refuse("ambiguous").await),
        None => return Err(ApiError::NoKey),
    };
    let found = api
        .pool
        .with(async |client| Ok::<_, DatabaseError>(control::verify_key(client, &secret).await?))
        .await?;
    match found {
        Err(refusal) => Err(api.wrong_keys.refuse(refusal.as_str()).await),
        Ok(key) if key.may(scope) => Ok(key),
        Ok(key) => {
            metrics::counter!("weir_service_key_refusals_total", "reason" => "scope").increment(1);
            Err(ApiError::Forbidden(format!(
                "The key {} lacks the `{}` scope; create a key that has it with `weir key create`.",
                key.name,
                scope.as_str()
            )))
        }
    }
}

/// The user that a request with a key acts for.
pub(super) fn on_behalf_of(parts: &Parts) -> Result<Identity, ApiError> {
    let wants = |why: &str| {
        ApiError::Unprocessable(format!(
            "A service key acts for a user: send one header Weir-On-Behalf-Of with the user's subject ({why})."
        ))
    };
    let mut values = parts.headers.get_all(ON_BEHALF_OF).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(wants("it is missing or repeated"));
    };
    // Many HTTP clients send only ASCII in headers, but a subject can be any text.
    let text = percent_encoding::percent_decode(value.as_bytes())
        .decode_utf8()
        .map_err(|_| wants("it is not percent-encoded UTF-8"))?;
    let subject: Subject = text
        .parse()
        .map_err(|error: weir_policy::subject::SubjectError| wants(&error.to_string()))?;
    Ok(Identity::own(subject))
}
