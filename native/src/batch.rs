//! Gathering what goes into one transaction.

use tokio::sync::mpsc;

/// How often the other tasks of the runtime get their turn before a group goes off.
const YIELDS: usize = 4;

/// Waits for the next one and takes along everything that waits, up to `largest`. Returns false when there is nothing
/// any more and never will be.
///
/// Those who are just now about to come along are let in: callers who were answered together come back together, and
/// jobs that were claimed together end together. The first of them would otherwise go alone while the others wait for a
/// whole transaction. Nobody is waited for: the group goes as soon as the scheduler has nobody else who is about to
/// come.
pub(crate) async fn gather<T>(waiting: &mut mpsc::Receiver<T>, group: &mut Vec<T>, largest: usize) -> bool {
    if waiting.recv_many(group, largest).await == 0 {
        return false;
    }
    loop {
        let before = group.len();
        for _ in 0..YIELDS {
            tokio::task::yield_now().await;
        }
        while group.len() < largest
            && let Ok(one) = waiting.try_recv()
        {
            group.push(one);
        }
        if group.len() == before || group.len() >= largest {
            return true;
        }
    }
}
