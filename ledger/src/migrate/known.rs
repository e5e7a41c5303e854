//! What this binary knows of migrations.

pub(super) mod embedded {
    refinery::embed_migrations!("migrations");
}

/// The table in which Weir's migrations are recorded; River's are in `river_migration`.
pub(super) const LEDGER: &str = "weir_migrations";

/// The oldest version of River's tables that River's client and Weir work on: the first one whose unique keys name the
/// states in which they hold.
pub const OLDEST_RIVER: i64 = 6;

pub(super) const LEAD_FUNCTIONS: &str = include_str!("sql/lead_functions.sql");

pub(super) const GRANT_FUNCTIONS: &str = include_str!("sql/grant_functions.sql");

/// What becomes of River's tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum River {
    /// Made where there are none. Those that are there stay as they are, since they may be somebody else's, and must be
    /// of [`OLDEST_RIVER`] or newer.
    #[default]
    AsItIs,
    /// Made, or brought to the latest version that is known here.
    Upgrade,
    /// Neither made nor changed.
    Skip,
}

/// A name as SQL has it.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
