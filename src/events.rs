//! What operators must hear of: each event is counted (see `counts.rs`), is a line of JSON in the Worker's log and, where
//! an Analytics Engine data set is bound as `METRICS`, a data point.

use js_sys::{Array, Object, Reflect};
use serde_json::json;
use wasm_bindgen::JsValue;
use worker::{console_error, console_warn};

pub(crate) use weir_policy::counts::Event;

use crate::bindings::Bindings;
use crate::counts;

/// Reports an event, on the way of the request with this id if it was one's. `detail` must not name a client's address
/// or token: logs are kept longer than either.
pub(crate) fn report(bindings: &Bindings, event: Event, request_id: Option<&str>, detail: &str) {
    counts::event(event);
    let mut line = json!({"event": event.name(), "detail": detail});
    if let Some(id) = request_id {
        line["request_id"] = id.into();
    }
    match event {
        Event::ShadowDenial | Event::AddressUnknown | Event::CountsNotTaken => console_warn!("{line}"),
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
