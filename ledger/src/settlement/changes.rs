//! Plans the changes for a group of ended attempts, based on the rows read under the locks. No I/O.

use std::collections::BTreeMap;

use jiff::Timestamp;
use uuid::Uuid;
use weir_policy::admission::{charge, charged_overage, promotions};
use weir_policy::grants::charged_to_grants;
use weir_policy::lane::Lane;
use weir_policy::span::Span;

use crate::meter::Meter;
use crate::plans::Plan;
use crate::reservation::Window;
use crate::rules::Rules;

/// The maximum number of jobs that one transaction promotes. The next transaction continues: lifting a limit may free
/// all parked jobs at once. pass_on_slots() has the same limit.
pub const MAX_PROMOTED: usize = 1000;

/// A holder and one of its meters.
pub(crate) type Key = (Uuid, Meter);

/// A holder's row for one meter, under its lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockedHolder {
    pub(crate) slots_in_use: i32,
    pub(crate) parked: i32,
    pub(crate) is_user: bool,
    pub(crate) plan: Option<Plan>,
}

/// A reservation to delete, or to change, after its job's attempt.
#[derive(Clone, Debug)]
pub(crate) struct Released {
    pub(crate) key: Key,
    pub(crate) held_slot: bool,
    pub(crate) was_parked: bool,
    /// Whether the job has ended. Otherwise, it only released its slot.
    pub(crate) ended: bool,
    pub(crate) job_id: i64,
    pub(crate) user_id: Option<Uuid>,
    pub(crate) period_start: Option<Timestamp>,
    /// The windows other than the month in which it counts, as a set of [`Span`]s, and the time that determines them.
    pub(crate) windows: i16,
    pub(crate) reserved_at: Timestamp,
    pub(crate) reserved: i64,
    /// The part that was drawn on grants.
    pub(crate) from_grants: i64,
    /// The overage in it.
    pub(crate) overage: i64,
    /// River's state of the job; `None` if the job was deleted.
    pub(crate) state: Option<String>,
    pub(crate) used: Option<i64>,
    pub(crate) request_id: Option<String>,
}

impl Released {
    /// The user's charge: only for completed jobs, and never more than was reserved.
    pub(crate) fn charged(&self) -> i64 {
        if self.user_id.is_none() || !self.ended || self.state.as_deref() != Some("completed") {
            return 0;
        }
        charge(self.reserved, self.used)
    }

    /// Every window in which it counts, with its start.
    fn starts(&self, month: Timestamp) -> impl Iterator<Item = (Span, Timestamp)> {
        let shorter =
            Span::from_bits(self.windows).filter_map(|span| Window::containing(span, self.reserved_at));
        std::iter::once((Span::Month, month)).chain(shorter.map(|window| (window.span, window.start)))
    }
}

/// One usage event per job.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Charges {
    pub(crate) users: Vec<Uuid>,
    pub(crate) meters: Vec<Meter>,
    pub(crate) amounts: Vec<i64>,
    pub(crate) jobs: Vec<i64>,
    pub(crate) periods: Vec<Timestamp>,
    pub(crate) windows: Vec<i16>,
    /// Only if a window depends on it.
    pub(crate) reserved_at: Vec<Option<Timestamp>>,
    /// The overage in the amounts.
    pub(crate) overages: Vec<i64>,
}

/// One row per job that drew on grants.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Draws {
    pub(crate) jobs: Vec<i64>,
    /// The part of the charge that grants pay for.
    pub(crate) charged: Vec<i64>,
    /// The part that returns to the grants.
    pub(crate) returned: Vec<i64>,
    pub(crate) users: Vec<Uuid>,
    pub(crate) meters: Vec<Meter>,
    pub(crate) periods: Vec<Timestamp>,
}

impl Draws {
    fn settle(&mut self, one: &Released, user: Uuid, period: Timestamp, charged: i64) {
        if one.from_grants == 0 {
            return;
        }
        let charged = charged_to_grants(one.reserved - one.overage, one.from_grants, charged);
        self.jobs.push(one.job_id);
        self.charged.push(charged);
        self.returned.push(one.from_grants - charged);
        self.users.push(user);
        self.meters.push(one.key.1);
        self.periods.push(period);
    }
}

