//! The limits from the configuration. The database has a copy, which its functions decide by.

use std::collections::BTreeMap;
use std::time::Duration;

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

/// The operator's limits, from the configuration. `weir migrate` writes them to the database.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Slots per holder and meter; `None` never parks a job.
    pub slot_limits: Option<SlotLimits>,
    /// The lifetime of a reservation without renewal.
    pub ttl: Duration,
}
