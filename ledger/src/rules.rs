//! What a transaction decides by, besides the database.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::plans::Plan;

/// Slots that the configuration of a process sets; they win over those of the plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotLimits {
    /// By the name of the plan.
    pub of_plans: BTreeMap<String, u32>,
    /// Per client address, which has no plan.
    pub anonymous: u32,
}

impl Default for SlotLimits {
    /// What the plans say, and one for a client address.
    fn default() -> Self {
        Self {
            of_plans: BTreeMap::new(),
            anonymous: 1,
        }
    }
}

impl SlotLimits {
    /// The slots of a holder, per meter: how many of its jobs may be worked on at the same time. Without a plan it is a
    /// client address. The SQL function `slot_limit` is the same for statements.
    #[must_use]
    pub fn of(&self, plan: Option<Plan>) -> u32 {
        plan.map_or(self.anonymous, |plan| {
            let of_plan = self.of_plans.get(plan.name).copied();
            plan.own_slots.or(of_plan).unwrap_or(plan.slots)
        })
    }

    /// As statements take them: names of plans and their slots, pairwise, and the slots of a client address.
    pub(crate) fn columns(&self) -> (Vec<&str>, Vec<i64>, i64) {
        let names = self.of_plans.keys().map(String::as_str).collect();
        let slots = self.of_plans.values().copied().map(i64::from).collect();
        (names, slots, self.anonymous.into())
    }
}

/// The operator's limits. They come from the configuration and hold for every transaction of a process.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Slots per holder and meter; `None` parks nobody.
    pub slot_limits: Option<SlotLimits>,
    /// How long a reservation lives unless it is renewed.
    pub ttl: Duration,
}

impl Rules {
    /// The slots of a holder of this plan, or of a client address; `None` is no limit.
    #[must_use]
    pub fn slots(&self, plan: Option<Plan>) -> Option<u32> {
        self.slot_limits.as_ref().map(|limits| limits.of(plan))
    }
}
