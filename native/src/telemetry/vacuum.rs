//! Gauges about delayed vacuum and about replication.

use metrics::{Gauge, gauge};
use weir_ledger::read::horizon::{BUSY_TABLES, KINDS};

use crate::status::Vacuum;

/// The gauges. A kind of holder that the database does not list has 0.
pub(super) struct VacuumGauges {
    visible: Gauge,
    /// By kind.
    seconds: [Gauge; KINDS.len()],
    transactions: [Gauge; KINDS.len()],
    wraparound: Gauge,
    /// By table.
    dead_rows: [Gauge; BUSY_TABLES.len()],
    lag: Gauge,
    retained: Gauge,
}

impl VacuumGauges {
    pub(super) fn new() -> Self {
        Self {
            visible: gauge!("weir_snapshots_visible"),
            seconds: KINDS.map(|kind| gauge!("weir_oldest_snapshot_seconds", "holder" => kind)),
            transactions: KINDS.map(|kind| gauge!("weir_oldest_snapshot_transactions", "holder" => kind)),
            wraparound: gauge!("weir_wraparound_transactions"),
            dead_rows: BUSY_TABLES.map(|table| gauge!("weir_dead_rows", "table" => table)),
            lag: gauge!("weir_replication_lag_seconds"),
            retained: gauge!("weir_replication_retained_bytes"),
        }
    }

    pub(super) fn set(&self, vacuum: &Vacuum) {
        self.visible.set(f64::from(u8::from(vacuum.sees_all)));
        for ((kind, seconds), transactions) in KINDS.iter().zip(&self.seconds).zip(&self.transactions) {
            let held = vacuum.snapshots.iter().find(|held| held.kind == *kind);
            seconds.set(held.and_then(|held| held.seconds).unwrap_or(0.0));
            transactions.set(held.map_or(0.0, |held| held.transactions as f64));
        }
        self.wraparound.set(vacuum.wraparound as f64);
        for (table, gauge) in BUSY_TABLES.iter().zip(&self.dead_rows) {
            let rows = vacuum.dead_rows.get(*table).copied();
            gauge.set(rows.unwrap_or(0) as f64);
        }
        self.lag.set(vacuum.replication_lag.unwrap_or(f64::NAN));
        self.retained.set(vacuum.retained_bytes);
    }

    pub(super) fn unknown(&self) {
        let alone = [&self.visible, &self.wraparound, &self.lag, &self.retained];
        let by_label = self
            .seconds
            .iter()
            .chain(&self.transactions)
            .chain(&self.dead_rows);
        for gauge in alone.into_iter().chain(by_label) {
            gauge.set(f64::NAN);
        }
    }
}
