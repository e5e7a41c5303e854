//! Counting what becomes of requests, and telling the origin, for its metrics.
//!
//! To count is to add one in the isolate's memory. The first request that finds something to tell takes it upon itself:
//! when it has been answered, it waits for as long as reports are apart and then sends one of all that was counted
//! until then. So an isolate reports at most that often, a flood of denials is told of though none of it is forwarded,
//! and nobody waits for a report. What an isolate has counted since its last report is lost when Cloudflare takes it out
//! of memory.

use std::cell::RefCell;
use std::rc::Rc;

use wasm_bindgen::JsValue;
use wasm_bindgen_futures::{JsFuture, future_to_promise};
use weir_policy::assertion;
use weir_policy::counts::{Event, Outcome, PATH, Report, Tally};

use crate::bindings::{Bindings, random_uuid};
use crate::clock;
use crate::config::Config;
use crate::events;
use crate::glue::{self, Changes};
use crate::panics;
use crate::wait::within;

/// How long the origin may take to take a report, in milliseconds.
const TIMEOUT_MS: u32 = 5_000;

thread_local! {
    static TALLY: Rc<RefCell<Tally>> = {
        let tally = Rc::new(RefCell::new(Tally::default()));
        panics::survive("counts", &tally);
        tally
    };
}

/// Counts something on a request's way.
pub(crate) fn event(event: Event) {
    TALLY.with(|tally| tally.borrow_mut().event(event));
}

/// Counts a request.
pub(crate) fn request(outcome: Outcome) {
    TALLY.with(|tally| tally.borrow_mut().request(outcome));
}

/// Counts the request that panicked. Others that were under way in the isolate end with it, uncounted.
pub(crate) fn panicked() {
    let _ = TALLY.try_with(|tally| {
        // Wherever it happened: here, too.
        let Ok(mut tally) = tally.try_borrow_mut() else {
            return;
        };
        tally.request(Outcome::Failed);
        tally.event(Event::Internal);
    });
}

/// Sees to it that what was counted is told. To be called once for each request, whose time after its answer it may use.
pub(crate) fn tell(bindings: &Bindings, config: &Rc<Config>) {
    let every_ms = config.report_interval_ms;
    let claimed = TALLY.with(|tally| tally.borrow_mut().claim(clock::now_ms(), u64::from(every_ms)));
    if !claimed {
        return;
    }
    let (bindings, config) = (bindings.clone(), Rc::clone(config));
    glue::wait_until(&future_to_promise(async move {
        let _ = JsFuture::from(glue::after(every_ms)).await;
        if let Some(report) = TALLY.with(|tally| tally.borrow_mut().report(random_uuid)) {
            match send(&config, &report).await {
                Ok(()) => TALLY.with(|tally| tally.borrow_mut().taken(&report.id)),
                Err(why) => events::report(&bindings, Event::CountsNotTaken, None, &why),
            }
        }
        TALLY.with(|tally| tally.borrow_mut().done());
        Ok(JsValue::UNDEFINED)
    }));
}

async fn send(config: &Config, report: &Report) -> Result<(), String> {
    let signed = assertion::sign_own(
        &config.assertion_key,
        "POST",
        PATH,
        &report.id,
        clock::now_ms() / 1000,
    );
    let mut headers = Changes::default();
    headers
        .set(assertion::HEADER, &signed.map_err(|error| error.to_string())?)
        .set("content-type", "application/json");
    let body = serde_json::to_string(&report.counts).map_err(|error| error.to_string())?;
    let sent = glue::post(&format!("{}{PATH}", config.origin), headers.packed(), &body);
    match within(sent, TIMEOUT_MS).await {
        Ok(status) if status.as_f64() == Some(204.0) => Ok(()),
        Ok(status) => Err(format!(
            "the origin answered {}",
            status.as_f64().unwrap_or_default()
        )),
        Err(reason) => Err(reason.reason()),
    }
}
