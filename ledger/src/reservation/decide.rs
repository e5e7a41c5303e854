//! Decides on each submission of a group, based on the rows read under the locks. No I/O. In SQL, `weir_submit.sql`
//! and `room_for.sql` decide the same, and `native/tests/suite/differential.rs` compares them.

use std::collections::HashMap;

use uuid::Uuid;
use weir_policy::admission::{Account, Decision};
use weir_policy::lane::Lane;

use super::read::{LockedAccount, Snapshot};
use super::submission::{Answer, Idempotency, NewJob, Quota, Quotas, Submission, Window};
use crate::job_metadata::REQUEST_ID;

/// The answer to one submission, and the draws and overage of a new job.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) answer: Answer,
    /// The job's draws on grants: grant and amount.
    pub(super) draws: Vec<(Uuid, i64)>,
    /// The job's overage.
    pub(super) overage: i64,
}

impl From<Answer> for Outcome {
    fn from(answer: Answer) -> Self {
        Self {
            answer,
            draws: Vec::new(),
            overage: 0,
        }
    }
}

/// Decides in the group's order. Each decision includes the ones before it.
pub(super) fn decide(group: &[&Submission], snapshot: &mut Snapshot) -> Vec<Outcome> {
    let now = snapshot.now;
    let mut ids = snapshot.ids.iter().copied();
    let mut keys: HashMap<(Uuid, &str), (&[u8], i64)> = HashMap::new();
    let mut unique: HashMap<&[u8], i64> = HashMap::new();
    group
        .iter()
        .map(|one| {
            let position = snapshot.positions[&(one.holder.id, one.meter)];
            let locked = &mut snapshot.accounts[position];
            if let Some(Idempotency { key, request_hash }) = &one.idempotency {
                let earlier = snapshot
                    .earlier
                    .get(&(one.holder.id, key.clone()))
                    .map(|(hash, id)| (hash.as_slice(), *id))
                    .or_else(|| keys.get(&(one.holder.id, key.as_str())).copied());
                match earlier {
                    Some((hash, job_id)) if hash == request_hash => {
                        let quota = locked.quotas();
                        return Answer::Repeated { job_id, quota }.into();
                    }
                    Some(_) => return Answer::KeyReused.into(),
                    None => {}
                }
            }
            let live = one
                .unique_key
                .as_deref()
                .and_then(|key| snapshot.live.get(key).or_else(|| unique.get(key)).copied());
            if let Some(job_id) = live {
                let quota = locked.quotas();
                return Answer::Folded { job_id, quota }.into();
            }
            let outcome = admit(one, locked, &mut ids, now);
            if let Answer::Accepted { job, .. } = &outcome.answer {
                if let Some(Idempotency { key, request_hash }) = &one.idempotency {
                    keys.insert((one.holder.id, key), (request_hash, job.id));
                }
                if let Some(key) = &one.unique_key {
                    unique.insert(key, job.id);
                }
            }
            outcome
        })
        .collect()
}

/// Decides on a new job.
fn admit(
    one: &Submission,
    locked: &mut LockedAccount,
    ids: &mut impl Iterator<Item = i64>,
    now: jiff::Timestamp,
) -> Outcome {
    // Without a user there is no plan and no quota, so the job holds only a slot.
    let reserved = one.holder.user_id.map_or(0, |_| one.amount);
    let (decision, excess) = match one.run_at {
        Some(_) => locked.account.schedule(reserved),
        None => locked.account.decide_and_draw(reserved),
    };
    let quota = locked.quotas();
    let has_slot = match decision {
        Decision::OverQuota => {
            let Some(quota) = quota else {
                unreachable!("only an account with a plan can be over its quota")
            };
            let full = full_windows(&locked.account, &locked.windows, one.amount);
            return Answer::OverQuota { quota, full }.into();
        }
        Decision::TooLarge => return Answer::TooLarge { quota }.into(),
        Decision::TooManyWaiting(most) => return Answer::TooManyWaiting { most, quota }.into(),
        Decision::Admitted => true,
        Decision::Parked | Decision::Scheduled => false,
    };
    let Some(id) = ids.next() else {
        unreachable!("there are as many ids as submissions")
    };
    let draws = excess.draws.iter();
    let job = NewJob {
        id,
        queue: Lane::select(locked.plan.map(|plan| plan.lane), false).queue(&one.service),
        plan: locked.plan.map(|plan| plan.name),
        has_slot,
        run_at: one.run_at,
        reserved,
        created_at: now,
    };
    Outcome {
        answer: Answer::Accepted { job, quota },
        draws: draws
            .map(|draw| (locked.grant_ids[draw.grant], draw.amount))
            .collect(),
        overage: excess.overage,
    }
}

