//! What happens after a panic. The runtime then throws this program's memory away and starts anew, so before it does,
//! all counts are handed to JavaScript, from where their next owners take them; and every request that was under way in
//! the isolate, not only the one that panicked, is answered with a problem, since nobody is left to answer it.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use js_sys::Uint8Array;
use wasm_bindgen::prelude::*;
use weir_policy::window::Counters;

use crate::clock;

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

thread_local! {
    static OWNERS: RefCell<Vec<(String, Weak<RefCell<Counters>>)>> = const { RefCell::new(Vec::new()) };
}

/// Makes `counters` survive a panic: takes over what `owner` had at the last one, if there was one, and keeps them at the
/// next. Says whether there was something to take over.
pub(crate) fn survive(owner: &str, counters: &Rc<RefCell<Counters>>) -> bool {
    OWNERS.with_borrow_mut(|owners| {
        owners.retain(|(_, counters)| counters.strong_count() > 0);
        owners.push((owner.to_owned(), Rc::downgrade(counters)));
    });
    match take_back(owner) {
        Ok(Some(counts)) => counters
            .borrow_mut()
            .restore(&counts.to_vec(), clock::now_ms())
            .is_ok(),
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
        let _ = OWNERS.try_with(|owners| {
            let Ok(owners) = owners.try_borrow() else { return };
            for (owner, counters) in owners.iter() {
                let Some(counters) = counters.upgrade() else {
                    continue;
                };
                let Ok(counters) = counters.try_borrow() else {
                    continue;
                };
                let _ = keep(owner, &Uint8Array::from(counters.encode().as_slice()));
            }
        });
        let _ = happened(&info.to_string());
        next(info);
    }));
}
