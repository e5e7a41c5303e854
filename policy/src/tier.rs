//! Plan tiers and how many jobs of one user each tier lets run at once (ADR-10).

use serde::{Deserialize, Serialize};

/// The tier of a subscription plan, named as in the database's `plan_tier`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// No payment; also what an unknown user or an unknown tier counts as.
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
    /// Every tier, cheapest first.
    pub const ALL: [Self; 4] = [Self::Free, Self::Pro, Self::ProPlus, Self::Enterprise];

    /// The name that the database and the API use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Pro => "pro",
            Self::ProPlus => "pro_plus",
            Self::Enterprise => "enterprise",
        }
    }

    /// The tier of that name; `None` for a name that this version does not know.
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

/// How many slots a holder has per event type: jobs that may be worked on at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLimits {
    /// `FAIRNESS_FREE_LIMIT`.
    pub free: u32,
    /// `FAIRNESS_PRO_LIMIT`.
    pub pro: u32,
    /// `FAIRNESS_PRO_PLUS_LIMIT`; ADR-10 gives Pro Plus what Pro has.
    pub pro_plus: u32,
    /// `FAIRNESS_ENTERPRISE_LIMIT`.
    pub enterprise: u32,
    /// `FAIRNESS_ANONYMOUS_LIMIT`, for one client address.
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
    /// The slots of a user of that tier.
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
    fn every_tier_is_found_under_its_own_name() {
        for tier in Tier::ALL {
            assert_eq!(Tier::parse(tier.as_str()), Some(tier));
            assert_eq!(serde_json::to_value(tier).unwrap(), tier.as_str());
        }
        assert_eq!(Tier::parse("platinum"), None);
    }

    #[test]
    fn the_limits_are_those_of_adr_10() {
        let limits = SlotLimits::default();
        assert_eq!(Tier::ALL.map(|tier| limits.of(tier)), [1, 3, 3, 5]);
    }
}
