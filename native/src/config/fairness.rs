//! ADR-10's settings: the `FAIRNESS_` variables.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_ledger::rules::SlotLimits;

use super::catalogue::MAX_SLOTS;
use super::variables::Reader;

/// ADR-10's variables, and the plans that they set slots for.
const PLANS: [(&str, &str); 4] = [
    ("free", "FAIRNESS_FREE_LIMIT"),
    ("pro", "FAIRNESS_PRO_LIMIT"),
    ("pro_plus", "FAIRNESS_PRO_PLUS_LIMIT"),
    ("enterprise", "FAIRNESS_ENTERPRISE_LIMIT"),
];

/// ADR-10's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fairness {
    /// `FAIRNESS_ENABLED`.
    pub enabled: bool,
    /// The limits that the variables set. They override those of the plans.
    pub limits: SlotLimits,
    /// `FAIRNESS_SNOOZE_DURATION`.
    pub snooze: Duration,
    /// `FAIRNESS_SNOOZE_JITTER`.
    pub jitter: Duration,
}

pub(super) fn read(reader: &mut Reader<'_>) -> Fairness {
    let enabled = reader.flag("FAIRNESS_ENABLED", true);
    let mut of_plans = BTreeMap::new();
    for (plan, variable) in PLANS {
        if let Some(slots) = reader.positive_if_set(variable, MAX_SLOTS) {
            of_plans.insert(plan.to_owned(), slots);
        }
    }
    // In ADR-10, Pro Plus has the limit of Pro.
    if let Some(slots) = of_plans.get("pro").copied() {
        of_plans.entry("pro_plus".to_owned()).or_insert(slots);
    }
    let limits = SlotLimits {
        of_plans,
        anonymous: reader.positive("FAIRNESS_ANONYMOUS_LIMIT", 1, MAX_SLOTS),
    };
    let second = Duration::from_secs(1);
    Fairness {
        enabled,
        limits,
        snooze: reader.duration("FAIRNESS_SNOOZE_DURATION", 30 * second, second),
        jitter: reader.duration("FAIRNESS_SNOOZE_JITTER", 10 * second, Duration::ZERO),
    }
}
