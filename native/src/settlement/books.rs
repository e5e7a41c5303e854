//! What a group of ended attempts changes, worked out from what was read under the locks. No I/O.

use std::collections::BTreeMap;

use jiff::Timestamp;
use uuid::Uuid;
use weir_policy::admission::{charge, promotions};
use weir_policy::lane::Lane;
use weir_policy::tier::Tier;

use crate::reservation::Rules;
use crate::service::EventType;

/// A holder and one of its event types.
pub(super) type Key = (Uuid, EventType);

/// A holder under its lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    pub(super) slots_in_use: i32,
    pub(super) parked: i32,
    pub(super) is_user: bool,
    pub(super) tier: Option<Tier>,
}

/// A reservation that its job no longer needs as it was.
#[derive(Clone, Debug)]
pub(super) struct Released {
    pub(super) key: Key,
    pub(super) held_slot: bool,
    pub(super) was_parked: bool,
    /// Its job is at its end; otherwise only the slot was given up.
    pub(super) ended: bool,
    pub(super) job_id: i64,
    pub(super) user_id: Option<Uuid>,
    pub(super) period_start: Option<Timestamp>,
    pub(super) reserved: i32,
    /// River's state of the job; `None` when the job is gone.
    pub(super) state: Option<String>,
    pub(super) used: Option<i64>,
    pub(super) request_id: Option<String>,
}

impl Released {
    /// What the user pays: completed jobs only, and never more than was reserved.
    pub(super) fn charged(&self) -> i32 {
        if self.user_id.is_none() || !self.ended || self.state.as_deref() != Some("completed") {
            return 0;
        }
        i32::try_from(charge(self.reserved.into(), self.used)).unwrap_or(self.reserved)
    }
}

/// One usage event a job.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Charges {
    pub(super) users: Vec<Uuid>,
    pub(super) event_types: Vec<EventType>,
    pub(super) amounts: Vec<i32>,
    pub(super) jobs: Vec<i64>,
    pub(super) periods: Vec<Timestamp>,
}

/// One row a user, event type and period.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Balances {
    pub(super) users: Vec<Uuid>,
    pub(super) event_types: Vec<EventType>,
    pub(super) periods: Vec<Timestamp>,
    pub(super) reserved: Vec<i64>,
    pub(super) charged: Vec<i64>,
}

/// One row a holder whose slots nobody waits for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Freed {
    pub(super) holders: Vec<Uuid>,
    pub(super) event_types: Vec<EventType>,
    pub(super) slots: Vec<i32>,
    pub(super) parked: Vec<i32>,
}

/// One row a holder with parked jobs and room for them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Promotions {
    pub(super) holders: Vec<Uuid>,
    pub(super) event_types: Vec<EventType>,
    pub(super) counts: Vec<i32>,
    pub(super) lanes: Vec<&'static str>,
    pub(super) limits: Vec<i32>,
    pub(super) freed: Vec<i32>,
    pub(super) unparked: Vec<i32>,
}

/// Everything that is to be written.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Books {
    pub(super) charges: Charges,
    pub(super) balances: Balances,
    pub(super) freed: Freed,
    pub(super) promotions: Promotions,
}