/// One row per user, meter and window.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Balances {
    pub(crate) users: Vec<Uuid>,
    pub(crate) meters: Vec<Meter>,
    pub(crate) spans: Vec<&'static str>,
    pub(crate) starts: Vec<Timestamp>,
    pub(crate) reserved: Vec<i64>,
    pub(crate) charged: Vec<i64>,
}

/// One row per holder without parked jobs for its freed slots.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Freed {
    pub(crate) holders: Vec<Uuid>,
    pub(crate) meters: Vec<Meter>,
    pub(crate) slots: Vec<i32>,
    pub(crate) parked: Vec<i32>,
}

/// One row per holder with parked jobs and room for them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Promotions {
    pub(crate) holders: Vec<Uuid>,
    pub(crate) meters: Vec<Meter>,
    pub(crate) counts: Vec<i32>,
    pub(crate) lanes: Vec<&'static str>,
    pub(crate) limits: Vec<i32>,
    pub(crate) freed: Vec<i32>,
    pub(crate) unparked: Vec<i32>,
}

/// All planned writes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) charges: Charges,
    pub(crate) balances: Balances,
    pub(crate) draws: Draws,
    pub(crate) freed: Freed,
    pub(crate) promotions: Promotions,
}

/// Plans the writes. Jobs in `already_charged` have a usage event already and are not charged again.
pub(crate) fn plan(
    holders: &BTreeMap<Key, LockedHolder>,
    released: &[Released],
    already_charged: &[i64],
    rules: &Rules,
) -> Changes {
    let mut changes = Changes::default();
    let mut balances = BTreeMap::<_, (i64, i64)>::new();
    let mut freed = BTreeMap::<Key, (i32, i32)>::new();
    for one in released {
        let (slots, parked) = freed.entry(one.key).or_default();
        *slots += i32::from(one.held_slot);
        *parked += i32::from(one.was_parked);
        let (Some(user), Some(period), true) = (one.user_id, one.period_start, one.ended) else {
            continue;
        };
        let charged = if already_charged.contains(&one.job_id) {
            0
        } else {
            one.charged()
        };
        if charged > 0 {
            changes.charges.users.push(user);
            changes.charges.meters.push(one.key.1);
            changes.charges.amounts.push(charged);
            changes.charges.jobs.push(one.job_id);
            changes.charges.periods.push(period);
            changes.charges.windows.push(one.windows);
            let at = (one.windows != 0).then_some(one.reserved_at);
            changes.charges.reserved_at.push(at);
            changes
                .charges
                .overages
                .push(charged_overage(one.reserved, one.overage, charged));
        }
        changes.draws.settle(one, user, period, charged);
        for (span, start) in one.starts(period) {
            let (reserved, used) = balances.entry((user, one.key.1, span, start)).or_default();
            *reserved += one.reserved;
            *used += charged;
        }
    }
    for ((user, meter, span, start), (reserved, charged)) in balances {
        // A charge never exceeds the reservation.
        if reserved > 0 {
            changes.balances.users.push(user);
            changes.balances.meters.push(meter);
            changes.balances.spans.push(span.as_str());
            changes.balances.starts.push(start);
            changes.balances.reserved.push(reserved);
            changes.balances.charged.push(charged);
        }
    }
    let mut room = u32::try_from(MAX_PROMOTED).unwrap_or(u32::MAX);
    for (&key, holder) in holders {
        let (slots, parked) = freed.get(&key).copied().unwrap_or_default();
        let limit = rules.slots(holder.plan);
        let unsigned = |number: i32| u32::try_from(number).unwrap_or(0);
        let count = room.min(promotions(
            limit,
            unsigned(holder.slots_in_use - slots),
            unsigned(holder.parked - parked),
        ));
        room -= count;
        let signed = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        if count > 0 {
            changes.promotions.holders.push(key.0);
            changes.promotions.meters.push(key.1);
            changes.promotions.counts.push(signed(count));
            let lane = Lane::select(holder.plan.map(|plan| plan.lane), false);
            changes.promotions.lanes.push(lane.as_str());
            changes.promotions.limits.push(limit.map_or(i32::MAX, signed));
            changes.promotions.freed.push(slots);
            changes.promotions.unparked.push(parked);
        } else if slots > 0 || parked > 0 {
            changes.freed.holders.push(key.0);
            changes.freed.meters.push(key.1);
            changes.freed.slots.push(slots);
            changes.freed.parked.push(parked);
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::rules::SlotLimits;

    const FREE: Plan = Plan {
        name: "free",
        lane: Lane::Default,
        slots: 1,
        own_slots: None,
    };

    const PRO: Plan = Plan {
        name: "pro",
        lane: Lane::Priority,
        slots: 3,
        own_slots: None,
    };

    const ANNE: Key = (Uuid::from_u128(1), Meter::named("analysis"));

    fn rules() -> Rules {
        Rules {
            slot_limits: Some(SlotLimits::default()),
            ttl: Duration::from_secs(3600),
        }
    }

    fn accounts(slots_in_use: i32, parked: i32, plan: Option<Plan>) -> BTreeMap<Key, LockedHolder> {
        let account = LockedHolder {
            slots_in_use,
            parked,
            is_user: true,
            plan,
        };
        BTreeMap::from([(ANNE, account)])
    }

    fn released(job_id: i64, state: &str, reserved: i64, used: Option<i64>) -> Released {
        Released {
            key: ANNE,
            held_slot: true,
            was_parked: false,
            ended: true,
            job_id,
            user_id: Some(ANNE.0),
            period_start: Some(Timestamp::UNIX_EPOCH),
            windows: 0,
            reserved_at: Timestamp::UNIX_EPOCH,
            reserved,
            from_grants: 0,
            overage: 0,
            state: Some(state.to_owned()),
            used,
            request_id: None,
        }
    }

    #[test]
    fn only_completed_jobs_are_charged() {
        let ended = [
            released(1, "completed", 10, Some(4)),
            released(2, "completed", 10, None),
            released(3, "completed", 10, Some(99)),
            released(4, "cancelled", 10, Some(4)),
            released(5, "discarded", 10, None),
        ];
        let changes = plan(&accounts(5, 0, None), &ended, &[], &rules());
        assert_eq!(changes.charges.jobs, [1, 2, 3]);
        assert_eq!(changes.charges.amounts, [4, 10, 10]);
        assert_eq!(changes.balances.reserved, [50]);
        assert_eq!(changes.balances.charged, [24]);
        assert_eq!(changes.freed.slots, [5]);
    }

    #[test]
    fn settlement_updates_the_windows_of_the_reservation() {
        let mut one = released(1, "completed", 10, Some(4));
        one.windows = Span::Day.bit() + Span::Minute.bit();
        one.reserved_at = Timestamp::from_second(86_400 * 3 + 3_661).unwrap();
        let changes = plan(&accounts(1, 0, None), &[one.clone()], &[], &rules());
        assert_eq!(changes.balances.spans, ["month", "day", "minute"]);
        let starts: Vec<_> = changes
            .balances
            .starts
            .iter()
            .map(|start| start.as_second())
            .collect();
        assert_eq!(starts, [0, 86_400 * 3, 86_400 * 3 + 3_660]);
        assert_eq!(changes.balances.reserved, [10, 10, 10]);
        assert_eq!(changes.balances.charged, [4, 4, 4]);
        assert_eq!(changes.charges.windows, [one.windows]);
        assert_eq!(changes.charges.reserved_at, [Some(one.reserved_at)]);
    }

    #[test]
    fn unused_grant_amounts_are_returned_at_settlement() {
        let of = |used| {
            let mut one = released(1, "completed", 80, used);
            one.from_grants = 50;
            let draws = plan(&accounts(1, 0, None), &[one], &[], &rules()).draws;
            (draws.charged[0], draws.returned[0])
        };
        assert_eq!(of(Some(30)), (0, 50));
        assert_eq!(of(Some(40)), (10, 40));
        assert_eq!(of(None), (50, 0));
        let plain = plan(
            &accounts(1, 0, None),
            &[released(1, "completed", 80, None)],
            &[],
            &rules(),
        );
        assert_eq!(plain.draws, Draws::default());
    }

    #[test]
    fn a_job_with_an_event_is_not_charged_again() {
        let ended = [released(1, "completed", 10, None)];
        let changes = plan(&accounts(1, 0, None), &ended, &[1], &rules());
        assert_eq!(changes.charges, Charges::default());
        assert_eq!(
            (changes.balances.reserved[0], changes.balances.charged[0]),
            (10, 0)
        );
    }

    #[test]
    fn a_retried_job_keeps_its_quota_and_releases_its_slot() {
        let mut waits = released(1, "retryable", 10, None);
        waits.ended = false;
        let changes = plan(&accounts(1, 1, None), &[waits], &[], &rules());
        assert_eq!(changes.balances, Balances::default());
        assert_eq!(
            (changes.promotions.counts[0], changes.promotions.freed[0]),
            (1, 1)
        );
    }

    #[test]
    fn freed_slots_promote_parked_jobs_up_to_the_current_plans_limit() {
        let ended = [released(1, "completed", 1, None)];
        let of = |in_use, parked, of| plan(&accounts(in_use, parked, of), &ended, &[], &rules()).promotions;
        assert_eq!(of(1, 5, None).counts, [1]);
        assert_eq!(of(1, 5, None).lanes, ["default"]);
        assert_eq!(of(1, 5, Some(PRO)).counts, [3]);
        assert_eq!(of(1, 5, Some(PRO)).lanes, ["priority"]);
        assert_eq!(of(4, 5, Some(FREE)), Promotions::default());
    }

    #[test]
    fn a_parked_job_that_ends_does_not_free_a_slot() {
        let mut cancelled = released(1, "cancelled", 1, None);
        cancelled.held_slot = false;
        cancelled.was_parked = true;
        let changes = plan(&accounts(1, 3, None), &[cancelled], &[], &rules());
        assert_eq!((changes.freed.slots[0], changes.freed.parked[0]), (0, 1));
        assert_eq!(changes.promotions, Promotions::default());
    }

    #[test]
    fn cancelling_the_last_parked_job_does_not_promote_a_job() {
        let mut cancelled = released(1, "cancelled", 1, None);
        cancelled.held_slot = false;
        cancelled.was_parked = true;
        let changes = plan(&accounts(0, 1, None), &[cancelled], &[], &rules());
        assert_eq!(changes.promotions, Promotions::default());
        assert_eq!(changes.freed.parked, [1]);
    }

    #[test]
    fn anonymous_and_unfinished_jobs_are_not_charged() {
        let anonymous = Released {
            user_id: None,
            ..released(1, "completed", 10, Some(4))
        };
        let under_way = Released {
            ended: false,
            ..released(2, "completed", 10, Some(4))
        };
        let cancelled = released(3, "cancelled", 10, Some(4));
        let done = released(4, "completed", 10, Some(4));
        let charged = [anonymous, under_way, cancelled, done].map(|one| one.charged());
        assert_eq!(charged, [0, 0, 0, 4]);
    }

    #[test]
    fn jobs_without_quota_do_not_write_a_balance() {
        let changes = plan(
            &accounts(1, 0, None),
            &[released(1, "completed", 0, None)],
            &[],
            &rules(),
        );
        assert_eq!(changes.balances, Balances::default());
        assert_eq!(changes.charges, Charges::default());
    }

    #[test]
    fn the_promotion_limit_of_a_transaction_covers_all_its_holders() {
        let lifted = Rules {
            slot_limits: None,
            ..rules()
        };
        let mut holders = accounts(0, 700, None);
        let another = (Uuid::from_u128(2), ANNE.1);
        holders.insert(another, holders[&ANNE]);
        assert_eq!(plan(&holders, &[], &[], &lifted).promotions.counts, [700, 300]);
    }

    #[test]
    fn one_transaction_promotes_a_limited_number_of_jobs() {
        let lifted = Rules {
            slot_limits: None,
            ..rules()
        };
        let changes = plan(&accounts(1, 350_000, None), &[], &[], &lifted);
        assert_eq!(changes.promotions.counts, [1000]);
        let sql = include_str!("../../schema/functions/settlement/pass_on_slots.sql");
        assert!(
            sql.contains(&format!("n := least({MAX_PROMOTED}, ")),
            "another limit in SQL"
        );
    }
}
