//! Grants: amounts beyond the plan, and the order in which they are drawn on and charged.
//!
//! A submission that exceeds the month draws on grants: the earliest expiry first, then grants that do not expire,
//! oldest first. When the job ends, the plan's part is charged first, and then the grants in the order of the draws.
//! The unused rest therefore returns to grants before it returns to the plan, and to the grant that lasts longest
//! first. That favours users who paid for grants.

/// A grant with something left. Times are in any unit, the same for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The amount that is neither used nor reserved.
    pub left: i64,
    /// When it expires; `None` is never.
    pub expires_at: Option<i64>,
    /// When it was created.
    pub created_at: i64,
}

/// An amount that was drawn on a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// Its index in the list of grants.
    pub grant: usize,
    /// The amount, more than 0.
    pub amount: i64,
}

/// Draws an amount, and subtracts it from what is left. Returns `None` and draws nothing if the grants together have
/// less. SQL: `grants_left` has the same order, and `draw_grants` draws.
#[must_use]
pub fn draw(grants: &mut [Grant], amount: i64) -> Option<Vec<Draw>> {
    let mut order: Vec<usize> = (0..grants.len()).collect();
    // Grants without an expiry come last.
    order.sort_by_key(|&index| {
        let grant = &grants[index];
        (
            grant.expires_at.is_none(),
            grant.expires_at,
            grant.created_at,
            index,
        )
    });
    let (mut wanted, mut draws) = (amount.max(0), Vec::new());
    for index in order {
        let amount = wanted.min(grants[index].left.max(0));
        if amount > 0 {
            draws.push(Draw { grant: index, amount });
            wanted -= amount;
        }
    }
    if wanted > 0 {
        return None;
    }
    for one in &draws {
        grants[one.grant].left -= one.amount;
    }
    Some(draws)
}

/// The part of a charge that grants pay for: everything above the plan's part of the reservation. SQL:
/// `charged_to_grants`.
#[must_use]
pub fn charged_to_grants(reserved: i64, drawn: i64, charged: i64) -> i64 {
    let of_plan = reserved.saturating_sub(drawn).max(0);
    charged.saturating_sub(of_plan).clamp(0, drawn.max(0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn grants() -> impl Strategy<Value = Vec<Grant>> {
        let grant = (0..50_i64, proptest::option::of(0..5_i64), 0..5_i64);
        proptest::collection::vec(grant, 0..6).prop_map(|grants| {
            let grant = |(left, expires_at, created_at)| Grant {
                left,
                expires_at,
                created_at,
            };
            grants.into_iter().map(grant).collect()
        })
    }

    #[test]
    fn grants_are_drawn_in_order_of_expiry() {
        let grant = |left, expires_at, created_at| Grant {
            left,
            expires_at,
            created_at,
        };
        let mut grants = [
            grant(5, None, 1),
            grant(5, Some(9), 3),
            grant(5, None, 0),
            grant(5, Some(7), 4),
        ];
        let draws = draw(&mut grants, 17).unwrap();
        let order: Vec<_> = draws.iter().map(|one| (one.grant, one.amount)).collect();
        assert_eq!(order, [(3, 5), (1, 5), (2, 5), (0, 2)]);
        assert_eq!(draw(&mut grants, 4), None);
        assert_eq!(grants[0].left, 3);
    }

    #[test]
    fn charges_use_the_plan_before_grants() {
        // The reservation: 30 from the plan and 50 from a grant.
        assert_eq!(charged_to_grants(80, 50, 30), 0);
        assert_eq!(charged_to_grants(80, 50, 45), 15);
        assert_eq!(charged_to_grants(80, 50, 80), 50);
    }

    proptest! {
        #[test]
        fn draws_cover_the_whole_amount_or_nothing(before in grants(), amount in 0..300_i64) {
            let mut after = before.clone();
            let all: i64 = before.iter().map(|grant| grant.left).sum();
            match draw(&mut after, amount) {
                Some(draws) => {
                    prop_assert_eq!(draws.iter().map(|one| one.amount).sum::<i64>(), amount);
                    for (index, grant) in after.iter().enumerate() {
                        let taken: i64 =
                            draws.iter().filter(|one| one.grant == index).map(|one| one.amount).sum();
                        prop_assert_eq!(grant.left + taken, before[index].left);
                        prop_assert!(grant.left >= 0);
                    }
                    // A later grant is drawn on only when the earlier ones are used up.
                    for pair in draws.windows(2) {
                        prop_assert_eq!(after[pair[0].grant].left, 0);
                        let ends = |index: usize| after[index].expires_at.unwrap_or(i64::MAX);
                        prop_assert!(ends(pair[0].grant) <= ends(pair[1].grant));
                    }
                }
                None => {
                    prop_assert!(all < amount);
                    prop_assert_eq!(after, before);
                }
            }
        }

        #[test]
        fn grants_pay_only_what_exceeds_the_plan_up_to_the_draw(
            of_plan in 0..100_i64, drawn in 0..200_i64, charged in 0..400_i64,
        ) {
            let reserved = of_plan + drawn;
            let charged = charged.min(reserved);
            let to_grants = charged_to_grants(reserved, drawn, charged);
            prop_assert!((0..=drawn).contains(&to_grants));
            prop_assert_eq!(charged - to_grants, charged.min(of_plan));
        }
    }
}
