//! The current time. A Worker's clock does not advance while code computes, only when it waits for I/O.

/// Milliseconds since the Unix epoch.
pub fn now_ms() -> u64 {
    js_sys::Date::now() as u64
}
