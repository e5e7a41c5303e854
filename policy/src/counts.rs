//! The edge's counts of its requests and events, and their reports to the origin, which exports them as metrics.
//! Isolates cannot be scraped: there are many of them, and they are started and evicted at any time.
//!
//! A report contains everything counted since the last one. It keeps its id and its numbers until the origin
//! acknowledges it, so that a repeated report differs from a new one. Each process of an origin counts a report once.
//! Two processes behind a load balancer may both count it, which is better than losing it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use strum::{EnumCount, IntoStaticStr, VariantArray};

/// The path of the origin that accepts reports. The edge never forwards a client's request to it.
pub const PATH: &str = "/api/edge/counts";

/// The longest report that is accepted, in bytes.
pub const MAX_BYTES: usize = 4096;

/// A claimed report may still be sent this long after the interval, in milliseconds. Then another request may claim it.
/// Cloudflare lets work run for this long after a request was answered.
const CLAIM_GRACE_MS: u64 = 30_000;

/// The outcome of a request at the edge. Each request has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum RequestOutcome {
    /// Anonymous, and forwarded.
    Anonymous,
    /// From an authenticated user, and forwarded.
    User,
    /// An anonymous submission over its limit: 429.
    Denied,
    /// Any other anonymous request over the looser limit: 429.
    DeniedRead,
    /// A user's submission over the users' limit: 429.
    DeniedUser,
    /// A bearer token that is not valid: 401, or 429 when its address has sent too many.
    BadToken,
    /// A token that could not be verified, because the issuer's key set was never fetched: 503.
    Unverifiable,
    /// A token that newer keys of the issuer might verify, while they may not be fetched yet: 503.
    UnknownKey,
    /// A submission that could not be counted: 503.
    Uncountable,
    /// An error in the edge itself: 500.
    Failed,
    /// Any other request that the edge answers itself: preflights, files of the page, unknown paths.
    Other,
}

impl RequestOutcome {
    /// All outcomes.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The name in reports, metrics and logs.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// An event that operators need to know about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Event {
    /// The counting object did not answer, so the native limiter decided.
    CounterUnavailable,
    /// The counting object has no room for more addresses. The native limiter decides on new ones.
    CounterFull,
    /// The native limiter did not answer either.
    LimiterUnavailable,
    /// A request that would have been denied, but the edge runs in shadow mode.
    ShadowDenial,
    /// No header had the client's address: all such requests share one count.
    AddressUnknown,
    /// The issuer's key set could not be fetched.
    KeySetUnavailable,
    /// A client disconnected while it sent a body.
    ClientAborted,
    /// A client took too long to send a body.
    ClientSlow,
    /// The connection to the origin failed.
    OriginUnreachable,
    /// The origin did not respond in time.
    OriginTimedOut,
    /// A Worker's own handler threw an error, or returned no response.
    HandlerFailed,
    /// The origin did not accept a report; it will be sent again.
    ReportRejected,
    /// The edge itself failed.
    #[strum(serialize = "internal_error")]
    Internal,
}

impl Event {
    /// All events.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The name in reports, metrics and logs.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Counts by name. An absent name is zero. Names are strings rather than enums, so that an origin accepts the report of
/// a newer edge and ignores unknown names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// By [`RequestOutcome`].
    #[serde(default)]
    pub requests: BTreeMap<String, u64>,
    /// By [`Event`].
    #[serde(default)]
    pub events: BTreeMap<String, u64>,
}

impl Counts {
    /// The number of requests with this outcome.
    pub fn of(&self, outcome: RequestOutcome) -> u64 {
        self.requests.get(outcome.name()).copied().unwrap_or(0)
    }

    /// The number of these events.
    pub fn event_count(&self, event: Event) -> u64 {
        self.events.get(event.name()).copied().unwrap_or(0)
    }
}

/// A report to the origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Identifies the report when it is repeated.
    pub id: String,
    /// Its numbers.
    pub counts: Counts,
}

