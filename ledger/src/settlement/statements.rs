//! The statements of the settlement transaction and of promotion.

use crate::database::session::statements;

statements! {
    pub(super) struct SettlementStatements {
        settle: "SELECT * FROM settle_many($1, $2, $3, $4, $5)",
        lock: "SELECT holder, event_type FROM lock_accounts($1, $2, true)",
        promote: "SELECT * FROM settle_many('{}', true, '{}', $1, $2)",
        waiting: include_str!("sql/waiting.sql"),
        due: include_str!("sql/due.sql"),
        park_due: include_str!("sql/park_due.sql"),
        free_jobs: include_str!("sql/free_jobs.sql"),
        rebuild: include_str!("sql/rebuild.sql"),
    }
}