/// The answer when this submission's refusal rejects the group. It counts the total of its account's submissions.
pub(super) fn refuse_all(
    group: &[&Submission],
    snapshot: &Snapshot,
    mut outcomes: Vec<Outcome>,
    index: usize,
) -> Answer {
    let refused = outcomes.swap_remove(index).answer;
    let (one, locked) = (group[index], snapshot.account(group[index]));
    let quotas = Quotas::of(&locked.before.allowances, &locked.windows);
    let (Answer::OverQuota { .. }, Some(quota)) = (&refused, quotas) else {
        return refused;
    };
    let same = group
        .iter()
        .filter(|other| (other.holder.id, other.meter) == (one.holder.id, one.meter));
    let amount = same.fold(0_i64, |sum, other| sum.saturating_add(other.amount));
    let full = full_windows(&locked.before, &locked.windows, amount);
    Answer::OverQuota { quota, full }
}

/// The windows that have no room for this amount.
fn full_windows(account: &Account, windows: &[Window], amount: i64) -> Vec<Quota> {
    let windows = account.allowances.iter().zip(windows);
    windows
        .filter(|(allowance, _)| !allowance.has_room_for(amount))
        .map(|(allowance, window)| Quota::of(allowance, *window))
        .collect()
}

/// Logs and counts the committed answers.
pub(super) fn record(group: &[&Submission], outcomes: &[Outcome]) {
    for (one, outcome) in group.iter().zip(outcomes) {
        let (meter, amount) = (one.meter.as_str(), one.amount);
        let user = one.holder.user_id.map(tracing::field::display);
        let request_id = one.metadata.get(REQUEST_ID).and_then(serde_json::Value::as_str);
        let rejected = |reason: &'static str| {
            metrics::counter!("weir_rejections_total", "meter" => meter, "reason" => reason).increment(1);
        };
        match &outcome.answer {
            Answer::Accepted { job, .. } => {
                let parked = !job.has_slot && job.run_at.is_none();
                let decision = match (job.has_slot, job.run_at) {
                    (true, _) => "admitted",
                    (false, None) => "parked",
                    (false, Some(_)) => "scheduled",
                };
                metrics::counter!("weir_reservations_total", "meter" => meter, "decision" => decision)
                    .increment(1);
                crate::access_log!(
                    false,
                    job = job.id,
                    user,
                    request_id,
                    meter,
                    amount,
                    parked,
                    "reserved"
                );
            }
            Answer::OverQuota { .. } => {
                rejected("over_quota");
                crate::access_log!(false, user, request_id, meter, amount, "rejected: over quota");
            }
            Answer::TooLarge { .. } => {
                rejected("too_large");
                crate::access_log!(
                    false,
                    user,
                    request_id,
                    meter,
                    amount,
                    "rejected: the amount is too large"
                );
            }
            Answer::TooManyWaiting { .. } => {
                rejected("too_many_waiting");
                crate::access_log!(false, user, request_id, meter, "rejected: too many jobs wait");
            }
            Answer::KeyReused => {
                rejected("key_reused");
                crate::access_log!(
                    false,
                    user,
                    request_id,
                    meter,
                    "rejected: the Idempotency-Key was used with another request"
                );
            }
            // The job was reserved under another request id. This line names it.
            Answer::Repeated { job_id, .. } | Answer::Folded { job_id, .. } => {
                crate::access_log!(
                    false,
                    job = job_id,
                    user,
                    request_id,
                    meter,
                    "answered with an earlier job"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use serde_json::json;
    use weir_policy::admission::Allowance;
    use weir_policy::span::Span;

    use super::*;
    use crate::holder::Holder;
    use crate::meter::Meter;
    use crate::plans::Plan;

    fn holder(n: u128) -> Holder {
        let id = Uuid::from_u128(n);
        Holder {
            id,
            user_id: Some(id),
        }
    }

    fn submission(of: Holder, amount: i64) -> Submission {
        Submission {
            holder: of,
            subject: None,
            service: "analysis".to_owned(),
            meter: Meter::named("analysis"),
            kind: "analysis:analyze".to_owned(),
            max_attempts: 3,
            args: json!({}),
            metadata: json!({}),
            amount,
            idempotency: None,
            unique_key: None,
            run_at: None,
            priority: 1,
        }
    }

    fn with_key(mut one: Submission, key: &str, hash: u8) -> Submission {
        one.idempotency = Some(Idempotency {
            key: key.to_owned(),
            request_hash: vec![hash],
        });
        one
    }

    const PRO: Plan = Plan {
        name: "pro",
        lane: Lane::Priority,
        slots: 1,
        own_slots: None,
    };

    /// Accounts of these holders with room for ten a month and eight an hour, and one slot.
    fn snapshot(holders: &[Holder], plan: Option<Plan>) -> Snapshot {
        let mut positions = BTreeMap::new();
        let mut accounts = Vec::new();
        for (position, one) in holders.iter().enumerate() {
            positions.insert((one.id, Meter::named("analysis")), position);
            let allowance = |limit| Allowance {
                limit: Some(limit),
                ..Allowance::default()
            };
            let account = Account {
                allowances: one
                    .user_id
                    .map_or_else(Vec::new, |_| vec![allowance(10), allowance(8)]),
                slot_limit: Some(1),
                ..Account::default()
            };
            let window = |span| Window {
                span,
                start: Timestamp::UNIX_EPOCH,
                end: Timestamp::UNIX_EPOCH,
            };
            let windows = one
                .user_id
                .map_or_else(Vec::new, |_| vec![window(Span::Month), window(Span::Hour)]);
            accounts.push(LockedAccount::new(account, plan, windows, Timestamp::UNIX_EPOCH));
        }
        Snapshot {
            positions,
            accounts,
            ids: (1..=20).collect(),
            now: Timestamp::UNIX_EPOCH,
            earlier: HashMap::new(),
            live: HashMap::new(),
        }
    }

    fn answers(group: &[Submission], snapshot: &mut Snapshot) -> Vec<Answer> {
        let group: Vec<&Submission> = group.iter().collect();
        decide(&group, snapshot)
            .into_iter()
            .map(|one| one.answer)
            .collect()
    }

    fn job(answer: &Answer) -> &NewJob {
        match answer {
            Answer::Accepted { job, .. } => job,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_first_job_gets_the_slot_and_others_wait() {
        let (anne, bob) = (holder(1), holder(2));
        let group = [submission(anne, 1), submission(anne, 1), submission(bob, 1)];
        let answers = answers(&group, &mut snapshot(&[anne, bob], Some(PRO)));
        assert_eq!(
            answers.iter().map(|one| job(one).has_slot).collect::<Vec<_>>(),
            [true, false, true]
        );
        assert_eq!(
            answers.iter().map(|one| job(one).id).collect::<Vec<_>>(),
            [1, 2, 3]
        );
        assert_eq!(job(&answers[0]).queue, "analysis_priority");
        assert_eq!(job(&answers[0]).plan, Some("pro"));
    }

    #[test]
    fn refused_submissions_do_not_use_a_job_id() {
        let anne = holder(1);
        let group = [submission(anne, 7), submission(anne, 4), submission(anne, 1)];
        let answers = answers(&group, &mut snapshot(&[anne], None));
        assert_eq!(job(&answers[0]).reserved, 7);
        let Answer::OverQuota { quota, full } = &answers[1] else {
            panic!("{:?}", answers[1])
        };
        assert_eq!(quota.month.remaining, Some(3));
        let full: Vec<_> = full
            .iter()
            .map(|quota| (quota.window.span, quota.remaining))
            .collect();
        assert_eq!(full, [(Span::Month, Some(3)), (Span::Hour, Some(1))]);
        assert_eq!(job(&answers[2]).id, 2);
    }

    #[test]
    fn a_batch_over_the_quota_is_refused_for_its_total() {
        let (anne, bob) = (holder(1), holder(2));
        let group = [submission(anne, 6), submission(anne, 3), submission(bob, 1)];
        let group: Vec<&Submission> = group.iter().collect();
        let mut snapshot = snapshot(&[anne, bob], Some(PRO));
        let outcomes = decide(&group, &mut snapshot);
        let Answer::OverQuota { quota, full } = refuse_all(&group, &snapshot, outcomes, 1) else {
            panic!("nine do not fit into an hour")
        };
        assert_eq!(quota.month.remaining, Some(10), "nothing of it is kept");
        let full: Vec<_> = full
            .iter()
            .map(|quota| (quota.window.span, quota.remaining))
            .collect();
        assert_eq!(full, [(Span::Hour, Some(8))]);
    }

    #[test]
    fn client_addresses_do_not_reserve_or_have_quota() {
        let address = Holder {
            id: Uuid::from_u128(9),
            user_id: None,
        };
        let answers = answers(&[submission(address, 500)], &mut snapshot(&[address], None));
        let Answer::Accepted { job, quota } = &answers[0] else {
            panic!("{:?}", answers[0])
        };
        assert_eq!((job.reserved, job.plan, quota), (0, None, &None));
        assert_eq!(job.queue, "analysis_default");
    }

    #[test]
    fn a_repeated_key_in_a_group_is_one_job_or_a_conflict() {
        let (anne, bob) = (holder(1), holder(2));
        let group = [
            with_key(submission(anne, 1), "k", 7),
            with_key(submission(anne, 1), "k", 7),
            with_key(submission(anne, 1), "k", 8),
            with_key(submission(bob, 1), "k", 8),
        ];
        let answers = answers(&group, &mut snapshot(&[anne, bob], None));
        assert!(
            matches!(answers[1], Answer::Repeated { job_id: 1, .. }),
            "{:?}",
            answers[1]
        );
        assert_eq!(answers[2], Answer::KeyReused);
        assert_eq!(job(&answers[3]).id, 2, "another holder's key is another key");
    }

    #[test]
    fn an_earlier_key_returns_its_job() {
        let anne = holder(1);
        let mut snapshot = snapshot(&[anne], None);
        snapshot.earlier.insert((anne.id, "k".to_owned()), (vec![7], 99));
        let group = [
            with_key(submission(anne, 1), "k", 7),
            with_key(submission(anne, 1), "k", 8),
        ];
        let answers = answers(&group, &mut snapshot);
        assert!(matches!(answers[0], Answer::Repeated { job_id: 99, .. }));
        assert_eq!(answers[1], Answer::KeyReused);
    }

    #[test]
    fn a_unique_job_folds_into_the_unfinished_job_with_its_key() {
        let anne = holder(1);
        let unique = |key| Submission {
            unique_key: Some(vec![key]),
            ..submission(anne, 1)
        };
        let mut snapshot = snapshot(&[anne], None);
        snapshot.live.insert(vec![6], 50);
        let found = answers(&[unique(5), unique(5), unique(6)], &mut snapshot);
        assert!(matches!(found[0], Answer::Accepted { .. }), "{found:?}");
        assert!(matches!(found[1], Answer::Folded { job_id: 1, .. }), "{found:?}");
        assert!(matches!(found[2], Answer::Folded { job_id: 50, .. }), "{found:?}");
    }
}
