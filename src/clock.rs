//! The time. Workers' clocks stand still while code computes and go on when it waits.

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    js_sys::Date::now() as u64
}
