//! What a transaction decides by, besides the database.

use std::sync::Arc;
use std::time::Duration;

use weir_policy::lane::Lane;
use weir_policy::tier::{SlotLimits, Tier};

/// The operator's limits. They come from the configuration and hold for every transaction of a process.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Slots per holder and event type; `None` parks nobody.
    pub slot_limits: Option<SlotLimits>,
    /// How long a reservation lives unless it is renewed.
    pub ttl: Duration,
    /// The priority and default queues of the services, between which promotion moves a job. A job in any other queue
    /// stays there.
    pub lanes: Arc<[String]>,
}

impl Rules {
    /// The queues of these services' priority and default lanes.
    pub fn lanes_of<'a>(services: impl IntoIterator<Item = &'a str>) -> Arc<[String]> {
        services
            .into_iter()
            .flat_map(|service| [Lane::Priority, Lane::Default].map(|lane| lane.queue(service)))
            .collect()
    }

    /// The slots of a holder: a user of that tier (an unknown one counts as Free), or a client address.
    #[must_use]
    pub fn slots(&self, is_user: bool, tier: Option<Tier>) -> Option<u32> {
        let limits = self.slot_limits?;
        Some(if is_user {
            limits.of(tier.unwrap_or_default())
        } else {
            limits.anonymous
        })
    }

    /// The slots per tier, in the order of [`Tier::ALL`], and of a client address last, as statements take them. No
    /// limit is the largest `bigint`.
    #[must_use]
    pub fn slots_by_tier(limits: Option<SlotLimits>) -> Vec<i64> {
        let slots = |tier| limits.map_or(i64::MAX, |limits| i64::from(limits.of(tier)));
        let anonymous = limits.map_or(i64::MAX, |limits| i64::from(limits.anonymous));
        Tier::ALL.into_iter().map(slots).chain([anonymous]).collect()
    }
}
