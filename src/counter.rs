//! The Durable Object that counts: many addresses of a region, or one user.
//!
//! It has no state in memory. A hash of the key selects one of [`ROWS`] stored values, which is read, changed and written
//! for each admitted request. The runtime holds the response back until the write is durable, so no eviction, crash or
//! deployment loses a count. A denial writes nothing. When the last window has ended, the alarm deletes everything, so
//! that no address leaves anything behind.

use std::cell::Cell;

use js_sys::{Array, Uint8Array};
use serde_json::json;
use wasm_bindgen::prelude::*;
use web_sys::{Request, Response};
use weir_policy::address::AddressKey;
use weir_policy::limit_set::{Counts, Limits, SetResult};
use worker::worker_sys::DurableObjectState;
use worker::{State, console_error};

use crate::bindings::{Bindings, ObjectStorage, Values};
use crate::clock;
use crate::config::Config;
use crate::glue;
use crate::own;
use crate::settings;
use crate::shard::{counts_users, group, own_limit};
use crate::timeout::message;

/// The number of values that the counts of an object are divided into.
const ROWS: u64 = 1024;

/// The maximum number of counts in a row. The object has room for 16 million, and a row for 2 MB.
const MAX_COUNTS: usize = 16_384;

/// The shortest time until the alarm, in milliseconds. Setting it costs as much as a row.
const MIN_ALARM_MS: u64 = 10_000;

/// The class of the counting objects. Bind it as `ADDRESS_COUNTERS`, with the migration that [the crate's
/// page](crate) shows. Rust code has no use for it: its methods are called by JavaScript.
#[wasm_bindgen]
pub struct AddressCounter {
    state: State,
    limits: Vec<Limits>,
    /// When the pending alarm goes off, in milliseconds since the epoch; 0 if this is not known.
    alarm_at: Cell<u64>,
    calls: Cell<u32>,
    rows_written: Cell<u32>,
}

#[wasm_bindgen]
impl AddressCounter {
    /// Called by the runtime when the object is first used, and again after each eviction.
    #[wasm_bindgen(constructor)]
    pub fn new(state: DurableObjectState, env: Bindings) -> Self {
        let state = State::from(state);
        Self {
            limits: limits(state.id().name().as_deref(), &env),
            state,
            alarm_at: Cell::new(0),
            calls: Cell::new(0),
            rows_written: Cell::new(0),
        }
    }

    /// Counts `cost` requests of a key, which arrives as [`AddressKey::to_parts`], or none of them. Returns a packed
    /// [`weir_policy::limit_set::SetResult`].
    ///
    /// # Errors
    /// When the storage fails.
    pub fn take(&self, kind: u32, upper: u32, lower: u32, cost: u32) -> Result<f64, JsValue> {
        self.calls.set(self.calls.get().wrapping_add(1));
        let now = clock::now_ms();
        let key = AddressKey::from_parts(kind, upper, lower);
        let values = self.values();
        let row = format!("row {}", (key.spread() >> 32) % ROWS);
        let stored = values.get(&row)?.map(|bytes| bytes.to_vec());
        let mut counts = Counts::decode(&stored.unwrap_or_default(), now);
        let decided = counts.take(&self.limits, key, cost, MAX_COUNTS, now);
        if decided.is_some_and(|decided| decided.result.admitted) {
            values.put(&row, &Uint8Array::from(counts.encode().as_slice()))?;
            self.count_row();
            self.ensure_alarm(now)?;
        }
        Ok(SetResult::pack(decided))
    }

    /// Calls [`Self::take`], as in `https://counter/take/4/0/3405803777/1`. The runtime accepts no other calls if the class
    /// does not extend `DurableObject`, as in Workers in Rust.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn fetch(&self, request: &Request) -> Result<Response, JsValue> {
        let url = request.url();
        let mut numbers = url.split('/').skip(4).map_while(|part| part.parse().ok());
        let mut next = || numbers.next().unwrap_or_default();
        let packed = self.take(next(), next(), next(), next())?;
        glue::respond(200, "", Some(&packed.to_string()))
    }

    /// Deletes everything if no window is open any longer.
    ///
    /// # Errors
    /// When the storage fails. The runtime repeats the alarm.
    pub fn alarm(&self) -> Result<JsValue, JsValue> {
        self.alarm_at.set(0);
        let last_end = self.rows()?.iter().filter_map(Counts::last_end).max();
        match last_end {
            None => Ok(self.state.storage().as_raw().delete_all()?.into()),
            Some(last_end) => {
                self.set_alarm(last_end.max(clock::now_ms() + MIN_ALARM_MS))?;
                Ok(JsValue::UNDEFINED)
            }
        }
    }

    /// The cost since the object was constructed: calls, rows written; and the addresses held. For tests and measurements.
    ///
    /// # Errors
    /// When the storage fails.
    pub fn costs(&self) -> Result<Vec<u32>, JsValue> {
        let addresses: usize = self.rows()?.iter().map(Counts::addresses).sum();
        Ok(vec![self.calls.get(), self.rows_written.get(), addresses as u32])
    }
}

impl AddressCounter {
    /// All counts.
    fn rows(&self) -> Result<Vec<Counts>, JsValue> {
        let now = clock::now_ms();
        let stored = js_sys::try_iter(&self.values().list()?)?.into_iter().flatten();
        stored
            .map(|entry| {
                let value = Array::from(&entry?).get(1);
                Ok(Counts::decode(&Uint8Array::new(&value).to_vec(), now))
            })
            .collect()
    }

    /// Sets an alarm after the end of a window that starts now, unless one is pending.
    fn ensure_alarm(&self, now: u64) -> Result<(), JsValue> {
        if self.alarm_at.get() > now {
            return Ok(());
        }
        let longest = self.limits.iter().map(|limits| limits.window_ms).max();
        self.set_alarm(now + longest.unwrap_or_default().max(MIN_ALARM_MS))
    }

    fn set_alarm(&self, at_ms: u64) -> Result<(), JsValue> {
        let date = js_sys::Date::new(&JsValue::from_f64(at_ms as f64));
        let storage = self.state.storage();
        // The runtime holds the response back until the alarm is durable, as for any write.
        let _ = storage
            .as_raw()
            .set_alarm(date, js_sys::Object::new())
            .inspect_err(|error| {
                let line = json!({"event": "alarm_not_set", "detail": message(error)});
                console_error!("{line}");
            })?;
        self.alarm_at.set(at_ms);
        self.count_row();
        Ok(())
    }

    fn values(&self) -> Values {
        let storage = self.state.storage();
        storage.as_raw().unchecked_ref::<ObjectStorage>().kv()
    }

    fn count_row(&self) {
        self.rows_written.set(self.rows_written.get().wrapping_add(1));
    }
}

/// The limits of the object of this name.
fn limits(name: Option<&str>, env: &Bindings) -> Vec<Limits> {
    if let Some(limits) = own_limit(name) {
        return vec![limits];
    }
    let mut variables = settings::variables(env);
    // The object may live in another isolate than the handler, and must find the same routes.
    if !variables.contains_key("ORIGIN_URL") {
        own::complete(&mut variables);
    }
    if let Some(limits) = group(name).and_then(|group| Config::limits(&variables, group)) {
        return limits;
    }
    let users = counts_users(name).then(|| Config::users(&variables)).flatten();
    // If users or routes are no longer limited, their last requests may be counted by any limit.
    vec![users.unwrap_or_else(|| Config::submissions(&variables))]
}
