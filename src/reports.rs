//! Reports the isolate's tally to the origin, which exports it as metrics.
//!
//! Counting adds one in the isolate's memory. The first request that finds unreported counts claims the report. After
//! its response, it waits for the report interval and then sends all counts so far. Counts that arrive during that
//! request go into the next report. So an isolate sends at most one report per interval, and no client waits for a
//! report. A flood of denials is fully reported although none of it is forwarded. When Cloudflare evicts the isolate,
//! the counts since the last report are lost.

use std::rc::Rc;

use wasm_bindgen::JsValue;
use wasm_bindgen_futures::{JsFuture, future_to_promise};
use weir_policy::assertion;
use weir_policy::counts::{Event, PATH, Report};

use crate::bindings::{Bindings, random_uuid};
use crate::clock;
use crate::config::Config;
use crate::events;
use crate::glue::{self, HeaderChanges};
use crate::origin::Origin;
use crate::tally;
use crate::timeout::with_timeout;

/// The maximum time for the origin to accept a report, in milliseconds.
const TIMEOUT_MS: u32 = 5_000;

/// Schedules a report if there are counts to report and no other request has claimed them. Call it once per request;
/// the report is sent in the time that the request has left after its response.
pub(crate) fn schedule(bindings: &Bindings, config: &Rc<Config>) {
    // A service is not Weir's origin.
    let Some(Origin::Url { base, .. }) = &config.default_origin else {
        return;
    };
    let url = format!("{base}{PATH}");
    let interval_ms = config.report_interval_ms;
    if !tally::with(|tally| tally.claim(clock::now_ms(), u64::from(interval_ms))) {
        return;
    }
    let (bindings, config) = (bindings.clone(), Rc::clone(config));
    glue::wait_until(&future_to_promise(async move {
        let _ = JsFuture::from(glue::sleep(interval_ms)).await;
        let report = tally::with(|tally| {
            // Later counts go into the next report, which another request claims.
            tally.release_claim();
            tally.report(random_uuid)
        });
        if let Some(report) = report {
            match send(&config, &url, &report).await {
                Ok(()) => tally::with(|tally| tally.acknowledge(&report.id)),
                Err(reason) => events::report(&bindings, Event::ReportRejected, None, &reason),
            }
        }
        Ok(JsValue::UNDEFINED)
    }));
}

async fn send(config: &Config, url: &str, report: &Report) -> Result<(), String> {
    let signed = assertion::sign_own(
        &config.assertion_key,
        "POST",
        PATH,
        &report.id,
        clock::now_ms() / 1000,
    );
    let mut headers = HeaderChanges::default();
    headers
        .set(assertion::HEADER, &signed.map_err(|error| error.to_string())?)
        .set("content-type", "application/json");
    let body = serde_json::to_string(&report.counts).map_err(|error| error.to_string())?;
    let sent = glue::post(url, headers.packed(), &body);
    match with_timeout(sent, TIMEOUT_MS).await {
        Ok(status) if status.as_f64() == Some(204.0) => Ok(()),
        Ok(status) => Err(format!(
            "the origin answered {}",
            status.as_f64().unwrap_or_default()
        )),
        Err(error) => Err(error.reason()),
    }
}
