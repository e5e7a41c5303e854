//! What operators must hear of: each event is a line of JSON in the Worker's log and, where an Analytics Engine data
//! set is bound as `METRICS`, a data point.

use js_sys::{Array, Object, Reflect};
use serde_json::json;
use wasm_bindgen::JsValue;
use worker::{console_error, console_warn};

use crate::bindings::Bindings;

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
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
    /// The edge's own error.
    Internal,
}

impl Event {
    fn name(self) -> &'static str {
        match self {
            Self::CounterUnavailable => "counter_unavailable",
            Self::LimiterUnavailable => "limiter_unavailable",
            Self::ShadowDenial => "shadow_denial",
            Self::AddressUnknown => "address_unknown",
            Self::KeySetUnavailable => "key_set_unavailable",
            Self::OriginUnreachable => "origin_unreachable",
            Self::OriginTimedOut => "origin_timed_out",
            Self::Internal => "internal_error",
        }
    }
}

/// Reports an event. `detail` must not name a client's address or token: logs are kept longer than either.
pub(crate) fn report(bindings: &Bindings, event: Event, detail: &str) {
    let line = json!({"event": event.name(), "detail": detail}).to_string();
    match event {
        Event::ShadowDenial | Event::AddressUnknown => console_warn!("{line}"),
        _ => console_error!("{line}"),
    }
    if let Some(metrics) = bindings.metrics() {
        let point = Object::new();
        let name = Array::of1(&JsValue::from_str(event.name()));
        // A metric that cannot be written must not cost a request its answer; the log has the event.
        let _ = Reflect::set(&point, &"indexes".into(), &name);
        let _ = Reflect::set(&point, &"blobs".into(), &name);
        let _ = Reflect::set(&point, &"doubles".into(), &Array::of1(&JsValue::from_f64(1.0)));
        let _ = metrics.write_data_point(&point);
    }
}
