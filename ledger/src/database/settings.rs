//! The server settings that every session of Weir needs, overriding the defaults of server, database and role.

/// Settings and their values. `synchronous_commit` is missing on purpose: the operator chooses how durable commits are.
const SETTINGS: [(&str, &str); 13] = [
    // A decision is correct only if each statement sees everything committed before it.
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_deferrable", "off"),
    // A policy that hides rows would make sums wrong. This turns it into an error.
    ("row_security", "off"),
    // How texts in statements and casts to text are read.
    ("standard_conforming_strings", "on"),
    ("DateStyle", "ISO, MDY"),
    ("IntervalStyle", "postgres"),
    ("bytea_output", "hex"),
    // Each use of a session has its own limits. A limit meant for interactive sessions must not end a migration.
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("idle_session_timeout", "0"),
    // Since PostgreSQL 17.
    ("transaction_timeout", "0"),
    ("check_function_bodies", "on"),
];

/// One statement that sets all of them for the session.
pub(super) fn pin() -> String {
    let each = SETTINGS.map(|(name, value)| {
        format!("CASE WHEN current_setting('{name}', true) IS NOT NULL THEN set_config('{name}', '{value}', false) END")
    });
    format!("SELECT {}", each.join(", "))
}
