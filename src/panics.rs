//! Keeping counts across a panic.
//!
//! After a panic, the runtime discards this program's memory and starts it again. Before that, the panic hook hands all
//! registered counts to JavaScript, and their new owners load them from there. Every request in the isolate, not only
//! the one that panicked, is answered with a problem, because no Rust code is left to answer it.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use js_sys::Uint8Array;
use wasm_bindgen::prelude::*;
use weir_policy::counts::Tally;
use weir_policy::limit_set::Counts;

use crate::clock;
use crate::glue;

// In `weir.mjs`. Workers that do not use it have another recovery.
#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(catch, js_namespace = weirPanics, js_name = failRequests)]
    fn fail_requests(message: &str) -> Result<(), JsValue>;
}

/// State that outlives a panic.
pub(crate) trait Preserved {
    fn to_bytes(&self) -> Vec<u8>;

    /// Restores what [`Self::to_bytes`] returned. Returns false, with nothing changed, for any other bytes.
    fn restore_from(&mut self, bytes: &[u8]) -> bool;
}

impl Preserved for Counts {
    fn to_bytes(&self) -> Vec<u8> {
        self.encode()
    }

    fn restore_from(&mut self, bytes: &[u8]) -> bool {
        *self = Self::decode(bytes, clock::now_ms());
        true
    }
}

impl Preserved for Tally {
    fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    fn restore_from(&mut self, bytes: &[u8]) -> bool {
        let Ok(mut tally) = serde_json::from_slice::<Self>(bytes) else {
            return false;
        };
        // The request that had claimed the report has ended with the panic.
        tally.release_claim();
        *self = tally;
        true
    }
}

type Owner = (String, Weak<RefCell<dyn Preserved>>);

thread_local! {
    static OWNERS: RefCell<Vec<Owner>> = const { RefCell::new(Vec::new()) };
}

/// Registers `state` under the name `owner`: restores what was preserved under that name at the last panic, and
/// preserves it at the next. Returns whether anything was restored.
pub(crate) fn preserve<T: Preserved + 'static>(owner: &str, state: &Rc<RefCell<T>>) -> bool {
    let weak = Rc::downgrade(state);
    OWNERS.with_borrow_mut(|owners| {
        owners.retain(|(_, state)| state.strong_count() > 0);
        owners.push((owner.to_owned(), weak));
    });
    glue::restore(owner).is_some_and(|bytes| state.borrow_mut().restore_from(&bytes.to_vec()))
}

/// Hands all registered state to JavaScript and fails all running requests with `message`. For the panic hook.
pub(crate) fn preserve_state(message: &str) {
    // State that is borrowed at the time of the panic may be inconsistent, so it is skipped; its last snapshot remains.
    let _ = OWNERS.try_with(|owners| {
        let Ok(owners) = owners.try_borrow() else { return };
        for (owner, state) in owners.iter() {
            let Some(state) = state.upgrade() else { continue };
            let Ok(state) = state.try_borrow() else { continue };
            glue::save(owner, &Uint8Array::from(state.to_bytes().as_slice()));
        }
    });
    let _ = fail_requests(message);
}