/// `charged_before` are jobs that have a usage event already and are not charged again.
pub(super) fn keep(
    accounts: &BTreeMap<Key, Account>,
    released: &[Released],
    charged_before: &[i64],
    rules: &Rules,
) -> Books {
    let mut books = Books::default();
    let mut balances = BTreeMap::<_, (i64, i64)>::new();
    let mut freed = BTreeMap::<Key, (i32, i32)>::new();
    for one in released {
        let (slots, parked) = freed.entry(one.key).or_default();
        *slots += i32::from(one.held_slot);
        *parked += i32::from(one.was_parked);
        let (Some(user), Some(period), true) = (one.user_id, one.period_start, one.ended) else {
            continue;
        };
        let charged = if charged_before.contains(&one.job_id) {
            0
        } else {
            one.charged()
        };
        if charged > 0 {
            books.charges.users.push(user);
            books.charges.event_types.push(one.key.1);
            books.charges.amounts.push(charged);
            books.charges.jobs.push(one.job_id);
            books.charges.periods.push(period);
        }
        let (reserved, used) = balances.entry((user, one.key.1, period)).or_default();
        *reserved += i64::from(one.reserved);
        *used += i64::from(charged);
    }
    for ((user, event_type, period), (reserved, charged)) in balances {
        if reserved > 0 || charged > 0 {
            books.balances.users.push(user);
            books.balances.event_types.push(event_type);
            books.balances.periods.push(period);
            books.balances.reserved.push(reserved);
            books.balances.charged.push(charged);
        }
    }
    for (&key, account) in accounts {
        let (slots, parked) = freed.get(&key).copied().unwrap_or_default();
        let limit = rules.slots(account.is_user, account.tier);
        let unsigned = |number: i32| u32::try_from(number).unwrap_or(0);
        let count = promotions(
            limit,
            unsigned(account.slots_in_use - slots),
            unsigned(account.parked - parked),
        );
        let signed = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        if count > 0 {
            books.promotions.holders.push(key.0);
            books.promotions.event_types.push(key.1);
            books.promotions.counts.push(signed(count));
            books
                .promotions
                .lanes
                .push(Lane::select(account.tier, false).as_str());
            books.promotions.limits.push(limit.map_or(i32::MAX, signed));
            books.promotions.freed.push(slots);
            books.promotions.unparked.push(parked);
        } else if slots > 0 || parked > 0 {
            books.freed.holders.push(key.0);
            books.freed.event_types.push(key.1);
            books.freed.slots.push(slots);
            books.freed.parked.push(parked);
        }
    }
    books
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_policy::tier::SlotLimits;

    use super::*;

    const ANNE: Key = (Uuid::from_u128(1), EventType::Analysis);

    fn rules() -> Rules {
        Rules {
            slot_limits: Some(SlotLimits::default()),
            ttl: Duration::from_secs(3600),
        }
    }

    fn accounts(slots_in_use: i32, parked: i32, tier: Option<Tier>) -> BTreeMap<Key, Account> {
        let account = Account {
            slots_in_use,
            parked,
            is_user: true,
            tier,
        };
        BTreeMap::from([(ANNE, account)])
    }

    fn released(job_id: i64, state: &str, reserved: i32, used: Option<i64>) -> Released {
        Released {
            key: ANNE,
            held_slot: true,
            was_parked: false,
            ended: true,
            job_id,
            user_id: Some(ANNE.0),
            period_start: Some(Timestamp::UNIX_EPOCH),
            reserved,
            state: Some(state.to_owned()),
            used,
            request_id: None,
        }
    }

    #[test]
    fn completed_jobs_are_charged_what_they_used_and_others_nothing() {
        let ended = [
            released(1, "completed", 10, Some(4)),
            released(2, "completed", 10, None),
            released(3, "completed", 10, Some(99)),
            released(4, "cancelled", 10, Some(4)),
            released(5, "discarded", 10, None),
        ];
        let books = keep(&accounts(5, 0, None), &ended, &[], &rules());
        assert_eq!(books.charges.jobs, [1, 2, 3]);
        assert_eq!(books.charges.amounts, [4, 10, 10]);
        assert_eq!(books.balances.reserved, [50]);
        assert_eq!(books.balances.charged, [24]);
        assert_eq!(books.freed.slots, [5]);
    }

    #[test]
    fn a_job_with_an_event_is_not_charged_again() {
        let ended = [released(1, "completed", 10, None)];
        let books = keep(&accounts(1, 0, None), &ended, &[1], &rules());
        assert_eq!(books.charges, Charges::default());
        assert_eq!((books.balances.reserved[0], books.balances.charged[0]), (10, 0));
    }

    #[test]
    fn a_job_that_is_to_be_tried_again_keeps_its_quota_and_gives_its_slot() {
        let mut waits = released(1, "retryable", 10, None);
        waits.ended = false;
        let books = keep(&accounts(1, 1, None), &[waits], &[], &rules());
        assert_eq!(books.balances, Balances::default());
        assert_eq!((books.promotions.counts[0], books.promotions.freed[0]), (1, 1));
    }

    #[test]
    fn freed_slots_go_to_parked_jobs_as_far_as_the_tier_of_now_allows() {
        let ended = [released(1, "completed", 1, None)];
        let of =
            |in_use, parked, tier| keep(&accounts(in_use, parked, tier), &ended, &[], &rules()).promotions;
        assert_eq!(of(1, 5, None).counts, [1]);
        assert_eq!(of(1, 5, None).lanes, ["default"]);
        assert_eq!(of(1, 5, Some(Tier::Pro)).counts, [3]);
        assert_eq!(of(1, 5, Some(Tier::Pro)).lanes, ["priority"]);
        assert_eq!(of(4, 5, Some(Tier::Free)), Promotions::default());
    }
}
