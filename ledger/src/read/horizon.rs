//! The snapshots that hold back vacuum, and their cost.

use serde::Serialize;

use super::{rows, statements};

/// The tables that every job updates.
pub const BUSY_TABLES: [&str; 8] = [
    "river_job",
    "weir_jobs",
    "holders",
    "window_balances",
    "usage_events",
    "finished_jobs",
    "job_outputs",
    "outstanding_attempts",
];

/// The kinds of [`Snapshot`].
pub const KINDS: [&str; 4] = ["session", "prepared", "slot", "standby"];

rows! {
    /// The oldest snapshot of a kind.
    #[derive(Serialize)]
    pub struct Snapshot {
        /// The kind of its owner: `session`, `prepared` (transaction), (replication) `slot` or `standby` (by its
        /// feedback).
        pub kind: String,
        /// The server process.
        pub pid: Option<i32>,
        /// The role; the name of a slot.
        pub name: Option<String>,
        /// The name of the application, the prepared transaction or the standby; the plugin of a slot.
        pub application: Option<String>,
        /// The owner's state.
        pub state: Option<String>,
        /// The start of the statement.
        pub query: Option<String>,
        /// The age of the transaction; null if it is not known.
        pub seconds: Option<f64>,
        /// The number of transactions that have started since.
        pub transactions: i64,
    }

    /// The state of the server.
    pub struct Horizon {
        /// Whether this role sees the snapshots and the replication of others.
        pub sees_all: bool,
        /// The age of the oldest row that is not frozen, in transactions.
        pub wraparound: i64,
        /// The lag of the slowest connected standby, in seconds.
        pub replay_lag: Option<f64>,
        /// The number of connected standbys.
        pub standbys: i64,
        /// The WAL that the slowest slot retains, in bytes.
        pub retained: f64,
    }

    /// Rows of a table that vacuum has not removed yet.
    pub struct DeadRows {
        /// The table.
        pub table: String,
        /// The number of rows, as the server estimates it.
        pub dead: i64,
    }
}

statements! {
    /// The oldest snapshot of each kind.
    pub fn snapshots() -> Vec<Snapshot> = include_str!("sql/snapshots.sql");

    /// The state of the server.
    pub fn horizon() -> Horizon = include_str!("sql/horizon.sql");

    /// The dead rows of the busiest tables, by look-ups in the server's statistics.
    pub fn dead_rows() -> Vec<DeadRows> =
        "SELECT t.name AS \"table\", coalesce(pg_stat_get_dead_tuples(to_regclass(t.name)), 0) AS dead \
         FROM unnest($1::text[]) WITH ORDINALITY AS t (name, place) ORDER BY t.place",
        [BUSY_TABLES.as_slice()];
}
