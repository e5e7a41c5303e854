//! The statements of the reservation transaction.

use crate::database::session::{skipping, statements};

/// Creates the rows of an unknown holder, for other transactions that may be its first.
pub(crate) const PROVISION: &str = include_str!("sql/provision.sql");

statements! {
    pub(super) struct ReservationStatements {
        lock: include_str!("sql/lock.sql"),
        lock_skipping: skipping(include_str!("sql/lock.sql")),
        read: include_str!("sql/read.sql"),
        ids: include_str!("sql/ids.sql"),
        earlier: include_str!("sql/earlier.sql"),
        free_keys: include_str!("sql/free_keys.sql"),
        live: include_str!("sql/live.sql"),
        insert_jobs: include_str!("sql/insert_jobs.sql"),
        insert_reservations: include_str!("sql/insert_reservations.sql"),
        insert_submissions: include_str!("sql/insert_submissions.sql"),
        update_holders: include_str!("sql/update_holders.sql"),
        update_balances: include_str!("sql/update_balances.sql"),
        draw: include_str!("sql/draw.sql"),
        provision: PROVISION,
    }
}
