//! What becomes of each submission of a group, from what was read under the locks. No I/O.

use std::collections::HashMap;

use uuid::Uuid;
use weir_policy::admission::Decision;

use super::read::{Locked, Snapshot};
use super::{Answer, Idempotency, Quota, Submission};
use crate::work::REQUEST_ID;

/// What was decided for one submission, and the quota right after it.
pub(super) struct Decided {
    pub(super) verdict: Verdict,
    pub(super) quota: Option<Quota>,
}

pub(super) enum Verdict {
    /// A new job. `unique` is false when somebody else's job has its unique key: the caller must not see that one, and
    /// gets a job without the key.
    New {
        id: i64,
        decision: Decision,
        unique: bool,
    },
    /// The job that the same `Idempotency-Key` made.
    Same {
        id: i64,
    },
    /// A live job of the same holder under the same unique key.
    Folded {
        id: i64,
    },
    KeyReused,
    OverQuota,
}

/// Decides in the group's order, each in the light of those before.
pub(super) fn decide(group: &[Submission], snapshot: &mut Snapshot) -> Vec<Decided> {
    let mut ids = snapshot.ids.iter().copied();
    let mut keys: HashMap<(Uuid, &str), (&[u8], i64)> = HashMap::new();
    let mut unique: HashMap<&[u8], (i64, Option<Uuid>)> = HashMap::new();
    group
        .iter()
        .map(|one| {
            let place = snapshot.places[&(one.holder.id, one.event_type)];
            let locked = &mut snapshot.accounts[place];
            let repeated = one
                .idempotency
                .as_ref()
                .and_then(|Idempotency { key, request_hash }| {
                    let (hash, id) = snapshot
                        .earlier
                        .get(&(one.holder.id, key.clone()))
                        .map(|(hash, id)| (hash.as_slice(), *id))
                        .or_else(|| keys.get(&(one.holder.id, key.as_str())).copied())?;
                    Some(if hash == request_hash {
                        Verdict::Same { id }
                    } else {
                        Verdict::KeyReused
                    })
                });
            let live = one
                .unique_key
                .as_deref()
                .and_then(|key| snapshot.live.get(key).or_else(|| unique.get(key)).copied());
            let verdict = match (repeated, live) {
                (Some(repeated), _) => repeated,
                (None, Some((id, Some(holder)))) if holder == one.holder.id => Verdict::Folded { id },
                (None, live) => {
                    let verdict = admit(one, locked, live.is_none(), &mut ids);
                    if let Verdict::New { id, .. } = verdict {
                        if let Some(Idempotency { key, request_hash }) = &one.idempotency {
                            keys.insert((one.holder.id, key), (request_hash, id));
                        }
                        if let (Some(key), None) = (&one.unique_key, live) {
                            unique.insert(key, (id, Some(one.holder.id)));
                        }
                    }
                    verdict
                }
            };
            Decided {
                verdict,
                quota: locked.quota(),
            }
        })
        .collect()
}

fn admit(
    one: &Submission,
    locked: &mut Locked,
    unique: bool,
    ids: &mut impl Iterator<Item = i64>,
) -> Verdict {
    // Without a user there is no plan to hold against; the slot is all that is held.
    let amount = one.holder.user_id.map_or(0, |_| i64::from(one.amount));
    match locked.account.decide(amount) {
        Decision::OverQuota => Verdict::OverQuota,
        decision => {
            let Some(id) = ids.next() else {
                unreachable!("there are as many ids as submissions")
            };
            Verdict::New { id, decision, unique }
        }
    }
}

pub(super) fn answer(decided: Decided) -> Answer {
    match (decided.verdict, decided.quota) {
        (Verdict::New { id, .. }, quota) => Answer::Accepted { job_id: id, quota },
        (Verdict::Same { id }, quota) => Answer::Repeated { job_id: id, quota },
        (Verdict::Folded { id }, quota) => Answer::Folded { job_id: id, quota },
        (Verdict::OverQuota, Some(quota)) => Answer::OverQuota { quota },
        (Verdict::OverQuota, None) => unreachable!("only an account with a plan can be over its quota"),
        (Verdict::KeyReused, _) => Answer::KeyReused,
    }
}

/// Logs and counts what was committed.
pub(super) fn record(group: &[Submission], verdicts: &[Decided]) {
    for (one, decided) in group.iter().zip(verdicts) {
        let (event_type, amount) = (one.event_type.as_str(), one.amount);
        let user = one.holder.user_id.map(tracing::field::display);
        let request_id = one.metadata.get(REQUEST_ID).and_then(serde_json::Value::as_str);
        match &decided.verdict {
            Verdict::New { id, decision, .. } => {
                let parked = *decision == Decision::Parked;
                metrics::counter!("weir_reservations_total", "event_type" => event_type,
                    "decision" => if parked { "parked" } else { "admitted" })
                .increment(1);
                tracing::info!(job = id, user, request_id, event_type, amount, parked, "reserved");
            }
            Verdict::OverQuota => {
                metrics::counter!("weir_rejections_total", "event_type" => event_type, "reason" => "over_quota")
                    .increment(1);
                tracing::info!(user, request_id, event_type, amount, "rejected: over quota");
            }
            Verdict::KeyReused => {
                metrics::counter!("weir_rejections_total", "event_type" => event_type, "reason" => "key_reused")
                    .increment(1);
                tracing::info!(
                    user,
                    request_id,
                    event_type,
                    "rejected: the Idempotency-Key was used otherwise"
                );
            }
            // Their job was reserved under another request id; this line leads there.
            Verdict::Same { id } | Verdict::Folded { id } => {
                tracing::info!(
                    job = id,
                    user,
                    request_id,
                    event_type,
                    "answered with an earlier job"
                );
            }
        }
    }
}
