//! The limits from the configuration. The database has a copy, which its functions decide by.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::plans::Plan;

/// Configured slots, which override those of the plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotLimits {
    /// By plan name.
    pub of_plans: BTreeMap<String, u32>,
    /// Per client address, which has no plan.
    pub anonymous: u32,
}

impl Default for SlotLimits {
    /// The slots of the plans, and one for a client address.
    fn default() -> Self {
        Self {
            of_plans: BTreeMap::new(),
            anonymous: 1,
        }
    }
}

impl SlotLimits {
    /// The slots of a holder per meter in one process (`FAIRNESS_SCOPE=process`): how many of its jobs may run at once.
    /// A holder without a plan is a client address. SQL: `slot_limit`.
    #[must_use]
    pub fn of(&self, plan: Option<Plan>) -> u32 {
        plan.map_or(self.anonymous, |plan| {
            let of_plan = self.of_plans.get(plan.name).copied();
            plan.own_slots.or(of_plan).unwrap_or(plan.slots)
        })
    }
}

/// The operator's limits, from the configuration. `weir migrate` writes them to the database.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Slots per holder and meter; `None` never parks a job.
    pub slot_limits: Option<SlotLimits>,
    /// The lifetime of a reservation without renewal.
    pub ttl: Duration,
}
