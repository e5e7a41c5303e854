//! The Durable Object that counts submissions. One object holds the counts of many addresses, or of many users, in
//! memory.
//!
//! All counts are written as one value. [`weir_policy::write_budget`] decides when. Under low load, a write precedes
//! the response: the runtime holds a response back until earlier writes are durable. Under high load, it comes a moment
//! later or with an alarm. One write holds all counts, so requests share its cost. Denials change nothing and cause no
//! write. When the last window has ended, the alarm deletes everything, so that no address leaves anything behind.
//!
//! A crash or a deployment may lose the counts of the last seconds under high load. The isolates remember the results
//! that they received, and send them with their next request (see [`weir_policy::window::KnownUsage`]).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use js_sys::Uint8Array;
use serde_json::json;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{Request, Response};
use weir_policy::address::{AddressKey, USER_KIND};
use weir_policy::limit_set::{LimitSet, SetResult};
use weir_policy::window::KnownUsage;
use weir_policy::write_budget::{ALARM_DELAY_MS, BATCH_DELAY_MS, Write, WriteBudget};
use worker::worker_sys::DurableObjectState;
use worker::{State, console_error};

use crate::bindings::{Bindings, ObjectStorage, Values};
use crate::clock;
use crate::config::Config;
use crate::glue;
use crate::own;
use crate::panics;
use crate::settings;
use crate::shard::{counts_users, group, own_limit};
use crate::timeout::message;

/// The name of the one value that an object writes.
const SNAPSHOT: &str = "snapshot";

/// The class of the counting objects. Bind it as `ADDRESS_COUNTERS`, with the migration that [the crate's
/// page](crate) shows. Rust code has no use for it: its methods are called by JavaScript.
#[wasm_bindgen]
pub struct AddressCounter(Rc<Counter>);

#[wasm_bindgen]
impl AddressCounter {
    /// Called by the runtime when the object is first used, and again after each eviction.
    #[wasm_bindgen(constructor)]
    pub fn new(state: DurableObjectState, env: Bindings) -> Self {
        Self(Rc::new(Counter::new(state, &env)))
    }

    /// Counts one request and returns a packed [`weir_policy::limit_set::SetResult`]. The address arrives as
    /// [`AddressKey::to_parts`]; `known_used` is 0 if the caller remembers nothing about it. A negative number is the
    /// same result and asks the caller to call [`Self::flush`] after [`weir_policy::write_budget::BATCH_DELAY_MS`].
    /// This saves a second call across the language boundary per request.
    pub fn take(&self, kind: u32, upper: u32, lower: u32, known_used: u32, known_reset_at_ms: f64) -> f64 {
        let known = (known_used > 0).then_some(KnownUsage {
            used: known_used,
            reset_at_ms: known_reset_at_ms as u64,
        });
        self.0.take(AddressKey::from_parts(kind, upper, lower), known)
    }

    /// Counts `cost` units of a key (the halves of its hash) or none, and returns the result as [`Self::take`] does.
    pub fn take_many(&self, upper: u32, lower: u32, cost: u32) -> f64 {
        self.0
            .take_many(AddressKey::from_parts(USER_KIND, upper, lower), cost)
    }

    /// Calls [`Self::take`] or [`Self::take_many`], as in `https://counter/take/4/0/3405803777/0/0`, and then
    /// [`Self::flush`]. The runtime accepts no other calls if the class does not extend `DurableObject`, as in Workers in
    /// Rust.
    pub fn fetch(&self, request: &Request) -> Result<Response, JsValue> {
        let url = request.url();
        let mut parts = url.split('/').skip(3);
        let method = parts.next();
        let mut numbers = parts.map_while(|part| part.parse::<u64>().ok());
        let mut next = || numbers.next().unwrap_or_default();
        let packed = match method {
            Some("take") => self.take(
                next() as u32,
                next() as u32,
                next() as u32,
                next() as u32,
                next() as f64,
            ),
            Some("take_many") => self.take_many(next() as u32, next() as u32, next() as u32),
            _ => return glue::respond(404, "", None),
        };
        if packed < 0.0 {
            let counter = Rc::clone(&self.0);
            spawn_local(async move {
                let _ = JsFuture::from(glue::sleep(BATCH_DELAY_MS)).await;
                counter.flush();
            });
        }
        glue::respond(200, "", Some(&packed.abs().to_string()))
    }

    /// Writes the unwritten counts, as scheduled by [`Self::take`].
    pub fn flush(&self) {
        self.0.flush();
    }

    /// Writes the unwritten counts, or deletes everything if no window is open any longer. Returns a promise if there is
    /// something to wait for.
    pub fn alarm(&self) -> Result<JsValue, JsValue> {
        self.0.alarm()
    }

    /// The cost since the object was constructed: calls, rows written, addresses held. For tests and measurements.
    pub fn costs(&self) -> Vec<u32> {
        self.0.costs()
    }
}

struct Counter {
    state: State,
    counters: Rc<RefCell<LimitSet>>,
    budget: RefCell<WriteBudget>,
    /// Whether there are unwritten counts.
    dirty: Cell<bool>,
    /// Whether a call of [`Counter::flush`] is scheduled.
    flush_scheduled: Cell<bool>,
    /// When the pending alarm goes off, in milliseconds since the epoch; 0 without one.
    alarm_at: Cell<u64>,
    last_admitted_ms: Cell<u64>,
    calls: Cell<u32>,
    rows_written: Cell<u32>,
}