/// The counts of one isolate that the origin has not acknowledged. Its size is fixed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    requests: [u64; RequestOutcome::COUNT],
    events: [u64; Event::COUNT],
    /// The report that was sent and is not acknowledged.
    sent: Option<Report>,
    /// The end of the current claim, in milliseconds since the Unix epoch.
    claimed_until: u64,
}

impl Tally {
    /// Counts a request.
    pub fn request(&mut self, outcome: RequestOutcome) {
        let count = &mut self.requests[outcome as usize];
        *count = count.saturating_add(1);
    }

    /// Counts an event.
    pub fn event(&mut self, event: Event) {
        let count = &mut self.events[event as usize];
        *count = count.saturating_add(1);
    }

    /// Whether the origin has acknowledged everything.
    pub fn is_empty(&self) -> bool {
        self.sent.is_none() && self.fresh().next().is_none()
    }

    fn fresh(&self) -> impl Iterator<Item = &u64> {
        self.requests
            .iter()
            .chain(&self.events)
            .filter(|count| **count > 0)
    }

    /// Claims the next report, to be sent `interval_ms` after `now_ms`. Returns false when there is nothing to report
    /// or another request has claimed it. After true, the caller must call [`Self::release_claim`] when it takes the
    /// report.
    pub fn claim(&mut self, now_ms: u64, interval_ms: u64) -> bool {
        // After the clock has jumped back, a claim must not last longer than usual.
        let claimed =
            now_ms < self.claimed_until && self.claimed_until <= now_ms + interval_ms + CLAIM_GRACE_MS;
        if claimed || self.is_empty() {
            return false;
        }
        self.claimed_until = now_ms + interval_ms + CLAIM_GRACE_MS;
        true
    }

    /// The report to send: the last one if it is not acknowledged, else the counts since then, with the id that `id`
    /// returns. `None` when there is nothing to report.
    pub fn report(&mut self, id: impl FnOnce() -> String) -> Option<Report> {
        if self.sent.is_none() && self.fresh().next().is_some() {
            self.sent = Some(Report {
                id: id(),
                counts: Counts {
                    requests: non_zero::<RequestOutcome>(&self.requests),
                    events: non_zero::<Event>(&self.events),
                },
            });
            (self.requests, self.events) = Default::default();
        }
        self.sent.clone()
    }

    /// Drops the report with this id, because the origin has accepted it.
    pub fn acknowledge(&mut self, id: &str) {
        // The response may arrive after another request has sent the same report, or the next one.
        self.sent.take_if(|sent| sent.id == id);
    }

    /// Ends the claim, whether or not the report was accepted.
    pub fn release_claim(&mut self) {
        self.claimed_until = 0;
    }
}

