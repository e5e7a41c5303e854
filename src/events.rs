//! Events that operators need to know about. Each one is counted and logged as a line of JSON. With an Analytics Engine
//! data set bound as `METRICS`, it is also written as a data point.
//!
//! An outage causes the same event at every request. An isolate logs it at most once a second, with the number of
//! events that it has not logged since.

use std::cell::RefCell;
use std::collections::BTreeMap;

use js_sys::{Array, Object, Reflect};
use serde_json::json;
use wasm_bindgen::JsValue;
use worker::{console_error, console_warn};

pub(crate) use weir_policy::counts::Event;

use crate::bindings::Bindings;
use crate::clock;
use crate::tally;

/// The shortest time between two lines of the same event and detail, in milliseconds.
const LOG_INTERVAL_MS: u64 = 1_000;

/// The maximum number of details that an isolate remembers. Some contain the error of an origin.
const MAX_REMEMBERED: usize = 100;

thread_local! {
    static LOGGED: RefCell<Logged> = const { RefCell::new(Logged(BTreeMap::new())) };
}

/// When each event and detail was last logged, and how often it happened since.
struct Logged(BTreeMap<(&'static str, String), (u64, u32)>);

impl Logged {
    /// Whether to log an event now, and the number of equal ones that were not logged.
    fn due(&mut self, event: &'static str, detail: &str, now_ms: u64) -> Option<u32> {
        let key = (event, detail.to_owned());
        if let Some((logged_at, skipped)) = self.0.get_mut(&key) {
            // After the clock has jumped back, the next event is logged.
            if (*logged_at..*logged_at + LOG_INTERVAL_MS).contains(&now_ms) {
                *skipped = skipped.saturating_add(1);
                return None;
            }
            *logged_at = now_ms;
            return Some(std::mem::take(skipped));
        }
        if self.0.len() >= MAX_REMEMBERED {
            self.0.clear();
        }
        self.0.insert(key, (now_ms, 0));
        Some(0)
    }
}

/// Reports an event, with the id of the request that caused it, if any. `detail` must not contain a client's address or
/// token: logs are kept longer than either.
pub(crate) fn report(bindings: &Bindings, event: Event, request_id: Option<&str>, detail: &str) {
    tally::count_event(event);
    // Each error of a Worker's own handler has a line, because its client gets the id of the request.
    let skipped = match event {
        Event::HandlerFailed => Some(0),
        _ => LOGGED.with_borrow_mut(|logged| logged.due(event.name(), detail, clock::now_ms())),
    };
    if let Some(skipped) = skipped {
        log(event, request_id, detail, skipped);
    }
    if let Some(metrics) = bindings.metrics() {
        let point = Object::new();
        let name = Array::of1(&JsValue::from_str(event.name()));
        // A metric that cannot be written must not fail the request; the event is in the log.
        let _ = Reflect::set(&point, &"indexes".into(), &name);
        let _ = Reflect::set(&point, &"blobs".into(), &name);
        let _ = Reflect::set(&point, &"doubles".into(), &Array::of1(&JsValue::from_f64(1.0)));
        let _ = metrics.write_data_point(&point);
    }
}

fn log(event: Event, request_id: Option<&str>, detail: &str, skipped: u32) {
    let mut line = json!({"event": event.name(), "detail": detail});
    if let Some(id) = request_id {
        line["request_id"] = id.into();
    }
    if skipped > 0 {
        line["not_logged"] = skipped.into();
    }
    match event {
        Event::ShadowDenial
        | Event::AddressUnknown
        | Event::ClientAborted
        | Event::ClientSlow
        | Event::ReportRejected => console_warn!("{line}"),
        _ => console_error!("{line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_logged_once_a_second_with_the_number_of_others() {
        let mut logged = Logged(BTreeMap::new());
        let mut due = |detail, now| logged.due("counter_unavailable", detail, now);
        assert_eq!(due("timed out", 5_000), Some(0));
        assert_eq!((due("timed out", 5_000), due("timed out", 5_999)), (None, None));
        assert_eq!(due("broken", 5_999), Some(0), "another detail");
        assert_eq!(due("timed out", 6_000), Some(2));
        assert_eq!(due("timed out", 7_000), Some(0));
        assert_eq!(due("timed out", 1_000), Some(0), "the clock has jumped back");
    }

    #[test]
    fn a_flood_of_details_does_not_fill_the_memory() {
        let mut logged = Logged(BTreeMap::new());
        for n in 0..1_000 {
            assert_eq!(logged.due("origin_unreachable", &n.to_string(), 5_000), Some(0));
        }
        assert!(logged.0.len() <= MAX_REMEMBERED);
    }
}
