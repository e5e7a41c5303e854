//! ADR-10's settings: the `FAIRNESS_` variables.

use std::time::Duration;

use weir_policy::tier::SlotLimits;

use super::variables::Reader;

/// Who counts a user's running jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FairnessScope {
    /// The database, over all processes: exact.
    Cluster,
    /// Each process for itself, as ADR-10 has it.
    Process,
}

/// ADR-10's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fairness {
    /// `FAIRNESS_ENABLED`.
    pub enabled: bool,
    /// `FAIRNESS_SCOPE`.
    pub scope: FairnessScope,
    /// The limit of each tier.
    pub limits: SlotLimits,
    /// `FAIRNESS_SNOOZE_DURATION`.
    pub snooze: Duration,
    /// `FAIRNESS_SNOOZE_JITTER`.
    pub jitter: Duration,
}

impl Fairness {
    /// The limits that the database counts against; `None` when it has none to count.
    #[must_use]
    pub fn cluster_limits(&self) -> Option<SlotLimits> {
        (self.enabled && self.scope == FairnessScope::Cluster).then_some(self.limits)
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Fairness {
    let enabled = reader.parsed("FAIRNESS_ENABLED", true, "true or false", |text| {
        text.parse::<bool>().ok()
    });
    let scope = reader.parsed(
        "FAIRNESS_SCOPE",
        FairnessScope::Cluster,
        "cluster or process",
        |text| match text {
            "cluster" => Some(FairnessScope::Cluster),
            "process" => Some(FairnessScope::Process),
            _ => None,
        },
    );
    let defaults = SlotLimits::default();
    let pro = reader.positive("FAIRNESS_PRO_LIMIT", defaults.pro, 10_000);
    let limits = SlotLimits {
        free: reader.positive("FAIRNESS_FREE_LIMIT", defaults.free, 10_000),
        pro,
        pro_plus: reader.positive("FAIRNESS_PRO_PLUS_LIMIT", pro, 10_000),
        enterprise: reader.positive("FAIRNESS_ENTERPRISE_LIMIT", defaults.enterprise, 10_000),
        anonymous: reader.positive("FAIRNESS_ANONYMOUS_LIMIT", defaults.anonymous, 10_000),
    };
    let second = Duration::from_secs(1);
    Fairness {
        enabled,
        scope,
        limits,
        snooze: reader.duration("FAIRNESS_SNOOZE_DURATION", 30 * second, second),
        jitter: reader.duration("FAIRNESS_SNOOZE_JITTER", 10 * second, Duration::ZERO),
    }
}
