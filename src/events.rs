//! Events that operators need to know about. Each one is counted and logged as a line of JSON. With an Analytics Engine
//! data set bound as `METRICS`, it is also written as a data point.

use js_sys::{Array, Object, Reflect};
use serde_json::json;
use wasm_bindgen::JsValue;
use worker::{console_error, console_warn};

pub(crate) use weir_policy::counts::Event;

use crate::bindings::Bindings;
use crate::tally;

/// Reports an event, with the id of the request that caused it, if any. `detail` must not contain a client's address or
/// token: logs are kept longer than either.
pub(crate) fn report(bindings: &Bindings, event: Event, request_id: Option<&str>, detail: &str) {
    tally::count_event(event);
    let mut line = json!({"event": event.name(), "detail": detail});
    if let Some(id) = request_id {
        line["request_id"] = id.into();
    }
    match event {
        Event::ShadowDenial
        | Event::AddressUnknown
        | Event::ClientAborted
        | Event::ClientSlow
        | Event::ReportRejected => console_warn!("{line}"),
        _ => console_error!("{line}"),
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
