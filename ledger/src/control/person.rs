//! Whom a change is about.

use tokio_postgres::{Client, GenericClient, Transaction};
use uuid::Uuid;
use weir_policy::subject::Subject;

use super::error::ControlError;
use crate::database::session::BOUND_LOCKS;
use crate::holder::{Holders, kept_text};
use crate::meter::Meter;

/// A user, by the subject that names it.
#[derive(Clone, Debug)]
pub struct Person {
    /// The holder.
    pub id: Uuid,
    /// As it was named.
    pub subject: Subject,
}

impl Person {
    /// The user that this subject is.
    #[must_use]
    pub fn of(holders: Holders, subject: Subject) -> Self {
        Self {
            id: holders.subject(&subject).id,
            subject,
        }
    }

    /// Whether anything was ever decided or submitted for this user.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked.
    pub async fn is_known<C: GenericClient + Sync>(&self, client: &C) -> Result<bool, tokio_postgres::Error> {
        let row = client
            .query_opt("SELECT 1 FROM users WHERE id = $1", &[&self.id])
            .await?;
        Ok(row.is_some())
    }

    /// Starts a change: makes the user where it is missing, as a first submission would, and keeps others from changing it
    /// meanwhile. Fails for a user who was deleted and has submitted nothing since.
    pub(super) async fn change<'a>(&self, client: &'a mut Client) -> Result<Transaction<'a>, ControlError> {
        self.lock(client, "SELECT 1 FROM users WHERE id = $1 FOR NO KEY UPDATE")
            .await
    }

    /// The same for a deletion. It waits for whoever submits something for the first time, of any meter, and keeps others
    /// from that.
    pub(super) async fn deletion<'a>(&self, client: &'a mut Client) -> Result<Transaction<'a>, ControlError> {
        self.lock(client, "SELECT 1 FROM users WHERE id = $1 FOR UPDATE")
            .await
    }

    async fn lock<'a>(&self, client: &'a mut Client, lock: &str) -> Result<Transaction<'a>, ControlError> {
        let transaction = client.transaction().await?;
        transaction.batch_execute(BOUND_LOCKS).await?;
        transaction
            .execute(
                include_str!("sql/make_user.sql"),
                &[&self.id, &kept_text(&self.subject)],
            )
            .await?;
        match transaction.query_opt(lock, &[&self.id]).await? {
            Some(_) => Ok(transaction),
            None => Err(ControlError::Deleted(self.subject.to_string())),
        }
    }
}

/// The meter of this name.
pub(super) async fn meter(transaction: &Transaction<'_>, name: &str) -> Result<Meter, ControlError> {
    let rows = transaction
        .query("SELECT name::text FROM meters ORDER BY 1", &[])
        .await?;
    let names: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    if names.contains(&name) {
        Ok(Meter::of(name))
    } else {
        Err(ControlError::NoMeter(name.to_owned(), names.join(", ")))
    }
}
