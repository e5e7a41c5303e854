//! The identity of this machine.

/// The host name, reduced to the characters that an identifier allows.
pub(super) fn name() -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    host.to_string_lossy()
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(40)
        .collect()
}
