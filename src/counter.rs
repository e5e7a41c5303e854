//! The Durable Object that counts submissions: each one holds the counts of many addresses in memory.
//!
//! All counts are written as one value, at the times that [`weir_policy::purse`] says: in quiet times before a request is
//! answered, since the runtime holds an answer back until what was written before it is safe; in busy times a moment
//! later, or by an alarm. A write holds all counts, so requests share its cost. Denials change nothing and cause no
//! write at all. When the last window is over, the alarm deletes everything, so that no address leaves anything behind.
//!
//! A crash or a deployment may take what was counted in busy times' last seconds; the isolates, which remember what they
//! were told, bring it along with their next request (see [`weir_policy::window::Seen`]).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use js_sys::Uint8Array;
use serde_json::json;
use wasm_bindgen::prelude::*;
use weir_policy::address::AddressKey;
use weir_policy::purse::{LATEST_MS, Purse, Write};
use weir_policy::window::{Counters, Seen};
use worker::worker_sys::DurableObjectState;
use worker::{State, console_error};

use crate::bindings::{Bindings, ObjectStorage, Values};
use crate::clock;
use crate::config::Config;
use crate::panics;
use crate::wait::message;

/// The one value that an object writes.
const SNAPSHOT: &str = "snapshot";

/// See the module.
#[wasm_bindgen]
pub struct AddressCounter {
    state: State,
    counters: Rc<RefCell<Counters>>,
    purse: RefCell<Purse>,
    /// Whether there are counts that are not written.
    dirty: Cell<bool>,
    /// Whether [`AddressCounter::settle`] is to be called.
    planned: Cell<bool>,
    /// When the pending alarm goes off, in milliseconds since the epoch; 0 when there is none.
    alarm_at: Cell<u64>,
    latest_ms: Cell<u64>,
    calls: Cell<u32>,
    rows_written: Cell<u32>,
}

#[wasm_bindgen]
impl AddressCounter {
    /// Made by the runtime when the object is first called, and again after each eviction.
    #[wasm_bindgen(constructor)]
    pub fn new(state: DurableObjectState, env: Bindings) -> Self {
        let counter = Self {
            state: State::from(state),
            counters: Rc::new(RefCell::new(Counters::new(Config::submissions(|name| {
                env.text(name)
            })))),
            purse: RefCell::default(),
            dirty: Cell::new(false),
            planned: Cell::new(false),
            alarm_at: Cell::new(0),
            latest_ms: Cell::new(0),
            calls: Cell::new(0),
            rows_written: Cell::new(0),
        };
        if let Err(error) = counter.load() {
            complain("snapshot_unreadable", &error);
        }
        // What survived a panic is newer than the snapshot.
        if panics::survive(&counter.state.id().to_string(), &counter.counters) {
            counter.dirty.set(true);
        }
        counter
    }

    /// Counts one request and answers a packed [`weir_policy::window::Verdict`]. The address comes as
    /// [`AddressKey::to_parts`]; `seen_used` is 0 when the caller remembers nothing of it. A negative number is the same
    /// verdict and asks for a call of [`Self::settle`] in [`weir_policy::purse::SOON_MS`]: so nothing else need be asked at every request.
    pub fn take(&self, kind: u32, upper: u32, lower: u32, seen_used: u32, seen_reset_at_ms: f64) -> f64 {
        self.calls.set(self.calls.get().wrapping_add(1));
        let now = clock::now_ms();
        let key = AddressKey::from_parts(kind, upper, lower);
        let seen = (seen_used > 0).then_some(Seen {
            used: seen_used,
            reset_at_ms: seen_reset_at_ms as u64,
        });
        let verdict = self.counters.borrow_mut().take(key, seen, now);
        let soon = verdict.admitted && self.admitted(now);
        let packed = verdict.pack();
        if soon { -packed } else { packed }
    }

    /// Writes as planned.
    pub fn settle(&self) {
        self.planned.set(false);
        if self.dirty.get() && self.save(clock::now_ms()).is_err() {
            self.alarm_by(clock::now_ms() + LATEST_MS);
        }
    }

