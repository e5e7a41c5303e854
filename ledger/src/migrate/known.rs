//! What this binary needs of River's tables.

/// The oldest version of River's tables that River's client and Weir work on: the first one whose unique keys name the
/// states in which they hold.
pub const OLDEST_RIVER: i64 = 6;

/// What becomes of River's tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum River {
    /// They are created where there are none. Existing ones stay as they are, since they may be another program's, and
    /// must be of [`OLDEST_RIVER`] or newer.
    #[default]
    AsItIs,
    /// They are created, or brought to the latest version that is known here.
    Upgrade,
    /// They are neither created nor changed.
    Skip,
}

/// A name as SQL has it.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as SQL has it.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
