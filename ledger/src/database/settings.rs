//! What every session of Weir's needs of the server, whatever the server, the database or the role sets by default.

/// Settings and their values. `synchronous_commit` is not among them: how durable commits are is the operator's choice.
const SETTINGS: [(&str, &str); 13] = [
    // A decision is right only when each statement sees what was committed before it.
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_deferrable", "off"),
    // A policy that hid rows would make sums wrong. So it is an error.
    ("row_security", "off"),
    // What texts in statements and casts to text mean.
    ("standard_conforming_strings", "on"),
    ("DateStyle", "ISO, MDY"),
    ("IntervalStyle", "postgres"),
    ("bytea_output", "hex"),
    // Each use of a session has its own limits. A limit of somebody's interactive sessions must not end a migration.
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("idle_session_timeout", "0"),
    // From PostgreSQL 17 on.
    ("transaction_timeout", "0"),
    ("check_function_bodies", "on"),
];

/// One statement that sets them all, for as long as the session lives.
pub(super) fn pin() -> String {
    let each = SETTINGS.map(|(name, value)| {
        format!("CASE WHEN current_setting('{name}', true) IS NOT NULL THEN set_config('{name}', '{value}', false) END")
    });
    format!("SELECT {}", each.join(", "))
}
