//! Which machine this is.

/// Its name, as far as an identifier can have it.
pub(super) fn name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    host.trim()
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(40)
        .collect()
}