    /// Writes what is not written yet, or deletes everything when nothing counts any more. Answers a promise when there
    /// is something to wait for.
    pub fn alarm(&self) -> Result<JsValue, JsValue> {
        self.alarm_at.set(0);
        let now = clock::now_ms();
        let over_at = {
            let mut counters = self.counters.borrow_mut();
            counters.prune(now);
            counters.over_at()
        };
        let Some(over_at) = over_at else {
            self.dirty.set(false);
            return Ok(self.state.storage().as_raw().delete_all()?.into());
        };
        let was_needed = self.dirty.get();
        if was_needed {
            self.save(now)?;
            self.purse.borrow_mut().pay(1);
        }
        // While requests keep coming, the next alarm will be needed, too; set now, it need not be set again by a request.
        let busy = now < self.latest_ms.get() + LATEST_MS / 2;
        if was_needed && busy && now + LATEST_MS < over_at {
            self.set_alarm(now + LATEST_MS);
            self.purse.borrow_mut().pay(1);
        } else {
            self.set_alarm(over_at);
        }
        Ok(JsValue::UNDEFINED)
    }

    /// What it has cost since it was made: calls, rows written, addresses held. For tests and measurements.
    pub fn costs(&self) -> Vec<u32> {
        vec![
            self.calls.get(),
            self.rows_written.get(),
            self.counters.borrow().len() as u32,
        ]
    }

    /// Sees to it that what was just counted is written, and says whether [`Self::settle`] is to be called for that.
    fn admitted(&self, now: u64) -> bool {
        self.dirty.set(true);
        self.latest_ms.set(now);
        let planned = self.planned.get();
        let write = self.purse.borrow_mut().request(now, planned);
        let saved = write == Write::Now && self.save(now).is_ok();
        if self.alarm_at.get() == 0 {
            // Also for what is written already, which must be deleted some day.
            self.set_alarm(now + LATEST_MS);
        }
        match write {
            Write::Now if saved => false,
            Write::Soon => !self.planned.replace(true),
            Write::Now | Write::Later => {
                self.alarm_by(now + LATEST_MS);
                false
            }
        }
    }

    /// Sets the alarm, unless it goes off by then anyway.
    fn alarm_by(&self, at_ms: u64) {
        if self.alarm_at.get() == 0 || self.alarm_at.get() > at_ms {
            self.set_alarm(at_ms);
            self.purse.borrow_mut().pay(1);
        }
    }

    fn set_alarm(&self, at_ms: u64) {
        let date = js_sys::Date::new(&JsValue::from_f64(at_ms as f64));
        match self
            .state
            .storage()
            .as_raw()
            .set_alarm(date, js_sys::Object::new())
        {
            Ok(_) => {
                self.alarm_at.set(at_ms);
                self.wrote(1);
            }
            Err(error) => complain("alarm_not_set", &error),
        }
    }

    fn values(&self) -> Values {
        self.state
            .storage()
            .as_raw()
            .unchecked_ref::<ObjectStorage>()
            .kv()
    }

    fn save(&self, now: u64) -> Result<(), JsValue> {
        let bytes = self.counters.borrow().encode();
        self.values()
            .put(SNAPSHOT, &Uint8Array::from(bytes.as_slice()))
            .inspect_err(|error| complain("snapshot_unwritten", error))?;
        self.dirty.set(false);
        self.purse.borrow_mut().wrote(bytes.len(), now);
        self.wrote(1);
        Ok(())
    }

    fn load(&self) -> Result<(), JsValue> {
        if let Some(bytes) = self.values().get(SNAPSHOT)? {
            let restored = self
                .counters
                .borrow_mut()
                .restore(&bytes.to_vec(), clock::now_ms());
            restored.map_err(|error| JsValue::from_str(&error.to_string()))?;
        }
        Ok(())
    }

    fn wrote(&self, rows: u32) {
        self.rows_written.set(self.rows_written.get().wrapping_add(rows));
    }
}

/// A line of JSON in the log.
fn complain(event: &str, error: &JsValue) {
    console_error!("{}", json!({"event": event, "detail": message(error)}));
}
