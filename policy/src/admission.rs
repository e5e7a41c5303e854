//! Admission: whether a submission is accepted, and whether its job gets a slot now (ADR-21 and ADR-10).
//!
//! A specification for tests and for the model: the database's functions `submit_many` and `settle_many` decide. An
//! [`Allowance`] also computes the quotas in answers. Amounts are in the unit of the meter.

use serde::{Deserialize, Serialize};

use crate::grants::{self, Draw, Grant};

/// A plan's limit in one window, and the usage and reservations counted against it. SQL: `quota_json`, `room_in`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// The plan's limit for the window; `None` is unlimited.
    pub limit: Option<i64>,
    /// The ceiling of a soft limit: more is accepted up to here, as overage. `None` is the limit itself.
    pub ceiling: Option<i64>,
    /// The sum of the window's usage events.
    pub used: i64,
    /// The sum of the window's outstanding reservations.
    pub reserved: i64,
    /// The part of `used` and `reserved` that grants pay for.
    pub from_grants: i64,
    /// The further amount that grants would pay for.
    pub granted: i64,
}

impl Allowance {
    /// The amount above which nothing is accepted, not counting grants: the ceiling of a soft limit, else the limit.
    /// `None` is unlimited. SQL: `max_accepted`.
    #[must_use]
    pub fn max_accepted(&self) -> Option<i64> {
        self.limit
            .map(|limit| self.ceiling.map_or(limit, |ceiling| limit.max(ceiling)))
    }

    /// The usage and reservations above a soft limit that no grant pays for.
    #[must_use]
    pub fn overage(&self) -> i64 {
        let plan_remaining = self
            .used
            .saturating_add(self.reserved)
            .saturating_sub(self.from_grants);
        match (self.limit, self.max_accepted()) {
            (Some(limit), Some(most)) if most > limit => plan_remaining.saturating_sub(limit).max(0),
            _ => 0,
        }
    }

    /// ADR-21's check, `used + reserved + requested <= limit`, extended by grants and by the ceiling of a soft limit.
    /// Usage above a limit that was lowered later is not a debt: grants pay for new requests.
    #[must_use]
    pub fn has_room_for(&self, requested: i64) -> bool {
        self.remaining().is_none_or(|left| requested <= left)
    }

    /// The amount that is still accepted, from the plan, from grants and up to the ceiling of a soft limit. Never below
    /// zero; `None` is unlimited. SQL: `room_in`.
    #[must_use]
    pub fn remaining(&self) -> Option<i64> {
        Some(self.left_of(self.max_accepted()?).saturating_add(self.granted))
    }

    /// The unused part of the plan's limit, never below zero; `None` is unlimited.
    #[must_use]
    pub fn plan_remaining(&self) -> Option<i64> {
        self.limit.map(|limit| self.left_of(limit))
    }

    /// The amount that can be added to `used` and `reserved` before their sum overflows.
    #[must_use]
    pub fn capacity(&self) -> i64 {
        self.used
            .checked_add(self.reserved)
            .map_or(0, |taken| i64::MAX - taken.max(0))
    }

    fn left_of(&self, most: i64) -> i64 {
        let taken = self.used.saturating_add(self.reserved);
        most.saturating_sub(taken.saturating_sub(self.from_grants)).max(0)
    }
}

/// Usage and limits of a holder for one meter, read while its row is locked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// One for each window that the meter is counted in. A submission must pass all of them.
    pub allowances: Vec<Allowance>,
    /// The most jobs that may hold a slot at once; `None` when fairness is off.
    pub slot_limit: Option<u32>,
    /// The jobs that hold a slot.
    pub slots_in_use: u32,
    /// The jobs that wait for a slot.
    pub parked: u32,
    /// The jobs that wait for their time, counted up to `max_waiting`, the only check that uses them.
    pub scheduled: u32,
    /// The most jobs that may wait, for a slot or for their time; `None` is any number.
    pub max_waiting: Option<u32>,
    /// The grants that the first window may draw on beyond the plan. Most accounts have none.
    pub grants: Vec<Grant>,
}

/// The part of a submission that exceeds the plan's month.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excess {
    /// Its draws on grants, which come first.
    pub draws: Vec<Draw>,
    /// The rest, up to the ceiling of a soft limit.
    pub overage: i64,
}

