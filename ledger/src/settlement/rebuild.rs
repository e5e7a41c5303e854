//! Counters, rebuilt from the rows that they count.

use tokio_postgres::{Error, Transaction};
use uuid::Uuid;

/// Locks these holders, and sets their counters and balances to the sums of their rows.
pub(crate) async fn rebuild_counters(transaction: &Transaction<'_>, holders: &[Uuid]) -> Result<(), Error> {
    for sql in [
        include_str!("sql/rebuild_missing.sql"),
        "SELECT lock_holders($1)",
        include_str!("sql/rebuild_holders.sql"),
        include_str!("sql/rebuild_balances.sql"),
    ] {
        transaction.execute(sql, &[&holders]).await?;
    }
    Ok(())
}