impl Counter {
    /// Packs a result, negative if a write has to follow.
    fn answer(&self, decided: Option<SetResult>, now: u64) -> f64 {
        // Without a limit, there is nothing to count. Every set has a limit, and the caller knows this number as "no
        // result".
        let Some(decided) = decided else { return f64::MAX };
        let flush = decided.scoped.result.admitted && self.schedule_write(now);
        let packed = decided.pack();
        if flush { -packed } else { packed }
    }

    fn new(state: DurableObjectState, env: &Bindings) -> Self {
        let state = State::from(state);
        let mut variables = settings::variables(env);
        // The object may live in another isolate than the handler, and must find the same routes.
        if !variables.contains_key("ORIGIN_URL") {
            own::complete(&mut variables);
        }
        let id = state.id();
        let name = id.name();
        let users = counts_users(name.as_deref())
            .then(|| Config::users(&variables))
            .flatten();
        let own = own_limit(name.as_deref())
            .map(|limit| vec![limit])
            .or_else(|| Config::limits(&variables, group(name.as_deref())?));
        // If users or routes are no longer limited, their last windows may end under any limit.
        let limits = own.unwrap_or_else(|| vec![users.unwrap_or_else(|| Config::submissions(&variables))]);
        let counter = Self {
            state,
            counters: Rc::new(RefCell::new(LimitSet::new(&limits))),
            budget: RefCell::default(),
            dirty: Cell::new(false),
            flush_scheduled: Cell::new(false),
            alarm_at: Cell::new(0),
            last_admitted_ms: Cell::new(0),
            calls: Cell::new(0),
            rows_written: Cell::new(0),
        };
        if let Err(error) = counter.load() {
            log_error("snapshot_unreadable", &error);
        }
        // The state preserved at a panic is newer than the snapshot.
        if panics::preserve(&counter.state.id().to_string(), &counter.counters) {
            counter.dirty.set(true);
        }
        counter
    }

    fn take(&self, key: AddressKey, known: Option<KnownUsage>) -> f64 {
        self.calls.set(self.calls.get().wrapping_add(1));
        let now = clock::now_ms();
        let decided = self.counters.borrow_mut().take(key, known, now);
        self.answer(decided, now)
    }

    fn take_many(&self, key: AddressKey, cost: u32) -> f64 {
        self.calls.set(self.calls.get().wrapping_add(1));
        let now = clock::now_ms();
        let decided = self.counters.borrow_mut().take_many(key, cost, now);
        self.answer(decided, now)
    }

    fn flush(&self) {
        self.flush_scheduled.set(false);
        if self.dirty.get() && self.save(clock::now_ms()).is_err() {
            self.alarm_by(clock::now_ms() + ALARM_DELAY_MS);
        }
    }

    fn alarm(&self) -> Result<JsValue, JsValue> {
        self.alarm_at.set(0);
        let now = clock::now_ms();
        let last_end = {
            let mut counters = self.counters.borrow_mut();
            counters.prune(now);
            counters.last_end()
        };
        let Some(last_end) = last_end else {
            self.dirty.set(false);
            return Ok(self.state.storage().as_raw().delete_all()?.into());
        };
        let was_needed = self.dirty.get();
        if was_needed {
            self.save(now)?;
            self.budget.borrow_mut().spend(1);
        }
        // While requests keep coming, the next alarm will be needed too. Set here, it saves a request from setting it.
        let busy = now < self.last_admitted_ms.get() + ALARM_DELAY_MS / 2;
        if was_needed && busy && now + ALARM_DELAY_MS < last_end {
            self.set_alarm(now + ALARM_DELAY_MS);
            self.budget.borrow_mut().spend(1);
        } else {
            self.set_alarm(last_end);
        }
        Ok(JsValue::UNDEFINED)
    }

    fn costs(&self) -> Vec<u32> {
        vec![
            self.calls.get(),
            self.rows_written.get(),
            self.counters.borrow().addresses() as u32,
        ]
    }

    /// Ensures that the latest counts are written. Returns whether the caller must schedule [`Self::flush`].
    fn schedule_write(&self, now: u64) -> bool {
        self.dirty.set(true);
        self.last_admitted_ms.set(now);
        let scheduled = self.flush_scheduled.get();
        let write = self.budget.borrow_mut().request(now, scheduled);
        let saved = write == Write::Now && self.save(now).is_ok();
        if self.alarm_at.get() == 0 {
            // Needed even after a write, because the stored counts must be deleted later.
            self.set_alarm(now + ALARM_DELAY_MS);
        }
        match write {
            Write::Now if saved => false,
            Write::Batched => !self.flush_scheduled.replace(true),
            Write::Now | Write::ByAlarm => {
                self.alarm_by(now + ALARM_DELAY_MS);
                false
            }
        }
    }

    /// Sets the alarm, unless it goes off by then in any case.
    fn alarm_by(&self, at_ms: u64) {
        if self.alarm_at.get() == 0 || self.alarm_at.get() > at_ms {
            self.set_alarm(at_ms);
            self.budget.borrow_mut().spend(1);
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
                self.count_rows(1);
            }
            Err(error) => log_error("alarm_not_set", &error),
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
            .inspect_err(|error| log_error("snapshot_unwritten", error))?;
        self.dirty.set(false);
        self.budget.borrow_mut().snapshot_written(bytes.len(), now);
        self.count_rows(1);
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

    fn count_rows(&self, rows: u32) {
        self.rows_written.set(self.rows_written.get().wrapping_add(rows));
    }
}

/// Writes a line of JSON to the log.
fn log_error(event: &str, error: &JsValue) {
    console_error!("{}", json!({"event": event, "detail": message(error)}));
}
