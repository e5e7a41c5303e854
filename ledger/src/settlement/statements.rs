//! The statements of the settlement transaction and of promotion.

use crate::database::session::{skipping, statements};

statements! {
    pub(super) struct SettlementStatements {
        lock: include_str!("sql/lock.sql"),
        lock_skipping: skipping(include_str!("sql/lock.sql")),
        complete: include_str!("sql/complete.sql"),
        release: include_str!("sql/release.sql"),
        charged: include_str!("sql/charged.sql"),
        charge: include_str!("sql/charge.sql"),
        settle_draws: include_str!("sql/settle_draws.sql"),
        update_balances: include_str!("sql/update_balances.sql"),
        update_holders: include_str!("sql/update_holders.sql"),
        promote: "SELECT * FROM promote_parked($1, $2, $3, $4, $5, $6, $7)",
        waiting: include_str!("sql/waiting.sql"),
        due: include_str!("sql/due.sql"),
        park_due: include_str!("sql/park_due.sql"),
        free_jobs: include_str!("sql/free_jobs.sql"),
        create_holder: include_str!("sql/create_holder.sql"),
        rebuild_lock: include_str!("sql/rebuild_lock.sql"),
        rebuild_holders: include_str!("sql/rebuild_holders.sql"),
        rebuild_balances: include_str!("sql/rebuild_balances.sql"),
    }
}
