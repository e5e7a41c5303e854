//! What the edge counted of its own work: it cannot be scraped, so it reports, and here its numbers become metrics.
//!
//! Not a route for clients: the edge forwards no request to it, and it believes only what the edge says in its own name.
//! It is not in the API's description, and is not logged or counted as a request: each isolate reports every ten seconds.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::request::Parts;
use metrics::counter;
use weir_policy::assertion;
use weir_policy::counts::{Counts, Event, RequestOutcome};

use super::caller::Asserted;
use super::{Api, ApiError};

/// How many reports are remembered, so that one that comes again is counted once: an hour of thirty isolates, or what a
/// thousand of them send in a hundred seconds.
const REMEMBERED: usize = 10_000;

/// The reports that were counted last.
#[derive(Debug, Default)]
pub struct Heard(Mutex<Latest>);

#[derive(Debug, Default)]
struct Latest {
    ids: HashSet<Arc<str>>,
    /// The same, oldest first.
    order: VecDeque<Arc<str>>,
}

impl Heard {
    /// Whether this is the first time that it is heard of.
    fn first(&self, id: &str) -> bool {
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let id: Arc<str> = id.into();
        if !latest.ids.insert(Arc::clone(&id)) {
            return false;
        }
        latest.order.push_back(id);
        if latest.order.len() > REMEMBERED
            && let Some(oldest) = latest.order.pop_front()
        {
            latest.ids.remove(&oldest);
        }
        true
    }
}

/// Takes a report.
pub(super) async fn counts(
    State(api): State<Arc<Api>>,
    parts: Parts,
    body: String,
) -> Result<StatusCode, ApiError> {
    let asserted = Asserted::of(&parts);
    let id = assertion::verify_own(
        &api.keys,
        asserted.token,
        asserted.method,
        asserted.path,
        asserted.now,
    )
    .map_err(|error| {
        tracing::warn!(%error, "refused a report of the edge's counts");
        ApiError::Unauthorized(error.to_string())
    })?;
    let counts: Counts =
        serde_json::from_str(&body).map_err(|error| ApiError::Malformed(error.to_string()))?;
    if api.heard.first(&id) {
        add(&counts);
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Adds a report to the metrics; an empty one lets them begin at zero.
pub(crate) fn add(counts: &Counts) {
    for &outcome in RequestOutcome::ALL {
        counter!("weir_edge_requests_total", "outcome" => outcome.name()).increment(counts.of(outcome));
    }
    for &event in Event::ALL {
        counter!("weir_edge_events_total", "event" => event.name()).increment(counts.of_event(event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_remembered_for_long_but_not_for_ever() {
        let heard = Heard::default();
        assert!(heard.first("0"));
        assert!(!heard.first("0"));
        for id in 1..=REMEMBERED {
            assert!(heard.first(&id.to_string()));
        }
        assert!(!heard.first(&REMEMBERED.to_string()));
        assert_eq!(heard.0.lock().unwrap().ids.len(), REMEMBERED);
        assert!(heard.first("0"), "forgotten by now");
    }
}
