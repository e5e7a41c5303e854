//! Plan tiers, and the number of a user's jobs that may run at once in each (ADR-10).

use serde::{Deserialize, Serialize};

/// The tier of a subscription plan, named as in the database's `plan_tier`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// The tier without payment, and of unknown users and unknown tiers.
    #[default]
    Free,
    /// The first paid plan.
    Pro,
    /// The second paid plan.
    ProPlus,
    /// Unlimited quota.
    Enterprise,
}

impl Tier {
    /// All tiers, cheapest first.
    pub const ALL: [Self; 4] = [Self::Free, Self::Pro, Self::ProPlus, Self::Enterprise];

    /// The name in the database and the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Pro => "pro",
            Self::ProPlus => "pro_plus",
            Self::Enterprise => "enterprise",
        }
    }

    /// The tier of this name; `None` for an unknown name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tier| tier.as_str() == name)
    }
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The slots of a holder per event type: how many of its jobs may be worked on at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLimits {
    /// `FAIRNESS_FREE_LIMIT`.
    pub free: u32,
    /// `FAIRNESS_PRO_LIMIT`.
    pub pro: u32,
    /// `FAIRNESS_PRO_PLUS_LIMIT`. In ADR-10, Pro Plus has the limit of Pro.
    pub pro_plus: u32,
    /// `FAIRNESS_ENTERPRISE_LIMIT`.
    pub enterprise: u32,
    /// `FAIRNESS_ANONYMOUS_LIMIT`, per client address.
    pub anonymous: u32,
}

impl Default for SlotLimits {
    /// The limits of ADR-10: 1, 3, 3 and 5; one for an anonymous address.
    fn default() -> Self {
        Self {
            free: 1,
            pro: 3,
            pro_plus: 3,
            enterprise: 5,
            anonymous: 1,
        }
    }
}

impl SlotLimits {
    /// The slots of a user of this tier.
    #[must_use]
    pub fn of(&self, tier: Tier) -> u32 {
        match tier {
            Tier::Free => self.free,
            Tier::Pro => self.pro,
            Tier::ProPlus => self.pro_plus,
            Tier::Enterprise => self.enterprise,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tier_is_parsed_from_its_name() {
        for tier in Tier::ALL {
            assert_eq!(Tier::parse(tier.as_str()), Some(tier));
            assert_eq!(serde_json::to_value(tier).unwrap(), tier.as_str());
        }
        assert_eq!(Tier::parse("platinum"), None);
    }

    #[test]
    fn the_default_limits_follow_adr_10() {
        let limits = SlotLimits::default();
        assert_eq!(Tier::ALL.map(|tier| limits.of(tier)), [1, 3, 3, 5]);
    }
}
