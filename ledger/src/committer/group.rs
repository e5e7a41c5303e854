//! Runs one group until its last member has an answer. Finds the member that PostgreSQL refuses, and drops members with
//! rows that others have locked.

use std::collections::{HashMap, HashSet};

use tokio::sync::oneshot;
use uuid::Uuid;

use super::item::{GroupFailure, Locking, Rejection, Transact, Waiting, key};
use crate::database::session::{Session, with_deadline};
use crate::database::{DatabaseError, Failure};

/// The maximum number of runs of a group that conflicts with another transaction.
const TRIES: usize = 4;

/// The members without an answer from the group.
pub(super) struct Unanswered<T: Transact> {
    /// Members with a locked holder, and the holder.
    pub(super) blocked: Vec<(Uuid, Waiting<T>)>,
    /// Holders with a refused item, including repaired ones.
    pub(super) refused: Vec<Uuid>,
    /// Other members of these holders, which were not run.
    pub(super) postponed: Vec<Waiting<T>>,
}

/// The holders of a group's members.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Members {
    /// Several holders. After a refusal, the other items of that holder are postponed, so that other holders do not
    /// wait for them.
    ManyHolders,
    OneHolder,
}

/// Runs a group to completion.
pub(super) async fn serve<T: Transact>(
    session: &mut Session<T::Statements>,
    transact: &T,
    group: Vec<Waiting<T>>,
    blocked_holders: impl Fn() -> HashSet<Uuid>,
    holders: Members,
) -> Unanswered<T> {
    let (mut blocked, mut refused, mut postponed) = (Vec::new(), Vec::new(), Vec::new());
    let mut parts = vec![group];
    while let Some(mut part) = parts.pop() {
        // Drop items of callers that left before anything was sent.
        part.retain(|one| !one.answer.as_ref().is_some_and(oneshot::Sender::is_closed));
        if part.is_empty() {
            continue;
        }
        let mut locking = Locking::Wait(blocked_holders());
        let (mut tries, mut asked, mut repaired) = (0, false, false);
        loop {
            tries += 1;
            let failure = match run(session, transact, &part, &locking).await {
                Ok(outputs) => {
                    for (one, output) in part.into_iter().zip(outputs) {
                        one.answer(Ok(output));
                    }
                    break;
                }
                Err(failure) => failure,
            };
            let is_refused = matches!(failure, GroupFailure::Failed(Failure::Refused(_)));
            match failure {
                GroupFailure::NotLocked(members) => {
                    parts.push(remove_members(part, members, &mut blocked));
                    break;
                }
                // A row is locked. First find out whether it is a holder's.
                GroupFailure::Failed(Failure::Blocked) if matches!(locking, Locking::Wait(_)) => {
                    locking = Locking::Skip;
                }
                // Another row is locked: a job or a balance.
                GroupFailure::Failed(Failure::Blocked) if part.len() > 1 && !asked => {
                    asked = true;
                    let members = blocked_members(session, transact, &part).await;
                    if !members.is_empty() {
                        parts.push(remove_members(part, members, &mut blocked));
                        break;
                    }
                }
                GroupFailure::Failed(Failure::Blocked) => match halves(part) {
                    Ok(halves) => {
                        parts.extend(halves);
                        break;
                    }
                    Err(one) => {
                        blocked.push((key::<T>(&one.item), one));
                        break;
                    }
                },
                GroupFailure::Failed(Failure::Conflict(_)) if tries < TRIES => {}
                // The connection was broken. A new one may work.
                GroupFailure::Failed(Failure::Unavailable(_)) if tries < 2 => {}
                GroupFailure::Failed(Failure::Conflict(error) | Failure::Refused(error)) => {
                    // The holder is not the cause of a server error (disk full, out of memory, timeout) or a conflict.
                    let is_own = is_refused && !error.is_transient();
                    let one = match halves(part) {
                        Ok(halves) => {
                            parts.extend(halves);
                            break;
                        }
                        Err(one) => one,
                    };
                    if is_own && let Some(holder) = T::holder(&one.item) {
                        refused.push(holder);
                        if holders == Members::ManyHolders {
                            let of_holder = |one: &mut Waiting<T>| T::holder(&one.item) == Some(holder);
                            for part in &mut parts {
                                postponed.extend(part.extract_if(.., of_holder));
                            }
                        }
                    }
                    if !repaired && repair(session, transact, &one, &error).await {
                        (repaired, tries) = (true, 0);
                        part = vec![one];
                        continue;
                    }
                    tracing::warn!(%error, "the database rejected an item");
                    one.answer(Err(if error.is_transient() {
                        Rejection::Unavailable(error)
                    } else {
                        Rejection::Refused(error)
                    }));
                    break;
                }
                GroupFailure::Failed(failure) => {
                    let error = failure.into_error();
                    tracing::warn!(%error, items = part.len(), "a group failed");
                    for one in part {
                        one.answer(Err(Rejection::Unavailable(error.clone())));
                    }
                    break;
                }
            }
        }
    }
    Unanswered {
        blocked,
        refused,
        postponed,
    }
}

