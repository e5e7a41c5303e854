//! The parts of a request's URL at the edge.
#![no_main]
#![allow(dead_code)]

#[path = "../../src/target.rs"]
mod target;

use libfuzzer_sys::fuzz_target;
use target::Target;

fuzz_target!(|text: &str| {
    if let Some(target) = Target::of(text) {
        assert!(target.path().starts_with('/'));
        assert!(target.path_and_query().starts_with(target.path()));
        assert!(!target.path().contains(['?', '#']));
        assert!(!target.host().contains('/'));
        let again = format!("{}{}", target.origin(), target.path_and_query());
        assert_eq!(Target::of(&again), Some(Target::of(&again).expect("the same parts")));
    }
});
