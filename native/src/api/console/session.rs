//! Signing in to the console from another machine, with a service key of scope `admin`.
//!
//! A session ends when its key is revoked or expires.

use std::sync::Arc;

use axum::Form;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use jiff::{SignedDuration, Timestamp};
use maud::html;
use serde::Deserialize;
use weir_ledger::control::{self, Scope};
use weir_ledger::database::DatabaseError;

use super::super::sessions::LIFETIME;
use super::super::state::Api;
use super::page::{self, ConsoleError, HEADERS};

/// The path of the form.
pub(super) const SIGN_IN: &str = "/console/sign-in";

/// A browser accepts a cookie with this prefix only over HTTPS, from this host, and without a domain.
const COOKIE: &str = "__Host-weir-console";

/// The name of the key that a request is signed in with.
pub(super) async fn signed_in(api: &Api, headers: &HeaderMap) -> Result<Option<String>, DatabaseError> {
    let cookies = headers.get_all(header::COOKIE).iter();
    let pairs = cookies
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'));
    let session = pairs
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, _)| *name == COOKIE);
    let key = session.and_then(|(_, session)| api.sessions.verify(session, Timestamp::now()));
    let Some(key) = key else { return Ok(None) };
    let is_valid = api
        .pool
        .with(async |client| Ok::<_, DatabaseError>(control::is_valid_key(client, &key).await?))
        .await?;
    Ok(is_valid.then_some(key))
}

/// Whether a valid key has the scope `admin`.
pub(super) async fn is_possible(api: &Api) -> Result<bool, DatabaseError> {
    api.pool
        .with(async |client| Ok(control::has_key(client, Scope::Admin).await?))
        .await
}

/// The form.
pub(super) async fn form() -> Response {
    form_with(None)
}

fn form_with(fault: Option<&str>) -> Response {
    let body = html! {
        @if let Some(fault) = fault { p.held { (fault) } }
        p { "Use a service key with the scope " code { "admin" } ": " code { "weir key create --name ANNE --scope admin" } "." }
        form action=(SIGN_IN) method="post" {
            label { "Service key " input type="password" name="key" required autocomplete="current-password"; }
            " " button { "Sign in" }
        }
    };
    let status = fault.map_or(StatusCode::OK, |_| StatusCode::FORBIDDEN);
    (status, page::page("Sign in", &body)).into_response()
}

#[derive(Deserialize)]
pub(super) struct Wanted {
    key: String,
}

pub(super) async fn sign_in(
    State(api): State<Arc<Api>>,
    Form(wanted): Form<Wanted>,
) -> Result<Response, ConsoleError> {
    let secret = wanted.key.trim().to_owned();
    let found = api
        .pool
        .with(async |client| Ok::<_, DatabaseError>(control::verify_key(client, &secret).await?))
        .await?;
    let key = match found {
        Ok(key) if key.may(Scope::Admin) => key,
        Ok(_) => return Ok(form_with(Some("This key lacks the scope admin."))),
        Err(refusal) => {
            // Slowly, as for every wrong key.
            drop(api.wrong_keys.refuse(refusal.as_str()).await);
            return Ok(form_with(Some("This key is not valid.")));
        }
    };
    let session = api.sessions.of(&key.name, Timestamp::now() + LIFETIME);
    let session = session.ok_or_else(|| ConsoleError::Broken("EDGE_SECRET is not set".to_owned()))?;
    tracing::info!(key = key.name, "signed in to the console");
    Ok(with_cookie(&session, LIFETIME, "/console"))
}

pub(super) async fn sign_out() -> Response {
    with_cookie("", SignedDuration::ZERO, SIGN_IN)
}

fn with_cookie(session: &str, age: SignedDuration, to: &str) -> Response {
    let cookie = format!(
        "{COOKIE}={session}; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age={}",
        age.as_secs()
    );
    ([(header::SET_COOKIE, cookie)], HEADERS, Redirect::to(to)).into_response()
}
