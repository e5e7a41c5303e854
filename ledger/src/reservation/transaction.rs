//! The reservation transaction, in two round trips: lock and read; then, after the decision, write and commit.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use postgres_types::ToSql;
use tokio_postgres::{Client, GenericClient, Transaction};
use uuid::Uuid;

use super::read::{self, ReadError};
use super::statements::ReservationStatements;
use super::submission::{Answer, ReserveError, Submission};
use super::{decide, write};
use crate::committer::{GroupFailure, Locking, Transact};
use crate::database::session::{BOUND_LOCKS, Connection, Statements, before_commit};
use crate::database::{DatabaseError, Failure, Notifier, Phase};
use crate::holder::kept_text;
use crate::json::json_bytes;
use crate::meter::Meter;
use crate::rules::Rules;

/// Admits groups of submissions.
pub(super) struct Admit {
    pub(super) rules: Arc<Rules>,
    pub(super) notifier: Notifier,
}

impl Transact for Admit {
    type Item = Submission;
    type Output = Answer;
    type Statements = ReservationStatements;

    const MAX_GROUP: usize = 256;
    const MAX_QUEUE: usize = 20_000;
    const MAX_QUEUE_BYTES: usize = 64 * 1024 * 1024;
    const BLOCKED_TIMEOUT: Duration = Duration::from_secs(5);

    fn holder(one: &Submission) -> Option<Uuid> {
        Some(one.holder.id)
    }

    fn id(one: &Submission) -> Uuid {
        one.holder.id
    }

    fn bytes(one: &Submission) -> usize {
        512 + json_bytes(&one.args) + json_bytes(&one.metadata)
    }

    async fn run(
        &self,
        connection: &Connection<ReservationStatements>,
        group: &[&Submission],
        locking: &Locking,
    ) -> Result<Vec<Answer>, GroupFailure> {
        metrics::histogram!("weir_admission_group_size")
            .record(u32::try_from(group.len()).unwrap_or(u32::MAX));
        let mut admitted = admit(connection, &self.rules, group, locking).await;
        if matches!(admitted, Err(ReadError::MissingHolder)) {
            // Creates the rows outside of the transaction, so that it never waits for another transaction that creates
            // them.
            create_holders(&connection.client, &connection.statements, group)
                .await
                .map_err(|error| Failure::of(error, Phase::Open))?;
            admitted = admit(connection, &self.rules, group, locking).await;
        }
        let answers = admitted.map_err(|error| match error {
            ReadError::MissingHolder => Failure::Conflict(DatabaseError::Contended).into(),
            ReadError::Failed(failure) => failure,
        })?;
        self.notifier
            .notify(answers.iter().filter_map(Answer::claimable_in).collect());
        Ok(answers)
    }
}

async fn create_holders(
    client: &Client,
    statements: &ReservationStatements,
    group: &[&Submission],
) -> Result<(), tokio_postgres::Error> {
    client.batch_execute("ROLLBACK").await?;
    provision(client, statements, group).await
}

/// One transaction, from BEGIN to COMMIT.
async fn admit(
    connection: &Connection<ReservationStatements>,
    rules: &Rules,
    group: &[&Submission],
    locking: &Locking,
) -> Result<Vec<Answer>, ReadError> {
    let Connection { client, statements, .. } = connection;
    let read_and_decide = async {
        let mut snapshot =
            read::lock_and_read(client, statements, rules, group, locking, Some(connection)).await?;
        let outcomes = decide::decide(group, &mut snapshot);
        Ok::<_, ReadError>((snapshot, outcomes))
    };
    let (snapshot, outcomes) = before_commit(read_and_decide).await?;
    write::write(
        client,
        statements,
        rules,
        group,
        &snapshot,
        &outcomes,
        Some(connection),
    )
    .await
        .map_err(|error| ReadError::from(Failure::of(error, Phase::Committing)))?;
    decide::record(group, &outcomes);
    Ok(outcomes.into_iter().map(|one| one.answer).collect())
}

/// Creates the rows that the first submission of a user or an address needs.
async fn provision<C: GenericClient + Sync>(
    client: &C,
    statements: &ReservationStatements,
    group: &[&Submission],
) -> Result<(), tokio_postgres::Error> {
    let holders: Vec<Uuid> = group.iter().map(|one| one.holder.id).collect();
    let meters: Vec<Meter> = group.iter().map(|one| one.meter).collect();
    let users: Vec<Option<Uuid>> = group.iter().map(|one| one.holder.user_id).collect();
    let subjects: Vec<Option<&str>> = group
        .iter()
        .map(|one| one.subject.as_ref().and_then(kept_text))
        .collect();
    let params: [&(dyn ToSql + Sync); 4] = [&holders, &meters, &users, &subjects];
    client.execute(&statements.provision, &params).await?;
    Ok(())
}

