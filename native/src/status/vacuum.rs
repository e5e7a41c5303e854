//! The causes and effects of delayed vacuum.

use std::collections::BTreeMap;

use serde::Serialize;
use tokio_postgres::Client;
use weir_ledger::database::DatabaseError;
use weir_ledger::read::horizon::{self, Snapshot};

use super::short::{duration, number};

/// The causes and effects of delayed vacuum.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Vacuum {
    /// Whether Weir's role sees the snapshots of all sessions and of standbys. Otherwise, older ones may exist.
    pub sees_all: bool,
    /// The oldest snapshot of each kind of holder, the oldest first.
    pub snapshots: Vec<Snapshot>,
    /// The age in transactions of the database's oldest row that is not frozen. PostgreSQL stops at two billion.
    pub wraparound: i64,
    /// Rows that vacuum has not removed yet, by table.
    pub dead_rows: BTreeMap<String, i64>,
    /// The lag of the slowest connected standby, in seconds; null if it is not visible.
    pub replication_lag: Option<f64>,
    /// The WAL that the slowest replication slot retains, in bytes.
    pub retained_bytes: f64,
}

impl Vacuum {
    /// Reads the server's in-memory statistics.
    ///
    /// # Errors
    ///
    /// When the database is unavailable.
    pub async fn read(client: &Client) -> Result<Self, DatabaseError> {
        let (mut snapshots, state, dead_rows) = tokio::try_join!(
            horizon::snapshots(client),
            horizon::horizon(client),
            horizon::dead_rows(client),
        )?;
        snapshots.sort_by(|one, other| {
            // A standby and a slot have no age in seconds. They also hold back what is open on the primary, so at the
            // same number of transactions, another holder is the cause.
            let age = |held: &Snapshot| (held.transactions, held.seconds.unwrap_or(f64::NEG_INFINITY));
            age(other)
                .partial_cmp(&age(one))
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        Ok(Self {
            sees_all: state.sees_all,
            snapshots,
            wraparound: state.wraparound,
            dead_rows: dead_rows.into_iter().map(|row| (row.table, row.dead)).collect(),
            replication_lag: match state.standbys {
                0 => Some(0.0),
                _ => state.replay_lag,
            },
            retained_bytes: state.retained,
        })
    }
}

/// The minimum age at which a snapshot is reported with its holder.
const OLD_SECONDS: f64 = 60.0;
const OLD_TRANSACTIONS: i64 = 100_000;

/// PostgreSQL freezes rows long before this age.
const MIN_REPORTED_AGE: i64 = 500_000_000;

/// The minimum lag of a standby, and the minimum amount of retained WAL, that are reported.
const MIN_REPORTED_LAG: f64 = 10.0;
const MIN_REPORTED_WAL: f64 = 1e9;

impl Vacuum {
    /// Short lines: always one, and more when vacuum is delayed.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let oldest = self.snapshots.first();
        let age = match oldest {
            Some(held) => age(held),
            None => "none".to_owned(),
        };
        let visible = if self.sees_all { "" } else { "visible " };
        let mut lines = vec![format!("oldest {visible}snapshot: {age}")];
        if let Some(held) = oldest.filter(|held| is_old(held)) {
            lines.push(holder(held));
            lines.extend(held.query.clone().filter(|query| !query.is_empty()));
        }
        let dead: i64 = self.dead_rows.values().sum();
        if let Some((table, most)) = self.dead_rows.iter().max_by_key(|(_, rows)| **rows)
            && oldest.is_some_and(is_old)
        {
            lines.push(format!(
                "{} dead rows, {} of them in {table}",
                number(dead),
                number(*most)
            ));
        }
        if !self.sees_all {
            lines.push("to see all: GRANT pg_monitor TO Weir's role".to_owned());
        }
        if self.wraparound > MIN_REPORTED_AGE {
            lines.push(format!(
                "oldest unfrozen row: {} of 2G transactions",
                number(self.wraparound)
            ));
        }
        if let Some(lag) = self.replication_lag.filter(|lag| *lag > MIN_REPORTED_LAG) {
            lines.push(format!("a standby is {} behind", duration((lag * 1000.0) as i64)));
        }
        if self.retained_bytes > MIN_REPORTED_WAL {
            let bytes = number(self.retained_bytes as i64);
            lines.push(format!("a replication slot retains {bytes} bytes of WAL"));
        }
        lines
    }
}

fn is_old(held: &Snapshot) -> bool {
    held.seconds.is_some_and(|seconds| seconds >= OLD_SECONDS) || held.transactions >= OLD_TRANSACTIONS
}

fn age(held: &Snapshot) -> String {
    let transactions = format!("{} transactions", number(held.transactions));
    match held.seconds {
        Some(seconds) => format!("{}, {transactions}", duration((seconds * 1000.0) as i64)),
        None => transactions,
    }
}

fn holder(held: &Snapshot) -> String {
    let kind = match &*held.kind {
        "prepared" => "prepared transaction",
        "slot" => "replication slot",
        kind => kind,
    };
    let pid = held.pid.map(|pid| pid.to_string());
    let known = [&pid, &held.name, &held.application, &held.state];
    let known: Vec<&str> = known.into_iter().flatten().map(String::as_str).collect();
    format!("{kind} {}", known.join(", "))
}
