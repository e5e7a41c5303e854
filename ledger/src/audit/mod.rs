//! The audit: checks the invariants I1 to I7 in one snapshot, and rebuilds counters that have drifted.
//!
//! It checks actual state and not only Weir's columns: jobs that run against slots, owners that are alive, holders with
//! room and waiting jobs.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use tokio_postgres::{Client, IsolationLevel};
use uuid::Uuid;

use crate::database::DatabaseError;

/// An invariant and its violations.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// `I1` to `I7`, as in the documentation.
    pub invariant: &'static str,
    /// The invariant in words.
    pub claim: &'static str,
    /// The violations, at most [`MAX_SHOWN`] of them.
    pub violations: Vec<String>,
}

impl Finding {
    /// Whether there are no violations.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.violations.is_empty()
    }
}

/// The maximum number of violations that are listed.
pub const MAX_SHOWN: i64 = 50;

/// The maximum duration of a settlement, a promotion or a guard's check. After that, the audit reports it as missing.
pub const GRACE: Duration = Duration::from_secs(5);

const DRIFTED_BALANCES: &str = include_str!("sql/i6_balances.sql");
const DRIFTED_COUNTERS: &str = include_str!("sql/i6_counters.sql");

/// The first column of each query is a text per violation. All queries have these parameters:
///
/// - $1: the maximum number ([`MAX_SHOWN`]; NULL for all).
/// - $2: the grace in seconds ([`GRACE`]).
const CHECKS: [(&str, &str, &str); 18] = [
    (
        "I1",
        "used + reserved stays within the limit, per user, meter and window",
        include_str!("sql/i1_limits.sql"),
    ),
    (
        "I2",
        "slots in use stay within the plan's slots, or its burst, per holder and meter",
        include_str!("sql/i2_slots.sql"),
    ),
    (
        "I2",
        "every running job of a holder has one of its slots",
        include_str!("sql/i2_running.sql"),
    ),
    (
        "I3",
        "a completed job is charged exactly once, a cancelled or discarded one never",
        include_str!("sql/i3_charges.sql"),
    ),
    (
        "I3",
        "charges and reservations match their submissions",
        include_str!("sql/i3_accounts.sql"),
    ),
    (
        "I4",
        "no reservation outlives its job by more than a few seconds",
        include_str!("sql/i4_outlived.sql"),
    ),
    (
        "I4",
        "no reservation expires while its job can still run",
        include_str!("sql/i4_expired.sql"),
    ),
    (
        "I5",
        "every unfinished job has a reservation, so that it is promoted and settled",
        include_str!("sql/i5_unheld.sql"),
    ),
    (
        "I5",
        "a parked job waits only while all its holder's slots are in use",
        include_str!("sql/i5_waiting.sql"),
    ),
    (
        "I5",
        "a scheduled job requests a slot when it is due",
        include_str!("sql/i5_due.sql"),
    ),
    (
        "I5",
        "every running job belongs to a live process",
        include_str!("sql/i5_ownerless.sql"),
    ),
    (
        "I5",
        "every attempt that answers later is completed or taken over",
        include_str!("sql/i5_unanswered.sql"),
    ),
    (
        "I5",
        "a job that waits for its next attempt does not occupy a slot",
        include_str!("sql/i5_kept_slots.sql"),
    ),
    (
        "I5",
        "every accepted job exists until it has run or was cancelled",
        include_str!("sql/i5_lost.sql"),
    ),
    (
        "I5",
        "every job with a slot can be claimed",
        include_str!("sql/i5_unclaimable.sql"),
    ),
    ("I6", "balances equal the sums of their rows", DRIFTED_BALANCES),
    (
        "I6",
        "slot counters equal the rows that they count",
        DRIFTED_COUNTERS,
    ),
    (
        "I7",
        "grants match the reservations and charges drawn on them, per user and meter",
        include_str!("sql/i7_grants.sql"),
    ),
];

/// Checks everything in one snapshot, while other transactions continue. Changes within `grace` may still be in progress.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn audit(client: &mut Client, grace: Duration) -> Result<Vec<Finding>, DatabaseError> {
    let transaction = client
        .build_transaction()
        .isolation_level(IsolationLevel::RepeatableRead)
        .read_only(true)
        .start()
        .await?;
    let grace = grace.as_secs_f64();
    let mut findings = Vec::new();
    for (invariant, claim, sql) in CHECKS {
        // Every query gets all parameters, although not all queries use all of them.
        let sql = format!("WITH parameters AS (SELECT $1::bigint, $2::float8)\n{sql}");
        let rows = transaction.query(&sql, &[&MAX_SHOWN, &grace]).await?;
        findings.push(Finding {
            invariant,
            claim,
            violations: rows.iter().map(|row| row.get(0)).collect(),
        });
    }
    transaction.commit().await?;
    Ok(findings)
}

/// Rebuilds the counters of every holder that has drifted from its rows, each in a separate transaction under that
/// holder's locks. Returns how many it rebuilt.
///
/// # Errors
///
/// When the database cannot be used. Counters that were rebuilt before stay so.
pub async fn repair(client: &mut Client) -> Result<usize, DatabaseError> {
    let mut drifted = BTreeSet::<Uuid>::new();
    for sql in [DRIFTED_BALANCES, DRIFTED_COUNTERS] {
        let rows = client.query(sql, &[&None::<i64>]).await?;
        drifted.extend(rows.iter().map(|row| row.get::<_, Uuid>("holder")));
    }
    for holder in &drifted {
        client
            .execute("SELECT rebuild_accounts(ARRAY[$1::uuid])", &[holder])
            .await?;
    }
    Ok(drifted.len())
}

/// The findings as text.
#[must_use]
pub fn report(findings: &[Finding]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for finding in findings {
        let mark = if finding.holds() { "holds " } else { "BROKEN" };
        let _ = writeln!(text, "{mark}  {}  {}", finding.invariant, finding.claim);
        for violation in &finding.violations {
            let _ = writeln!(text, "            {violation}");
        }
    }
    text
}
