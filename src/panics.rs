//! What happens after a panic. The runtime then throws this program's memory away and starts anew, so before it does,
//! all counts are handed to JavaScript, from where their next owners take them; and every request that was under way in
//! the isolate, not only the one that panicked, is answered with a problem, since nobody is left to answer it.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use js_sys::Uint8Array;
use wasm_bindgen::prelude::*;
use weir_policy::counts::Tally;
use weir_policy::window::Counters;

use crate::{clock, counts};

// In `entry.mjs`.
#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(catch, js_namespace = weirPanics)]
    fn keep(owner: &str, counts: &Uint8Array) -> Result<(), JsValue>;

    #[wasm_bindgen(catch, js_namespace = weirPanics, js_name = takeBack)]
    fn take_back(owner: &str) -> Result<Option<Uint8Array>, JsValue>;

    #[wasm_bindgen(catch, js_namespace = weirPanics)]
    fn happened(message: &str) -> Result<(), JsValue>;
}

/// Something that was counted.
pub(crate) trait Counted {
    fn to_bytes(&self) -> Vec<u8>;

    /// Takes over what [`Self::to_bytes`] made, and says whether it was that.
    fn take_over(&mut self, bytes: &[u8]) -> bool;
}

impl Counted for Counters {
    fn to_bytes(&self) -> Vec<u8> {
        self.encode()
    }

    fn take_over(&mut self, bytes: &[u8]) -> bool {
        self.restore(bytes, clock::now_ms()).is_ok()
    }
}

impl Counted for Tally {
    fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    fn take_over(&mut self, bytes: &[u8]) -> bool {
        let Ok(mut tally) = serde_json::from_slice::<Self>(bytes) else {
            return false;
        };
        // Whoever was to send a report has gone with everything else.
        tally.done();
        *self = tally;
        true
    }
}

type Owner = (String, Weak<RefCell<dyn Counted>>);

thread_local! {
    static OWNERS: RefCell<Vec<Owner>> = const { RefCell::new(Vec::new()) };
}

/// Makes `counts` survive a panic: takes over what `owner` had at the last one, if there was one, and keeps them at the
/// next. Says whether there was something to take over.
pub(crate) fn survive<T: Counted + 'static>(owner: &str, counts: &Rc<RefCell<T>>) -> bool {
    let kept = Rc::downgrade(counts);
    OWNERS.with_borrow_mut(|owners| {
        owners.retain(|(_, counts)| counts.strong_count() > 0);
        owners.push((owner.to_owned(), kept));
    });
    match take_back(owner) {
        Ok(Some(bytes)) => counts.borrow_mut().take_over(&bytes.to_vec()),
        Ok(None) | Err(_) => false,
    }
}

/// Runs when the program starts.
#[wasm_bindgen(start)]
pub(crate) fn prepare_for_panics() {
    let next = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // This runs in the midst of whatever went wrong. What is in use just then is not to be trusted and is left out;
        // its last snapshot stays.
        counts::panicked();
        let _ = OWNERS.try_with(|owners| {
            let Ok(owners) = owners.try_borrow() else { return };
            for (owner, counts) in owners.iter() {
                let Some(counts) = counts.upgrade() else {
                    continue;
                };
                let Ok(counts) = counts.try_borrow() else {
                    continue;
                };
                let _ = keep(owner, &Uint8Array::from(counts.to_bytes().as_slice()));
            }
        });
        let _ = happened(&info.to_string());
        next(info);
    }));
}
