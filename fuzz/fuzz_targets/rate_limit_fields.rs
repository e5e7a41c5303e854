//! The rate limit fields of a response, for any counters. An independent parser of structured fields must read them as
//! RFC 9651 and the draft define.
#![no_main]

#[path = "../../src/rate_limit_fields.rs"]
mod rate_limit_fields;

use libfuzzer_sys::fuzz_target;
use rate_limit_fields::{NamedPolicy, PolicyStatus};
use sfv::{BareItem, List, ListEntry, Parser};
use weir_policy::window::{Algorithm, LimitResult, MAX_LIMIT, MAX_WINDOW_MS, Policy};

/// The parameters of the field's only member, which has the policy's name.
fn parameters(field: &str) -> Vec<(String, i64)> {
    let list: List = Parser::new(field).parse().expect("a list of RFC 9651");
    let [ListEntry::Item(item)] = list.as_slice() else {
        panic!("one item: {field}")
    };
    assert!(matches!(&item.bare_item, BareItem::String(name) if name.as_str() == "anon"));
    item.params
        .iter()
        .map(|(key, value)| match value {
            BareItem::Integer(value) => (key.to_string(), i64::from(*value)),
            other => panic!("{key} is not an integer: {other:?}"),
        })
        .collect()
}

fuzz_target!(|input: (u32, u64, u32, Option<u64>, bool)| {
    let (limit, window_ms, used, reset_after_ms, admitted) = input;
    // A limit that the configuration allows, and a window that ends within its length.
    let limit = 1 + limit % MAX_LIMIT;
    let window_ms = 1000 * (1 + window_ms % (MAX_WINDOW_MS / 1000));
    let algorithm = Algorithm::Fixed;
    let policy = Policy { limit, window_ms, algorithm };
    let result = reset_after_ms.map(|reset| LimitResult {
        admitted,
        used,
        reset_after_ms: reset % (window_ms + 1),
    });
    let named = NamedPolicy { name: "anon", policy };
    let status = PolicyStatus { named, result };

    let seconds = i64::try_from(window_ms / 1000).expect("configured");
    let quota = [("q".to_owned(), i64::from(limit)), ("w".to_owned(), seconds)];
    assert_eq!(parameters(&status.policy_field()), quota);

    let retry_after = i64::try_from(status.retry_after()).expect("seconds");
    assert!((1..=seconds).contains(&retry_after));
    let Some(field) = status.limit_field() else {
        assert!(result.is_none());
        return;
    };
    let state = parameters(&field);
    let [(r, remaining), (t, reset)] = state.as_slice() else {
        panic!("r and t: {field}")
    };
    assert_eq!((r.as_str(), t.as_str()), ("r", "t"));
    assert_eq!(*remaining, i64::from(limit.saturating_sub(used)));
    assert!(*reset <= seconds && retry_after >= *reset);
    // Rounded up, so that a client that waits this long has waited long enough.
    assert!(result.is_some_and(|result| u128::from(result.reset_after_ms) <= *reset as u128 * 1000));
});