/// The decision on one submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Accepted, with a slot: the job is available to workers immediately.
    Admitted,
    /// Accepted without a slot: the job waits for one of its holder's slots.
    Parked,
    /// Accepted for later: the job holds its quota, and asks for a slot when it is due.
    Scheduled,
    /// Over the quota: nothing is reserved and nothing is enqueued.
    OverQuota,
    /// The window's sums cannot hold the amount: nothing is reserved and nothing is enqueued.
    TooLarge,
    /// This many jobs wait, the maximum of the plan: nothing is reserved and nothing is enqueued.
    TooManyWaiting(u32),
}

impl Account {
    /// Whether every window has room. An amount of 0 always has room.
    #[must_use]
    pub fn has_room_for(&self, requested: i64) -> bool {
        requested == 0
            || self
                .allowances
                .iter()
                .all(|allowance| allowance.has_room_for(requested))
    }

    /// The smallest amount left in any window; `None` is unlimited.
    #[must_use]
    pub fn remaining(&self) -> Option<i64> {
        self.allowances.iter().filter_map(Allowance::remaining).min()
    }

    /// The amount that can be added to every window before a sum overflows.
    #[must_use]
    pub fn capacity(&self) -> i64 {
        let capacities = self.allowances.iter().map(Allowance::capacity);
        capacities.min().unwrap_or(i64::MAX)
    }

    /// Whether the next job may start immediately. It may not while other jobs of the holder wait, because it would
    /// overtake them.
    #[must_use]
    pub fn has_free_slot(&self) -> bool {
        self.parked == 0 && self.slot_limit.is_none_or(|limit| self.slots_in_use < limit)
    }

    /// The plan's `max_waiting`, if that many jobs wait.
    fn reached_max_waiting(&self) -> Option<u32> {
        self.max_waiting
            .filter(|max| self.parked.saturating_add(self.scheduled) >= *max)
    }

    /// Why a submission is refused; `None` if it is accepted. `waits`: whether its job would wait. SQL:
    /// `submit_many`.
    fn refusal(&self, requested: i64, waits: bool) -> Option<Decision> {
        if !self.has_room_for(requested) {
            Some(Decision::OverQuota)
        } else if requested > self.capacity() {
            Some(Decision::TooLarge)
        } else if waits {
            self.reached_max_waiting().map(Decision::TooManyWaiting)
        } else {
            None
        }
    }

    /// Reserves an amount in every window. The caller has checked that there is room. Returns the part beyond the plan.
    fn reserve(&mut self, requested: i64) -> Option<Excess> {
        debug_assert!(requested >= 0, "an amount is never negative");
        let excess = self.draw(requested)?;
        for allowance in &mut self.allowances {
            allowance.reserved += requested;
        }
        Some(excess)
    }

    /// Decides on one submission for a later start. It reserves its quota now, and no slot. Also returns the part
    /// beyond the plan.
    pub fn schedule(&mut self, requested: i64) -> (Decision, Excess) {
        if let Some(refusal) = self.refusal(requested, true) {
            return (refusal, Excess::default());
        }
        match self.reserve(requested) {
            Some(excess) => {
                self.scheduled += 1;
                (Decision::Scheduled, excess)
            }
            None => (Decision::OverQuota, Excess::default()),
        }
    }

    /// Decides on one submission and updates the account, so that the next decision includes it.
    ///
    /// `requested` must not be negative. A job that needs no quota requests 0.
    pub fn decide(&mut self, requested: i64) -> Decision {
        self.decide_and_draw(requested).0
    }

    /// Like [`Self::decide`], and also returns the part beyond the plan.
    pub fn decide_and_draw(&mut self, requested: i64) -> (Decision, Excess) {
        if let Some(refusal) = self.refusal(requested, !self.has_free_slot()) {
            return (refusal, Excess::default());
        }
        let Some(excess) = self.reserve(requested) else {
            return (Decision::OverQuota, Excess::default());
        };
        let decision = if self.has_free_slot() {
            self.slots_in_use += 1;
            Decision::Admitted
        } else {
            self.parked += 1;
            Decision::Parked
        };
        (decision, excess)
    }

