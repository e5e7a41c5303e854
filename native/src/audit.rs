//! `weir audit`: proves the invariants I1 to I6 on the database, in one snapshot.

use serde::Serialize;
use tokio_postgres::IsolationLevel;

use weir_policy::tier::{SlotLimits, Tier};

use crate::database::DatabaseError;

/// One invariant and who breaks it.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// `I1` to `I6`, as in the design.
    pub invariant: &'static str,
    /// What must hold.
    pub claim: &'static str,
    /// For whom it does not, at most [`MOST_SHOWN`] of them.
    pub violations: Vec<String>,
}

impl Finding {
    /// Whether it holds for everybody.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.violations.is_empty()
    }
}

/// More violations than this are not listed.
pub const MOST_SHOWN: i64 = 50;

/// Each query returns one text per violation. $1 is [`MOST_SHOWN`]; $2 of those that compare slots is the limits of the
/// tiers and of an anonymous address.
const CHECKS: [(&str, &str, &str); 8] = [
    (
        "I1",
        "used + reserved stay within the limit, per user, event type and billing period",
        include_str!("sql/audit_limits.sql"),
    ),
    (
        "I2",
        "slots in use stay within the tier's limit, per holder and event type",
        include_str!("sql/audit_slots.sql"),
    ),
    (
        "I3",
        "a completed job is charged exactly once, a cancelled or discarded one never",
        include_str!("sql/audit_charges.sql"),
    ),
    (
        "I4",
        "no reservation outlives its job by more than seconds",
        "SELECT format('job %s (%s): reservation of %s for user %s', r.job_id, coalesce(j.state::text, 'gone'), r.reserved_amount, r.user_id) \
         FROM quota_reservations r LEFT JOIN river_job j ON j.id = r.job_id \
         WHERE j.finalized_at < now() - interval '30 seconds' \
            OR j.id IS NULL AND r.created_at < now() - interval '60 seconds' LIMIT $1",
    ),
    (
        "I4",
        "no reservation expires while its job can still run",
        "SELECT format('job %s (%s): expired at %s', r.job_id, j.state, r.expires_at) \
         FROM quota_reservations r JOIN river_job j ON j.id = r.job_id \
         WHERE j.finalized_at IS NULL AND r.expires_at < now() LIMIT $1",
    ),
    (
        "I5",
        "no accepted job is stuck: a parked one has a reservation, and waits only while the slots are taken",
        include_str!("sql/audit_stuck.sql"),
    ),
    (
        "I6",
        "balances equal the sums of their rows",
        include_str!("sql/audit_balances.sql"),
    ),
    (
        "I6",
        "slot counters equal the rows that they count",
        "SELECT format('holder %s, %s: slots %s, counted %s; parked %s, counted %s', holder, event_type, \
                coalesce(h.slots_in_use, 0), coalesce(r.slots, 0), coalesce(h.parked, 0), coalesce(r.parked, 0)) \
         FROM holders h FULL JOIN (SELECT holder, event_type, count(admitted_at) AS slots, count(parked_at) AS parked \
                                   FROM quota_reservations GROUP BY 1, 2) r USING (holder, event_type) \
         WHERE coalesce(h.slots_in_use, 0) <> coalesce(r.slots, 0) OR coalesce(h.parked, 0) <> coalesce(r.parked, 0) LIMIT $1",
    ),
];

/// Checks everything in one snapshot, while others go on working.
///
/// # Errors
///
/// When the database cannot be asked.
pub async fn audit(
    client: &mut tokio_postgres::Client,
    limits: Option<SlotLimits>,
) -> Result<Vec<Finding>, DatabaseError> {
    let transaction = client
        .build_transaction()
        .isolation_level(IsolationLevel::RepeatableRead)
        .read_only(true)
        .start()
        .await?;
    let unlimited = SlotLimits {
        free: u32::MAX,
        pro: u32::MAX,
        pro_plus: u32::MAX,
        enterprise: u32::MAX,
        anonymous: u32::MAX,
    };
    let limits = limits.unwrap_or(unlimited);
    let limits: Vec<i64> = Tier::ALL
        .map(|tier| limits.of(tier))
        .into_iter()
        .chain([limits.anonymous])
        .map(i64::from)
        .collect();
    let mut findings = Vec::new();
    for (invariant, claim, sql) in CHECKS {
        let statement = transaction.prepare(sql).await?;
        let params: [&(dyn postgres_types::ToSql + Sync); 2] = [&MOST_SHOWN, &limits];
        let rows = transaction
            .query(&statement, &params[..statement.params().len()])
            .await?;
        findings.push(Finding {
            invariant,
            claim,
            violations: rows.iter().map(|row| row.get(0)).collect(),
        });
    }
    transaction.commit().await?;
    Ok(findings)
}

/// Rebuilds every counter from the rows it stands for, under a lock that keeps everybody else out meanwhile.
///
/// # Errors
///
/// When the database cannot be used. Nothing is changed then.
pub async fn repair(client: &mut tokio_postgres::Client) -> Result<(), DatabaseError> {
    let transaction = client.transaction().await?;
    transaction
        .batch_execute(include_str!("sql/audit_repair.sql"))
        .await?;
    transaction.commit().await?;
    Ok(())
}

/// The findings for people.
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
