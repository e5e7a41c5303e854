//! What the edge counts of its own work, and tells the origin, whose metrics an operator looks at: nobody can ask an
//! isolate, of which there are many and which come and go.
//!
//! What was counted since the last report makes the next one. A report keeps its id and its numbers until the origin
//! has said that it has them, so that one whose answer was lost can be told apart from a new one when it comes again.
//! One process of an origin counts it once; two of them behind a load balancer may each count it, as counting a report
//! twice is the lesser evil beside not counting it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where the origin takes reports: not for clients, whose requests the edge never forwards to it.
pub const PATH: &str = "/api/edge/counts";

/// The longest report that is read, in bytes.
pub const MAX_BYTES: usize = 4 * 1024;

/// How long a report may take beyond its interval, in milliseconds, until whoever was to send it is taken for lost: as
/// long as Cloudflare lets anything go on after its request was answered.
const GIVEN_UP_AFTER_MS: u64 = 30_000;

/// What the edge decided on a request: each request has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Anonymous, and forwarded.
    Anonymous,
    /// A user's, and forwarded.
    User,
    /// An anonymous submission over its limit: 429.
    Denied,
    /// Another anonymous request over the looser limit: 429.
    DeniedRead,
    /// A bearer token that is not valid: 401.
    BadToken,
    /// An anonymous submission that nothing could count: 503.
    Uncountable,
    /// An error of the edge's own: 500.
    Failed,
    /// Whatever else the edge answers by itself: preflights, files of the page, paths where nothing is.
    Other,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Anonymous,
        Self::User,
        Self::Denied,
        Self::DeniedRead,
        Self::BadToken,
        Self::Uncountable,
        Self::Failed,
        Self::Other,
    ];

    /// As reports, metrics and logs name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous",
            Self::User => "user",
            Self::Denied => "denied",
            Self::DeniedRead => "denied_read",
            Self::BadToken => "bad_token",
            Self::Uncountable => "uncountable",
            Self::Failed => "failed",
            Self::Other => "other",
        }
    }
}

/// Something on a request's way that operators must hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The counting object did not answer; the native limiter decides.
    CounterUnavailable,
    /// Neither did the native limiter.
    LimiterUnavailable,
    /// A request would have been denied, had the edge not run in shadow mode.
    ShadowDenial,
    /// No header named the client: all such requests share one count.
    AddressUnknown,
    /// The issuer's key set could not be fetched.
    KeySetUnavailable,
    /// The origin refused the connection or broke it off.
    OriginUnreachable,
    /// The origin did not begin its answer in time.
    OriginTimedOut,
    /// A report of these counts was not taken; its numbers come with the next one.
    CountsNotTaken,
    /// The edge's own error.
    Internal,
}

impl Event {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::CounterUnavailable,
        Self::LimiterUnavailable,
        Self::ShadowDenial,
        Self::AddressUnknown,
        Self::KeySetUnavailable,
        Self::OriginUnreachable,
        Self::OriginTimedOut,
        Self::CountsNotTaken,
        Self::Internal,
    ];

    /// As reports, metrics and logs name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::CounterUnavailable => "counter_unavailable",
            Self::LimiterUnavailable => "limiter_unavailable",
            Self::ShadowDenial => "shadow_denial",
            Self::AddressUnknown => "address_unknown",
            Self::KeySetUnavailable => "key_set_unavailable",
            Self::OriginUnreachable => "origin_unreachable",
            Self::OriginTimedOut => "origin_timed_out",
            Self::CountsNotTaken => "counts_not_taken",
            Self::Internal => "internal_error",
        }
    }
}

/// So many of each; what is not there is zero. Names rather than types, so that an origin can take a report of a newer
/// edge, and counts of it what it knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// By [`Outcome`].
    #[serde(default)]
    pub requests: BTreeMap<String, u64>,
    /// By [`Event`].
    #[serde(default)]
    pub events: BTreeMap<String, u64>,
}

impl Counts {
    /// How many requests had this outcome.
    pub fn of(&self, outcome: Outcome) -> u64 {
        self.requests.get(outcome.name()).copied().unwrap_or(0)
    }

    /// How often this happened.
    pub fn of_event(&self, event: Event) -> u64 {
        self.events.get(event.name()).copied().unwrap_or(0)
    }
}

/// Counts on their way to the origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Names it, so that a repetition can be told from another one.
    pub id: String,
    /// What it says.
    pub counts: Counts,
}

/// What one isolate has counted and the origin does not have yet. Of a fixed size, however long it takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    requests: [u64; Outcome::ALL.len()],
    events: [u64; Event::ALL.len()],
    /// What was sent and not taken yet.
    sent: Option<Report>,
    /// Until when somebody is on it; in milliseconds since the Unix epoch.
    claimed_until: u64,
}

impl Tally {
    /// Counts a request.
    pub fn request(&mut self, outcome: Outcome) {
        let count = &mut self.requests[outcome as usize];
        *count = count.saturating_add(1);
    }

    /// Counts something on a request's way.
    pub fn event(&mut self, event: Event) {
        let count = &mut self.events[event as usize];
        *count = count.saturating_add(1);
    }

    /// Whether there is nothing that the origin does not have.
    pub fn is_empty(&self) -> bool {
        self.sent.is_none() && self.fresh().next().is_none()
    }

    fn fresh(&self) -> impl Iterator<Item = &u64> {
        self.requests
            .iter()
            .chain(&self.events)
            .filter(|count| **count > 0)
    }

