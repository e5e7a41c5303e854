//! The identity of this machine.

/// The host name, reduced to the characters that an identifier allows.
pub(super) fn name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    host.trim()
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(40)
        .collect()
}
