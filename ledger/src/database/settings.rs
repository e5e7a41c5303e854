//! The server settings that every session of Weir needs, overriding the defaults of server, database and role.

use super::schemas::literal;

/// Settings and their values.
pub(super) type Settings<'a> = &'a [(&'a str, &'a str)];

/// Settings and their values. `synchronous_commit` is missing on purpose: the operator chooses how durable commits are.
const SETTINGS: [(&str, &str); 19] = [
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
    // A limit would hide some of the jobs that have an argument.
    ("gin_fuzzy_search_limit", "0"),
    // Rows are found by index, or by their place in a table. Without these, each statement reads whole tables.
    ("enable_indexscan", "on"),
    ("enable_indexonlyscan", "on"),
    ("enable_bitmapscan", "on"),
    ("enable_tidscan", "on"),
    ("enable_nestloop", "on"),
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
        format!(
            "CASE WHEN pg_catalog.current_setting('{name}', true) IS NOT NULL \
             THEN pg_catalog.set_config('{name}', '{value}', false) END"
        )
    });
    format!("SELECT {}", each.join(", "))
}

/// Statements that set these for the session. Empty if there are none.
pub(super) fn set(settings: Settings<'_>) -> String {
    let each = settings
        .iter()
        .map(|(name, value)| format!("SET {name} = {}", literal(value)));
    each.collect::<Vec<_>>().join("; ")
}
