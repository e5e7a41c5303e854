//! Whether the database can be used.

use super::statements;

statements! {
    /// Always true. Success means that the database answers.
    pub fn ping() -> bool = "SELECT true";

    /// Whether the server takes writes: not while it is a standby, or read-only after a failover.
    pub fn is_writable() -> bool =
        "SELECT NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off'";
}
