//! The user that a change affects.

use tokio_postgres::{Client, GenericClient, Transaction};
use uuid::Uuid;
use weir_policy::subject::Subject;

use super::error::ControlError;
use crate::database::session::BOUND_LOCKS;
use crate::holder::{Holders, kept_text};
use crate::meter::Meter;

/// A user, identified by subject.
#[derive(Clone, Debug)]
pub struct User {
    /// The holder's id.
    pub id: Uuid,
    /// The subject, as the caller wrote it.
    pub subject: Subject,
}

impl User {
    /// The user of this subject.
    #[must_use]
    pub fn of(holders: Holders, subject: Subject) -> Self {
        Self {
            id: holders.subject(&subject).id,
            subject,
        }
    }

    /// Whether the user exists, through a job or a change.
    ///
    /// # Errors
    ///
    /// When the database cannot be queried.
    pub async fn is_known<C: GenericClient + Sync>(&self, client: &C) -> Result<bool, tokio_postgres::Error> {
        let row = client
            .query_opt("SELECT 1 FROM users WHERE id = $1", &[&self.id])
            .await?;
        Ok(row.is_some())
    }

    /// Starts a change: creates a missing user as a first submission would, and locks the user against other changes.
    /// Fails for a user who was deleted and has submitted nothing since.
    pub(super) async fn begin_change<'a>(
        &self,
        client: &'a mut Client,
    ) -> Result<Transaction<'a>, ControlError> {
        self.lock(client, "SELECT 1 FROM users WHERE id = $1 FOR NO KEY UPDATE")
            .await
    }

    /// Like [`Self::begin_change`], for a deletion. It waits for first submissions of any meter, and blocks new ones.
    pub(super) async fn begin_deletion<'a>(
        &self,
        client: &'a mut Client,
    ) -> Result<Transaction<'a>, ControlError> {
        self.lock(client, "SELECT 1 FROM users WHERE id = $1 FOR UPDATE")
            .await
    }

    async fn lock<'a>(&self, client: &'a mut Client, lock: &str) -> Result<Transaction<'a>, ControlError> {
        let transaction = client.transaction().await?;
        transaction.batch_execute(BOUND_LOCKS).await?;
        transaction
            .execute(
                include_str!("sql/create_user.sql"),
                &[&self.id, &kept_text(&self.subject)],
            )
            .await?;
        match transaction.query_opt(lock, &[&self.id]).await? {
            Some(_) => Ok(transaction),
            None => Err(ControlError::UserDeleted(self.subject.to_string())),
        }
    }
}

/// The meter of this name.
pub(super) async fn find_meter(transaction: &Transaction<'_>, name: &str) -> Result<Meter, ControlError> {
    let rows = transaction
        .query("SELECT name::text FROM meters ORDER BY 1", &[])
        .await?;
    let names: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    if names.contains(&name) {
        Ok(Meter::of(name))
    } else {
        Err(ControlError::UnknownMeter(name.to_owned(), names.join(", ")))
    }
}