    /// Draws the part that exceeds the plan in the first window, the month, from grants. The rest is overage. The
    /// caller has checked that there is room for it. SQL: `submit_many` computes both parts.
    fn draw(&mut self, requested: i64) -> Option<Excess> {
        let Some(month) = self.allowances.first_mut() else {
            return Some(Excess::default());
        };
        let excess = month
            .plan_remaining()
            .map_or(0, |left| requested.saturating_sub(left).max(0));
        if excess == 0 {
            return Some(Excess::default());
        }
        let drawn = excess.min(month.granted.max(0));
        let draws = grants::draw(&mut self.grants, drawn)?;
        month.from_grants += drawn;
        month.granted -= drawn;
        let overage = excess - drawn;
        Some(Excess { draws, overage })
    }

    /// The account for a job that exists already. Grants are ignored, because no submission asked for them. So are the
    /// attributes of the plan that refuse a submission.
    pub fn for_existing_job(&mut self) {
        self.grants.clear();
        for allowance in &mut self.allowances {
            allowance.granted = 0;
        }
        self.max_waiting = None;
    }
}

/// The overage of a charge: the part above the reservation without its overage. The plan's part is charged first, then
/// the grants' part, and overage last. SQL: `settle_many`.
#[must_use]
pub fn charged_overage(reserved: i64, overage: i64, charged: i64) -> i64 {
    let before = reserved.saturating_sub(overage).max(0);
    charged.saturating_sub(before).clamp(0, overage.max(0))
}

/// The charge for a completed job: the usage that its handler reported, clamped to 0 up to the reserved amount. Without
/// a report, the reserved amount. SQL: `charge_of`.
#[must_use]
pub fn charge(reserved: i64, used: Option<i64>) -> i64 {
    used.unwrap_or(reserved).clamp(0, reserved.max(0))
}