    /// Whether who asks is to send a report, in `every_ms` from `now_ms` on: when there is something to tell and nobody
    /// else is on it. Who is told so must call [`Self::done`] afterwards.
    pub fn claim(&mut self, now_ms: u64, every_ms: u64) -> bool {
        // A clock that has jumped back by a day must not end all reports.
        let taken =
            now_ms < self.claimed_until && self.claimed_until <= now_ms + every_ms + GIVEN_UP_AFTER_MS;
        if taken || self.is_empty() {
            return false;
        }
        self.claimed_until = now_ms + every_ms + GIVEN_UP_AFTER_MS;
        true
    }

    /// The report that is to be sent: the last one, if it was not taken, or else all that was counted since, under the id
    /// that is then asked for.
    pub fn report(&mut self, id: impl FnOnce() -> String) -> Option<Report> {
        if self.sent.is_none() && self.fresh().next().is_some() {
            let requests = Outcome::ALL.map(|outcome| (outcome.name(), self.requests[outcome as usize]));
            let events = Event::ALL.map(|event| (event.name(), self.events[event as usize]));
            (self.requests, self.events) = Default::default();
            self.sent = Some(Report {
                id: id(),
                counts: Counts {
                    requests: some(&requests),
                    events: some(&events),
                },
            });
        }
        self.sent.clone()
    }

    /// The report with this id was taken.
    pub fn taken(&mut self, id: &str) {
        // An answer may come after another request has sent the same report, or the next one.
        self.sent.take_if(|sent| sent.id == id);
    }

    /// Whoever had claimed the report has sent it, with whatever success.
    pub fn done(&mut self) {
        self.claimed_until = 0;
    }
}

fn some(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
    let counted = counts.iter().filter(|(_, count)| *count > 0);
    counted
        .map(|(name, count)| ((*name).to_owned(), *count))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: u64 = 1_800_000_000_000;
    const EVERY: u64 = 10_000;

    fn with(outcomes: &[Outcome]) -> Tally {
        let mut tally = Tally::default();
        for outcome in outcomes {
            tally.request(*outcome);
        }
        tally
    }

    #[test]
    fn who_has_nothing_to_tell_reports_nothing() {
        let mut tally = Tally::default();
        assert!(!tally.claim(NOW, EVERY));
        assert_eq!(tally.report(|| "a".into()), None);
    }

    #[test]
    fn one_at_a_time_reports() {
        let mut tally = with(&[Outcome::Denied]);
        assert!(tally.claim(NOW, EVERY));
        assert!(!tally.claim(NOW + EVERY, EVERY));
        tally.done();
        assert!(
            tally.claim(NOW + EVERY, EVERY),
            "what was not taken is still to be told"
        );
    }

    #[test]
    fn whoever_never_came_back_is_replaced() {
        let mut tally = with(&[Outcome::Denied]);
        assert!(tally.claim(NOW, EVERY));
        assert!(!tally.claim(NOW + EVERY + 29_999, EVERY));
        assert!(tally.claim(NOW + EVERY + 30_000, EVERY));
        let day = 24 * 60 * 60 * 1000;
        assert!(tally.claim(NOW - day, EVERY), "the clock has jumped back");
    }

    #[test]
    fn a_report_that_is_sent_again_is_the_same_and_what_came_since_follows() {
        let mut tally = with(&[Outcome::Denied, Outcome::Denied]);
        tally.event(Event::ShadowDenial);
        let first = tally.report(|| "a".into()).unwrap();
        assert_eq!(
            (
                first.counts.of(Outcome::Denied),
                first.counts.of_event(Event::ShadowDenial)
            ),
            (2, 1)
        );
        tally.request(Outcome::User);
        assert_eq!(tally.report(|| "b".into()), Some(first));
        tally.taken("b");
        assert!(
            tally.report(|| "b".into()).is_some_and(|report| report.id == "a"),
            "another's answer takes nothing"
        );
        tally.taken("a");
        let second = tally.report(|| "b".into()).unwrap();
        assert_eq!(
            (second.counts.of(Outcome::User), second.counts.of(Outcome::Denied)),
            (1, 0)
        );
        tally.taken("b");
        assert!(tally.is_empty());
    }

    #[test]
    fn a_report_is_read_by_an_origin_that_knows_other_names() {
        let counts: Counts =
            serde_json::from_str(r#"{"requests":{"denied":3,"teleported":1},"moods":{}}"#).unwrap();
        assert_eq!((counts.of(Outcome::Denied), counts.of(Outcome::User)), (3, 0));
    }

    #[test]
    fn the_longest_report_is_short_enough() {
        let mut tally = Tally::default();
        (tally.requests, tally.events) = ([u64::MAX; 8], [u64::MAX; 9]);
        tally.request(Outcome::User);
        let report = tally.report(|| "a".into()).unwrap();
        assert!(serde_json::to_string(&report.counts).unwrap().len() < MAX_BYTES);
    }

    proptest! {
        /// Whatever is lost on the way, and in whatever order answers come: once everything is taken, everything was
        /// reported, and who counts each id once counts each request once.
        #[test]
        fn nothing_is_lost_and_nothing_counted_twice(steps in proptest::collection::vec((0usize..8, 0u8..4), 1..200)) {
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
                    tally.taken(&report.id);
                }
            };
            for (outcome, fate) in &steps {
                tally.request(Outcome::ALL[*outcome]);
                if *fate > 0 {
                    send(&mut tally, *fate > 1, *fate > 2);
                }
            }
            while !tally.is_empty() {
                send(&mut tally, true, true);
            }
            prop_assert_eq!(origin.values().sum::<u64>(), steps.len() as u64);
        }
    }
}
