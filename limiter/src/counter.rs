//! The Durable Object that counts: many addresses of a region, one user, or one key of a Worker's own code.
//!
//! It has no state in memory. A hash of the key selects one of `ROWS` stored values, which is read, changed and written
//! for each admitted request. The runtime holds the response back until the write is durable, so no eviction, crash or
//! deployment loses a count. A denial writes nothing. When the last window has ended, the alarm deletes everything, so
//! that no address leaves anything behind.

use std::cell::Cell;
use std::sync::OnceLock;

use js_sys::{Array, Uint8Array};
use wasm_bindgen::prelude::*;
use web_sys::{Request, Response};
use weir_policy::address::AddressKey;
use weir_policy::limit_set::{Counts, Limits, SetResult};
use worker::worker_sys::DurableObjectState;
use worker::{State, console_error};

use crate::bindings::{ObjectStorage, Values};
use crate::clock;
use crate::error::message;
use crate::own;

/// The number of values that the counts of an object are divided into.
const ROWS: u64 = 1024;

/// The maximum number of counts in a row. The object has room for 16 million, and a row for 2 MB.
const MAX_COUNTS: usize = 16_384;

/// The shortest time until the alarm, in milliseconds. Setting it costs as much as a row.
const MIN_ALARM_MS: u64 = 10_000;

/// The limits of an object by its name and the Worker's environment.
type LimitsOf = fn(Option<&str>, &JsValue) -> Vec<Limits>;

static EDGE: OnceLock<LimitsOf> = OnceLock::new();

/// Sets the limits of objects that count for the edge. Without them, objects count only keys of the Worker's own code.
pub fn set_limits(edge: LimitsOf) {
    // Only fails if they are set already.
    let _ = EDGE.set(edge);
}

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
    pub fn new(state: DurableObjectState, env: JsValue) -> Self {
        let state = State::from(state);
        let name = state.id().name();
        let of_edge = || EDGE.get().map(|limits| limits(name.as_deref(), &env));
        let own = own::limits_of(name.as_deref()).map(|limits| vec![limits]);
        Self {
            limits: own.or_else(of_edge).unwrap_or_default(),
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
        let key = AddressKey::from_parts(kind, upper, lower);
        self.change(key, |counts, now| {
            let decided = counts.take(&self.limits, key, cost, MAX_COUNTS, now);
            let counted = cost > 0 && decided.is_some_and(|decided| decided.result.admitted);
            (decided, counted)
        })
    }

    /// Takes back `cost` requests of a key, or as many as are counted. Returns a result like that of [`Self::take`].
    ///
    /// # Errors
    /// When the storage fails.
    pub fn refund(&self, kind: u32, upper: u32, lower: u32, cost: u32) -> Result<f64, JsValue> {
        let key = AddressKey::from_parts(kind, upper, lower);
        self.change(key, |counts, now| {
            (counts.refund(&self.limits, key, cost, now), true)
        })
    }

    /// Calls [`Self::take`], as in `https://counter/take/4/0/3405803777/1`, or [`Self::refund`]. The runtime accepts no
    /// other calls if the class does not extend `DurableObject`, as in Workers in Rust.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn fetch(&self, request: &Request) -> Result<Response, JsValue> {
        let url = request.url();
        let mut parts = url.split('/').skip(3);
        let refunds = parts.next() == Some("refund");
        let mut numbers = parts.map_while(|part| part.parse().ok());
        let [kind, upper, lower, cost] = [(); 4].map(|()| numbers.next().unwrap_or_default());
        let packed = if refunds {
            self.refund(kind, upper, lower, cost)
        } else {
            self.take(kind, upper, lower, cost)
        }?;
        Response::new_with_opt_str(Some(&packed.to_string()))
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
    /// Changes the row of a key, and writes it if `change` returns true.
    fn change(
        &self,
        key: AddressKey,
        change: impl FnOnce(&mut Counts, u64) -> (Option<SetResult>, bool),
    ) -> Result<f64, JsValue> {
        self.calls.set(self.calls.get().wrapping_add(1));
        let now = clock::now_ms();
        let values = self.values();
        let row = format!("row {}", (key.spread() >> 32) % ROWS);
        let stored = values.get(&row)?.map(|bytes| bytes.to_vec());
        let mut counts = Counts::decode(&stored.unwrap_or_default(), now);
        let (result, is_changed) = change(&mut counts, now);
        if is_changed {
            values.put(&row, &Uint8Array::from(counts.encode().as_slice()))?;
            self.count_row();
            self.ensure_alarm(now)?;
        }
        Ok(SetResult::pack(result))
    }

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
                let detail = js_sys::JSON::stringify(&message(error).into());
                let detail = detail.map_or_else(|_| "null".into(), String::from);
                console_error!("{{\"event\":\"alarm_not_set\",\"detail\":{detail}}}");
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
