//! This binary's requirements for River's tables.

/// The oldest version of River's tables that River's client and Weir support. It is the first with unique keys for
/// selected states.
pub const OLDEST_RIVER: i64 = 6;

/// How to handle River's tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum River {
    /// Create missing tables. Existing ones stay unchanged, because another program may own them, and must be at
    /// least version [`OLDEST_RIVER`].
    #[default]
    Create,
    /// Create them, or upgrade them to the latest version known here.
    Upgrade,
    /// Neither create nor change them.
    Skip,
}

/// A name, quoted for SQL.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text, quoted for SQL.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