fn non_zero<T: VariantArray + Copy + Into<&'static str>>(counts: &[u64]) -> BTreeMap<String, u64> {
    let named = T::VARIANTS.iter().map(|&variant| variant.into()).zip(counts);
    named
        .filter(|(_, count)| **count > 0)
        .map(|(name, count): (&str, _)| (name.to_owned(), *count))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: u64 = 1_800_000_000_000;
    const EVERY: u64 = 10_000;

    fn with(outcomes: &[RequestOutcome]) -> Tally {
        let mut tally = Tally::default();
        for outcome in outcomes {
            tally.request(*outcome);
        }
        tally
    }

    #[test]
    fn without_counts_there_is_no_report() {
        let mut tally = Tally::default();
        assert!(!tally.claim(NOW, EVERY));
        assert_eq!(tally.report(|| "a".into()), None);
    }

    #[test]
    fn only_one_request_at_a_time_claims_a_report() {
        let mut tally = with(&[RequestOutcome::Denied]);
        assert!(tally.claim(NOW, EVERY));
        assert!(!tally.claim(NOW + EVERY, EVERY));
        tally.release_claim();
        assert!(
            tally.claim(NOW + EVERY, EVERY),
            "unacknowledged counts are reported again"
        );
    }

    #[test]
    fn a_claim_that_is_never_released_expires() {
        let mut tally = with(&[RequestOutcome::Denied]);
        assert!(tally.claim(NOW, EVERY));
        assert!(!tally.claim(NOW + EVERY + 29_999, EVERY));
        assert!(tally.claim(NOW + EVERY + 30_000, EVERY));
        let day = 24 * 60 * 60 * 1000;
        assert!(tally.claim(NOW - day, EVERY), "the clock has jumped back");
    }

    #[test]
    fn a_repeated_report_is_unchanged_and_later_counts_follow() {
        let mut tally = with(&[RequestOutcome::Denied, RequestOutcome::Denied]);
        tally.event(Event::ShadowDenial);
        let first = tally.report(|| "a".into()).unwrap();
        assert_eq!(
            (
                first.counts.of(RequestOutcome::Denied),
                first.counts.event_count(Event::ShadowDenial)
            ),
            (2, 1)
        );
        assert_eq!(first.counts.event_count(Event::Internal), 0);
        assert_eq!((first.counts.requests.len(), first.counts.events.len()), (1, 1));
        tally.request(RequestOutcome::User);
        assert_eq!(tally.report(|| "b".into()), Some(first));
        tally.acknowledge("b");
        assert!(
            tally.report(|| "b".into()).is_some_and(|report| report.id == "a"),
            "the acknowledgement of another report changes nothing"
        );
        tally.acknowledge("a");
        let second = tally.report(|| "b".into()).unwrap();
        assert_eq!(
            (
                second.counts.of(RequestOutcome::User),
                second.counts.of(RequestOutcome::Denied)
            ),
            (1, 0)
        );
        tally.acknowledge("b");
        assert!(tally.is_empty());
    }

    #[test]
    fn unknown_names_in_a_report_are_ignored() {
        let counts: Counts =
            serde_json::from_str(r#"{"requests":{"denied":3,"teleported":1},"moods":{}}"#).unwrap();
        assert_eq!(
            (counts.of(RequestOutcome::Denied), counts.of(RequestOutcome::User)),
            (3, 0)
        );
    }

    #[test]
    fn a_report_of_the_maximum_size_is_accepted() {
        let mut tally = Tally::default();
        (tally.requests, tally.events) = ([u64::MAX; RequestOutcome::COUNT], [u64::MAX; Event::COUNT]);
        tally.request(RequestOutcome::User);
        let report = tally.report(|| "a".into()).unwrap();
        assert!(serde_json::to_string(&report.counts).unwrap().len() < MAX_BYTES);
    }

    proptest! {
        /// Reports and responses may be lost in any order. Once everything is acknowledged, an origin that counts each
        /// id once has counted each request once.
        #[test]
        fn counts_are_not_lost_or_counted_twice(steps in proptest::collection::vec((0usize..8, 0u8..4), 1..200)) {
            let mut tally = Tally::default();
            let mut origin: BTreeMap<String, u64> = BTreeMap::new();
            let mut made = 0;
            let mut send = |tally: &mut Tally, arrives: bool, answered: bool| {
                made += 1;
                let Some(report) = tally.report(|| made.to_string()) else { return };
                if arrives {
                    origin.insert(report.id.clone(), report.counts.requests.values().sum());
                }
                if arrives && answered {
                    tally.acknowledge(&report.id);
                }
            };
            for (outcome, delivery) in &steps {
                tally.request(RequestOutcome::VARIANTS[*outcome]);
                if *delivery > 0 {
                    send(&mut tally, *delivery > 1, *delivery > 2);
                }
            }
            while !tally.is_empty() {
                send(&mut tally, true, true);
            }
            prop_assert_eq!(origin.values().sum::<u64>(), steps.len() as u64);
        }
    }
}
