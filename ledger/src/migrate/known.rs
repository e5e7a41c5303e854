//! What this binary knows of migrations.

use std::collections::BTreeSet;

pub(super) mod embedded {
    refinery::embed_migrations!("migrations");
}

/// The table in which Weir's migrations are recorded; River's are in `river_migration`.
pub(super) const LEDGER: &str = "weir_migrations";

/// The oldest version of River's tables that River's client and Weir work on: the first one whose unique keys name the
/// states in which they hold.
pub const OLDEST_RIVER: i64 = 6;

/// Every function that a migration makes. Others beside them are somebody else's.
pub(super) fn own_functions() -> BTreeSet<String> {
    let runner = embedded::migrations::runner();
    let migrations = runner.get_migrations().iter();
    let lines = migrations.flat_map(|migration| migration.sql().unwrap_or_default().lines());
    lines
        .filter_map(|line| {
            let made = line.strip_prefix("CREATE ")?;
            let (name, _) = made
                .strip_prefix("OR REPLACE ")
                .unwrap_or(made)
                .strip_prefix("FUNCTION ")?
                .split_once('(')?;
            Some(name.to_owned())
        })
        .collect()
}

/// Has Weir's functions find the tables wherever they are called.
pub(super) fn lead_functions() -> String {
    let own: Vec<_> = own_functions().into_iter().collect();
    include_str!("sql/lead_functions.sql").replace("{own}", &format!("{{{}}}", own.join(",")))
}

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