/// Admits one submission inside the caller's transaction: the job exists if, and only if, the caller commits. Nothing is
/// counted or logged. Workers find the job within 50 ms of the commit. To wake them sooner, call [`Database::notify`]
/// after it.
///
/// [`Database::notify`]: crate::database::Database::notify
///
/// The holder's row stays locked until the transaction ends, so commit soon: submissions of the same holder wait.
///
/// # Errors
///
/// When the database cannot be used or refuses the arguments. The transaction can then only be rolled back.
///
/// # Examples
///
/// `examples/own_transaction.rs` inserts a row of the product's and submits its job, both or neither:
///
/// ```no_run
#[doc = include_str!("../../examples/own_transaction.rs")]
/// ```
pub async fn reserve(
    transaction: &Transaction<'_>,
    rules: &Rules,
    submission: &Submission,
) -> Result<Answer, ReserveError> {
    let mut answers = reserve_all(transaction, rules, &[submission]).await?;
    Ok(answers.remove(0))
}

/// Admits several submissions in one transaction, all or none, as [`reserve_all`] does, and commits. `read` runs in the
/// same transaction and reads other data for the answer. If it fails, nothing is reserved. It is not called if the
/// submissions are refused.
///
/// # Errors
///
/// As [`reserve`], and the errors of `read`. After [`DatabaseError::OutcomeUnknown`], the jobs may exist.
pub async fn submit_all<T: Default, E: From<ReserveError>>(
    client: &mut Client,
    rules: &Rules,
    group: &[&Submission],
    read: impl AsyncFnOnce(&Transaction<'_>, &[Answer]) -> Result<T, E>,
) -> Result<(Vec<Answer>, T), E> {
    let transaction = client.transaction().await.map_err(ReserveError::from)?;
    let bounded = transaction.batch_execute(BOUND_LOCKS).await;
    bounded.map_err(ReserveError::from)?;
    let answers = reserve_all(&transaction, rules, group).await?;
    if answers.iter().any(Answer::is_refusal) {
        transaction.rollback().await.map_err(ReserveError::from)?;
        return Ok((answers, T::default()));
    }
    let read = read(&transaction, &answers).await?;
    let committed = transaction.commit().await;
    committed.map_err(|error| refusal(Failure::of(error, Phase::Committing).into_error()))?;
    Ok((answers, read))
}

/// Admits several submissions inside the caller's transaction, all or none. If one is over the quota, or reuses an
/// `Idempotency-Key` with another request, its refusal is the only answer, and the caller rolls back. The quota is then
/// the one before all of them. `full` lists the windows without room for all submissions of the refused one's account.
///
/// # Errors
///
/// As [`reserve`].
pub async fn reserve_all(
    transaction: &Transaction<'_>,
    rules: &Rules,
    group: &[&Submission],
) -> Result<Vec<Answer>, ReserveError> {
    let statements = ReservationStatements::prepare(transaction).await?;
    let locking = Locking::Wait(HashSet::new());
    // Weir's statements update the counters themselves. The triggers do so for the caller's statements before and
    // after.
    transaction
        .batch_execute("SET LOCAL weir.counters = 'kept'")
        .await?;
    let read = async || read::lock_and_read(transaction, &statements, rules, group, &locking, None).await;
    let mut snapshot = match read().await {
        Err(ReadError::MissingHolder) => {
            provision(transaction, &statements, group).await?;
            read().await
        }
        read => read,
    }
    .map_err(|unread| match unread {
        ReadError::Failed(GroupFailure::Failed(failure)) => refusal(failure.into_error()),
        _ => DatabaseError::Locked.into(),
    })?;
    let outcomes = decide::decide(group, &mut snapshot);
    let refused = outcomes.iter().position(|one| one.answer.is_refusal());
    let answers = match refused {
        Some(index) => vec![decide::refuse_all(group, &snapshot, outcomes, index)],
        None => {
            write::write(
                transaction,
                &statements,
                rules,
                group,
                &snapshot,
                &outcomes,
                None,
            )
            .await
            .map_err(|error| refusal(Failure::of(error, Phase::Open).into_error()))?;
            outcomes.into_iter().map(|one| one.answer).collect()
        }
    };
    transaction.batch_execute("SET LOCAL weir.counters = ''").await?;
    Ok(answers)
}

/// If PostgreSQL cannot store a value, the caller must change it. Every other error is internal.
pub(super) fn refusal(error: DatabaseError) -> ReserveError {
    match error.unstorable() {
        Some(reason) => ReserveError::Unstorable(reason),
        None => error.into(),
    }
}