/// Removes these members from a group, and returns the rest.
fn remove_members<T: Transact>(
    part: Vec<Waiting<T>>,
    members: Vec<(usize, Uuid)>,
    blocked: &mut Vec<(Uuid, Waiting<T>)>,
) -> Vec<Waiting<T>> {
    let members: HashMap<usize, Uuid> = members.into_iter().collect();
    let mut rest = Vec::with_capacity(part.len());
    for (index, one) in part.into_iter().enumerate() {
        match members.get(&index) {
            Some(holder) => blocked.push((*holder, one)),
            None => rest.push(one),
        }
    }
    rest
}

async fn blocked_members<T: Transact>(
    session: &mut Session<T::Statements>,
    transact: &T,
    part: &[Waiting<T>],
) -> Vec<(usize, Uuid)> {
    let items: Vec<&T::Item> = part.iter().map(|one| &one.item).collect();
    let asked = match session.connection().await {
        Ok(connection) => with_deadline(transact.blocked(connection, &items)).await,
        Err(failure) => Err(failure),
    };
    match asked {
        Ok(members) => members,
        Err(failure) => {
            session.recover(&failure).await;
            Vec::new()
        }
    }
}

async fn run<T: Transact>(
    session: &mut Session<T::Statements>,
    transact: &T,
    part: &[Waiting<T>],
    locking: &Locking,
) -> Result<Vec<T::Output>, GroupFailure> {
    let items: Vec<&T::Item> = part.iter().map(|one| &one.item).collect();
    let connection = session.connection().await?;
    let done = with_deadline(transact.run(connection, &items, locking)).await;
    match &done {
        Ok(_) => {}
        Err(GroupFailure::NotLocked(_)) => session.recover(&Failure::Blocked).await,
        Err(GroupFailure::Failed(failure)) => session.recover(failure).await,
    }
    done
}

async fn repair<T: Transact>(
    session: &mut Session<T::Statements>,
    transact: &T,
    one: &Waiting<T>,
    error: &DatabaseError,
) -> bool {
    let repaired = match session.connection().await {
        Ok(connection) => with_deadline(transact.repair(connection, &one.item, error)).await,
        Err(failure) => Err(failure),
    };
    match repaired {
        Ok(again) => again,
        Err(failure) => {
            session.recover(&failure).await;
            false
        }
    }
}

/// The two halves of a group, the first one on top; or its only member.
fn halves<T: Transact>(mut part: Vec<Waiting<T>>) -> Result<[Vec<Waiting<T>>; 2], Waiting<T>> {
    if part.len() == 1
        && let Some(one) = part.pop()
    {
        return Err(one);
    }
    let second = part.split_off(part.len() / 2);
    Ok([second, part])
}
