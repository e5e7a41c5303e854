//! The Durable Object that counts submissions: each one holds the counts of many addresses in memory.
//!
//! A request writes nothing. What was counted is written as one row, by an alarm, [`SNAPSHOT_AFTER_MS`] after the
//! first request since the last time: sooner than the ten seconds without requests after which Cloudflare takes an
//! object out of memory, so that an eviction forgets nothing. Denials change nothing and cause no write at all.
//! When the last window is over, the alarm deletes everything, so that no address leaves anything behind.
//!
//! A crash or a deployment may take what was counted in the last seconds; the isolates, which remember what they were
//! told, bring it along with their next request (see [`weir_policy::window::Seen`]).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use js_sys::Uint8Array;
use wasm_bindgen::prelude::*;
use weir_policy::address::AddressKey;
use weir_policy::window::{Counters, Seen};
use worker::worker_sys::DurableObjectState;
use worker::{SqlStorageValue, State, console_error};

use crate::bindings::Bindings;
use crate::clock;
use crate::config::Config;
use crate::panics;

/// How long after a request its count is written at the latest, in milliseconds.
const SNAPSHOT_AFTER_MS: u64 = 8_000;

/// See the module.
#[wasm_bindgen]
pub struct AddressCounter {
    state: State,
    counters: Rc<RefCell<Counters>>,
    /// Whether there are counts that no row has.
    dirty: Cell<bool>,
    /// When the pending alarm goes off, in milliseconds since the epoch; 0 when there is none.
    alarm_at: Cell<u64>,
    has_table: Cell<bool>,
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
            dirty: Cell::new(false),
            alarm_at: Cell::new(0),
            has_table: Cell::new(false),
            latest_ms: Cell::new(0),
            calls: Cell::new(0),
            rows_written: Cell::new(0),
        };
        if let Err(error) = counter.load() {
            console_error!("{{\"event\":\"snapshot_unreadable\",\"error\":\"{error}\"}}");
        }
        // What survived a panic is newer than the snapshot.
        if panics::survive(&counter.state.id().to_string(), &counter.counters) {
            counter.dirty.set(true);
        }
        counter
    }

    /// Counts one request and answers a packed [`weir_policy::window::Verdict`]. The address comes as
    /// [`AddressKey::to_parts`]; `seen_used` is 0 when the caller remembers nothing of it.
    pub fn take(&self, kind: u32, upper: u32, lower: u32, seen_used: u32, seen_reset_at_ms: f64) -> f64 {
        self.calls.set(self.calls.get().wrapping_add(1));
        let now = clock::now_ms();
        let key = AddressKey::from_parts(kind, upper, lower);
        let seen = (seen_used > 0).then_some(Seen {
            used: seen_used,
            reset_at_ms: seen_reset_at_ms as u64,
        });
        let verdict = self.counters.borrow_mut().take(key, seen, now);
        if verdict.admitted {
            self.dirty.set(true);
            self.latest_ms.set(now);
            let due = now + SNAPSHOT_AFTER_MS;
            if self.alarm_at.get() == 0 || self.alarm_at.get() > due {
                self.set_alarm(due);
            }
        }
        verdict.pack()
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
            self.has_table.set(false);
            return Ok(self.state.storage().as_raw().delete_all()?.into());
        };
        if self.dirty.replace(false) {
            self.save().inspect_err(|_| self.dirty.set(true))?;
        }
        // While requests keep coming, the next snapshot will be due; set now, it need not be set again by a request.
        let busy = now < self.latest_ms.get() + SNAPSHOT_AFTER_MS / 2;
        self.set_alarm(if busy {
            over_at.min(now + SNAPSHOT_AFTER_MS)
        } else {
            over_at
        });
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
            Err(error) => console_error!("{{\"event\":\"alarm_not_set\",\"error\":\"{error:?}\"}}"),
        }
    }

    fn save(&self) -> Result<(), worker::Error> {
        let sql = self.state.storage().sql();
        if !self.has_table.replace(true) {
            let made = sql.exec(
                "CREATE TABLE IF NOT EXISTS snapshot (id INTEGER PRIMARY KEY, counts BLOB)",
                None,
            )?;
            self.wrote(made.rows_written());
        }
        let bytes = self.counters.borrow().encode();
        let counts = JsValue::from(Uint8Array::from(bytes.as_slice()));
        let saved = sql.exec_raw("INSERT OR REPLACE INTO snapshot VALUES (1, ?)", vec![counts])?;
        self.wrote(saved.rows_written());
        Ok(())
    }

    fn load(&self) -> Result<(), worker::Error> {
        let sql = self.state.storage().sql();
        let tables = sql.exec("SELECT 1 FROM sqlite_master WHERE name = 'snapshot'", None)?;
        if tables.raw().next().is_none() {
            return Ok(());
        }
        self.has_table.set(true);
        if let Some(row) = sql
            .exec("SELECT counts FROM snapshot WHERE id = 1", None)?
            .raw()
            .next()
            && let Some(SqlStorageValue::Blob(bytes)) = row?.into_iter().next()
        {
            let restored = self.counters.borrow_mut().restore(&bytes, clock::now_ms());
            restored.map_err(|error| worker::Error::RustError(error.to_string()))?;
        }
        Ok(())
    }

    fn wrote(&self, rows: usize) {
        self.rows_written
            .set(self.rows_written.get().wrapping_add(rows as u32));
    }
}