/// The number of a holder's parked jobs to promote: one per free slot. None while more slots are in use than a lowered
/// limit allows. `None` is no limit.
#[must_use]
pub fn promotions(slot_limit: Option<u32>, slots_in_use: u32, parked: u32) -> u32 {
    slot_limit.map_or(parked, |limit| parked.min(limit.saturating_sub(slots_in_use)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn allowance() -> impl Strategy<Value = Allowance> {
        let limits = (proptest::option::of(0..200_i64), proptest::option::of(0..250_i64));
        (limits, 0..150_i64, 0..150_i64).prop_map(|((limit, ceiling), used, reserved)| Allowance {
            limit,
            ceiling,
            used,
            reserved,
            ..Allowance::default()
        })
    }

    fn account() -> impl Strategy<Value = Account> {
        (
            proptest::collection::vec(allowance(), 0..5),
            proptest::option::of(1..6_u32),
            0..8_u32,
            0..4_u32,
        )
            .prop_map(|(allowances, slot_limit, slots_in_use, parked)| Account {
                allowances,
                slot_limit,
                slots_in_use,
                parked,
                scheduled: 0,
                max_waiting: None,
                grants: Vec::new(),
            })
    }

    fn with_month(limit: Option<i64>, used: i64, reserved: i64, slot_limit: Option<u32>) -> Account {
        Account {
            allowances: vec![Allowance {
                limit,
                used,
                reserved,
                ..Allowance::default()
            }],
            slot_limit,
            slots_in_use: 0,
            parked: 0,
            scheduled: 0,
            max_waiting: None,
            grants: Vec::new(),
        }
    }

    /// The account after one more job that reserves this amount.
    fn after(before: &Account, requested: i64) -> Account {
        let mut account = before.clone();
        for allowance in &mut account.allowances {
            allowance.reserved += requested;
        }
        account
    }

    proptest! {
        #[test]
        fn promotion_fills_free_slots_up_to_the_limit(
            limit in 0..8_u32, in_use in 0..12_u32, parked in 0..12_u32,
        ) {
            let promoted = promotions(Some(limit), in_use, parked);
            prop_assert!(promoted <= parked);
            prop_assert!(promoted == 0 || in_use + promoted <= limit);
            prop_assert!(promoted == parked || in_use + promoted >= limit);
            prop_assert_eq!(promotions(None, in_use, parked), parked);
        }

        #[test]
        fn submissions_never_exceed_the_limit_of_any_window(
            mut account in account(),
            requests in proptest::collection::vec(0..40_i64, 0..60),
        ) {
            let before = account.clone();
            for requested in requests {
                let decision = account.decide(requested);
                for allowance in &account.allowances {
                    if let Some(limit) = allowance.max_accepted()
                        && decision != Decision::OverQuota && requested > 0 {
                        prop_assert!(allowance.used + allowance.reserved <= limit);
                    }
                }
            }
            let reserved: Vec<i64> = account.allowances.iter().zip(&before.allowances)
                .map(|(now, then)| now.reserved - then.reserved).collect();
            prop_assert!(reserved.iter().all(|added| *added >= 0 && *added == reserved[0]));
        }

        #[test]
        fn overage_is_charged_after_plan_and_grants_up_to_the_ceiling(
            limit in 0..100_i64, above in 0..60_i64, lefts in proptest::collection::vec(1..30_i64, 0..4),
            requests in proptest::collection::vec(0..40_i64, 1..40),
        ) {
            let ceiling = limit + above;
            let granted: i64 = lefts.iter().sum();
            let mut account = with_month(Some(limit), 0, 0, None);
            account.allowances[0].ceiling = Some(ceiling);
            account.allowances[0].granted = granted;
            account.grants = lefts.iter().map(|left| Grant { left: *left, expires_at: None, created_at: 0 }).collect();
            let (mut accepted, mut overage, mut drawn) = (0, 0, 0);
            for requested in requests {
                let left = account.remaining().unwrap();
                let (decision, excess) = account.decide_and_draw(requested);
                prop_assert_eq!(decision == Decision::OverQuota, requested > left);
                if decision != Decision::OverQuota {
                    accepted += requested;
                    overage += excess.overage;
                    drawn += excess.draws.iter().map(|draw| draw.amount).sum::<i64>();
                    // Grants come first: while any grant has something left, nothing is overage.
                    prop_assert!(excess.overage == 0 || account.allowances[0].granted == 0);
                }
                prop_assert_eq!(account.allowances[0].overage(), if above > 0 { overage } else { 0 });
            }
            prop_assert_eq!(overage, (accepted - limit - drawn).max(0));
            prop_assert!(overage <= above && drawn <= granted);
        }

        #[test]
        fn unused_reservations_are_released_from_overage_first(
            plan in 0..50_i64, drawn in 0..50_i64, overage in 0..50_i64, used in 0..200_i64,
        ) {
            let reserved = plan + drawn + overage;
            let charged = charge(reserved, Some(used));
            let over = charged_overage(reserved, overage, charged);
            let granted = grants::charged_to_grants(reserved - overage, drawn, charged - over);
            prop_assert!(over == 0 || granted == drawn, "grants are charged before overage");
            prop_assert!(granted == 0 || charged - over - granted == plan, "and the plan before them");
            prop_assert_eq!(over, (charged - plan - drawn).max(0));
        }

        #[test]
        fn refused_submissions_do_not_change_anything(
            mut account in account(), requested in 0..400_i64,
        ) {
            let before = account.clone();
            if account.decide(requested) == Decision::OverQuota {
                prop_assert_eq!(&account, &before);
                prop_assert!(before.allowances.iter().any(|allowance| !allowance.has_room_for(requested)));
            }
        }

        #[test]
        fn an_additional_window_never_admits_more(
            account in account(), another in allowance(), requested in 0..400_i64,
        ) {
            let mut narrower = account.clone();
            narrower.allowances.push(another);
            prop_assert!(!narrower.has_room_for(requested) || account.has_room_for(requested));
        }

        #[test]
        fn slots_in_use_never_grow_past_the_limit(mut account in account(), count in 0..30_usize) {
            let before = account.slots_in_use;
            for _ in 0..count {
                account.decide(0);
            }
            if let Some(limit) = account.slot_limit {
                prop_assert!(account.slots_in_use <= limit.max(before));
            }
        }

        #[test]
        fn jobs_do_not_overtake_others_of_the_same_holder(mut account in account()) {
            if account.parked > 0 {
                prop_assert_eq!(account.decide(0), Decision::Parked);
            }
        }

        #[test]
        fn charges_are_clamped_between_zero_and_the_reserved_amount(
            reserved in 0..50_i64, used in proptest::option::of(-60..60_i64),
        ) {
            let expected = match used {
                None => reserved,
                Some(used) if used < 0 => 0,
                Some(used) if used > reserved => reserved,
                Some(used) => used,
            };
            prop_assert_eq!(charge(reserved, used), expected);
        }

        #[test]
        fn charges_of_arbitrary_amounts_do_not_panic(reserved: i64, used in proptest::option::of(any::<i64>())) {
            prop_assert!((0..=reserved.max(0)).contains(&charge(reserved, used)));
        }

        #[test]
        fn each_decision_adds_at_most_one_job_to_the_account(
            mut account in account(), requests in proptest::collection::vec(0..40_i64, 1..60),
        ) {
            for requested in requests {
                let before = account.clone();
                let expected = match account.decide(requested) {
                    Decision::Admitted => Account {
                        slots_in_use: before.slots_in_use + 1,
                        ..after(&before, requested)
                    },
                    Decision::Parked => Account {
                        parked: before.parked + 1,
                        ..after(&before, requested)
                    },
                    Decision::Scheduled => unreachable!("no submission has a start time"),
                    Decision::OverQuota | Decision::TooLarge | Decision::TooManyWaiting(_) => before,
                };
                prop_assert_eq!(&account, &expected);
            }
        }

        #[test]
        fn scheduled_submissions_reserve_quota_but_no_slot(mut account in account(), requested in 0..400_i64) {
            let before = account.clone();
            let expected = match account.schedule(requested).0 {
                Decision::Scheduled => {
                    prop_assert!(before.has_room_for(requested));
                    let scheduled = before.scheduled + 1;
                    Account { scheduled, ..after(&before, requested) }
                }
                decision => {
                    prop_assert_eq!(decision, Decision::OverQuota);
                    prop_assert!(!before.has_room_for(requested));
                    before
                }
            };
            prop_assert_eq!(account, expected);
        }

        #[test]
        fn the_remaining_amount_is_exactly_what_can_be_reserved(account in account()) {
            let Some(remaining) = account.remaining() else {
                prop_assert!(account.allowances.iter().all(|allowance| allowance.limit.is_none()));
                return Ok(());
            };
            prop_assert!(account.has_room_for(remaining));
            prop_assert!(!account.has_room_for(remaining + 1));
        }
    }

    #[test]
    fn grants_cover_new_usage_after_a_limit_was_lowered_below_usage() {
        let mut account = with_month(Some(50), 500, 0, None);
        account.allowances[0].granted = 100;
        account.grants = vec![Grant {
            left: 100,
            expires_at: None,
            created_at: 0,
        }];
        assert_eq!(account.remaining(), Some(100));
        let (decision, excess) = account.decide_and_draw(60);
        assert_eq!(decision, Decision::Admitted);
        assert_eq!(excess.draws.iter().map(|draw| draw.amount).sum::<i64>(), 60);
        assert_eq!(account.remaining(), Some(40));
        assert_eq!(account.decide_and_draw(41).0, Decision::OverQuota);
    }

    #[test]
    fn a_handler_that_reports_less_is_charged_less() {
        assert_eq!(charge(10, None), 10);
        assert_eq!(charge(10, Some(4)), 4);
        assert_eq!(charge(10, Some(0)), 0);
        assert_eq!(charge(10, Some(11)), 10);
        assert_eq!(charge(10, Some(-1)), 0);
        assert_eq!(charge(-1, None), 0);
    }

    #[test]
    fn parked_jobs_are_counted_one_by_one() {
        let mut account = with_month(None, 0, 0, Some(2));
        for _ in 0..5 {
            account.decide(1);
        }
        assert_eq!(
            (
                account.slots_in_use,
                account.parked,
                account.allowances[0].reserved
            ),
            (2, 3, 5)
        );
    }

    #[test]
    fn amounts_that_overflow_are_refused() {
        let account = with_month(Some(i64::MAX), i64::MAX - 1, 1, None);
        assert!(!account.has_room_for(1));
        assert_eq!(account.remaining(), Some(0));
    }

    #[test]
    fn unlimited_plans_refuse_amounts_that_overflow_the_sums() {
        let mut account = with_month(None, i64::MAX - 5, 2, None);
        let before = account.clone();
        for refused in [4, i64::MAX] {
            assert_eq!(account.decide(refused), Decision::TooLarge);
            assert_eq!(account.schedule(refused).0, Decision::TooLarge);
        }
        assert_eq!(account, before);
        assert_eq!(account.decide(3), Decision::Admitted);
        assert_eq!(account.decide(1), Decision::TooLarge);
        assert_eq!(account.decide(0), Decision::Admitted);
    }

    #[test]
    fn usage_above_a_lowered_hard_limit_is_not_overage() {
        let mut account = with_month(Some(10), 15, 2, None);
        let month = &mut account.allowances[0];
        assert_eq!(month.overage(), 0);
        month.ceiling = Some(10);
        assert_eq!(month.overage(), 0);
        month.ceiling = Some(11);
        assert_eq!(month.overage(), 7);
    }

    #[test]
    fn an_unlimited_plan_has_room_for_anything() {
        let mut account = with_month(None, 5, 7, Some(1));
        assert_eq!(account.decide(i64::from(i32::MAX)), Decision::Admitted);
        assert_eq!(account.decide(1), Decision::Parked);
        assert_eq!(account.remaining(), None);
    }

    #[test]
    fn grants_cover_what_exceeds_the_plan_up_to_their_amount() {
        let grant = |left, expires_at| Grant {
            left,
            expires_at,
            created_at: 0,
        };
        let mut account = with_month(Some(50), 20, 0, None);
        account.allowances[0].granted = 100;
        account.grants = vec![grant(60, None), grant(40, Some(9))];
        let (decision, draws) = account.decide_and_draw(80);
        assert_eq!(decision, Decision::Admitted);
        assert_eq!(draws.overage, 0);
        let draws: Vec<_> = draws.draws.iter().map(|one| (one.grant, one.amount)).collect();
        assert_eq!(draws, [(1, 40), (0, 10)], "30 are the plan's");
        assert_eq!(account.allowances[0].remaining(), Some(50));
        assert_eq!(account.decide(51), Decision::OverQuota);
        assert_eq!(account.decide(50), Decision::Admitted);
        assert_eq!(account.allowances[0].remaining(), Some(0));
        // A shorter window holds the granted amount too.
        let mut account = with_month(Some(50), 50, 0, None);
        account.allowances[0].granted = 100;
        account.grants = vec![grant(100, None)];
        account.allowances.push(Allowance {
            limit: Some(10),
            ..Allowance::default()
        });
        assert_eq!(account.decide(11), Decision::OverQuota);
        assert_eq!(account.decide(10), Decision::Admitted);
    }

    #[test]
    fn existing_jobs_cannot_draw_on_grants() {
        let mut account = with_month(Some(50), 50, 0, None);
        account.allowances[0].granted = 100;
        account.grants = vec![Grant {
            left: 100,
            expires_at: None,
            created_at: 0,
        }];
        assert_eq!(account.clone().decide(1), Decision::Admitted);
        account.for_existing_job();
        assert_eq!(account.decide(1), Decision::OverQuota);
    }

    #[test]
    fn waiting_jobs_are_limited_and_startable_jobs_are_not() {
        let mut account = with_month(Some(50), 0, 0, Some(1));
        account.max_waiting = Some(2);
        let decisions: Vec<_> = (0..4).map(|_| account.decide(1)).collect();
        let expected = [
            Decision::Admitted,
            Decision::Parked,
            Decision::Parked,
            Decision::TooManyWaiting(2),
        ];
        assert_eq!(decisions, expected);
        assert_eq!(account.allowances[0].reserved, 3);
    }

    #[test]
    fn scheduled_jobs_count_as_waiting() {
        let mut account = with_month(Some(4), 0, 0, Some(1));
        account.max_waiting = Some(2);
        assert_eq!(account.schedule(1).0, Decision::Scheduled);
        assert_eq!(
            account.decide(1),
            Decision::Admitted,
            "a job that can start does not wait"
        );
        assert_eq!(account.decide(1), Decision::Parked);
        assert_eq!(account.schedule(1).0, Decision::TooManyWaiting(2));
        assert_eq!(account.decide(1), Decision::TooManyWaiting(2));
        assert_eq!(
            account.schedule(2).0,
            Decision::OverQuota,
            "waiting would not help"
        );
        assert_eq!(account.allowances[0].reserved, 3);
    }
}
