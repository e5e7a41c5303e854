//! The server settings that every session of Weir needs, overriding the defaults of server, database and role.
//! Behind a pooler in transaction mode, every transaction needs them, and more: another program may have changed any
//! setting of the session.

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

/// Settings that keep the default of server, database and role.
const DEFAULTS: [&str; 17] = [
    // First, because it decides about rights.
    "role",
    "synchronous_commit",
    "enable_seqscan",
    "enable_hashjoin",
    "enable_mergejoin",
    "enable_sort",
    "enable_memoize",
    "enable_hashagg",
    "enable_incremental_sort",
    "enable_material",
    "geqo_threshold",
    "join_collapse_limit",
    "from_collapse_limit",
    "random_page_cost",
    "work_mem",
    "jit",
    "plan_cache_mode",
];

/// One statement that sets all of them for the session.
pub(super) fn pin() -> String {
    format!("SELECT {}", pinned(false))
}

fn pinned(is_local: bool) -> String {
    let each = SETTINGS.map(|(name, value)| {
        format!(
            "CASE WHEN pg_catalog.current_setting('{name}', true) IS NOT NULL \
             THEN pg_catalog.set_config('{name}', '{value}', {is_local}) END"
        )
    });
    each.join(", ")
}

/// Statements that set these for the session. Empty if there are none.
pub(super) fn set(settings: Settings<'_>) -> String {
    let each = settings
        .iter()
        .map(|(name, value)| format!("SET {name} = {}", literal(value)));
    each.collect::<Vec<_>>().join("; ")
}

/// One statement that sets everything a transaction depends on until it ends, and these in addition.
pub(super) fn for_transaction(settings: Settings<'_>) -> String {
    let defaults = DEFAULTS
        .iter()
        .map(|name| format!("pg_catalog.set_config('{name}', NULL, true)"));
    let given = settings
        .iter()
        .map(|(name, value)| format!("pg_catalog.set_config('{name}', {}, true)", literal(value)));
    let each = defaults.chain([pinned(true)]).chain(given);
    format!("SELECT {}", each.collect::<Vec<_>>().join(", "))
}
