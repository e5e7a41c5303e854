//! Late admission: an existing job without a slot gets one, or is parked (ADR-10's snooze).
//!
//! This handles jobs that another River client inserted, retries, and jobs that an operator made available with SQL.

use std::time::Duration;

use postgres_types::ToSql;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, Transaction};
use uuid::Uuid;
use weir_policy::admission::Decision;
use weir_policy::subject::Subject;

use super::read::LockedAccount;
use crate::database::DatabaseError;
use crate::holder::{Holder, kept_text};
use crate::meter::Meter;
use crate::rules::Rules;

/// The maximum number of jobs of a backlog that one refusal parks, so that no transaction is long. The next refusal
/// parks more.
const MAX_PARKED_AT_ONCE: i64 = 1_000;

/// A job without a slot, and its current attempt.
#[derive(Clone, Copy, Debug)]
pub struct LateJob<'a> {
    /// River's job id.
    pub id: i64,
    /// The current attempt. An attempt that was taken over gets nothing. `None` for an unclaimed job: it is parked, and
    /// cannot be claimed before it has a slot.
    pub attempt: Option<i16>,
    /// The account that it counts against.
    pub holder: Holder,
    /// The subject of the holder, if the job's arguments name it.
    pub subject: Option<&'a Subject>,
    /// The meter.
    pub meter: Meter,
    /// The `user_id` of the job's arguments, and River's kinds of this meter. When the job is parked, the other
    /// claimable jobs of the same user and these kinds are parked with it.
    pub backlog: Option<(&'a str, &'a [&'a str])>,
}

/// The result for a late job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateAdmission {
    /// A slot: it may run.
    Admitted,
    /// No slot is free. The job is parked, and the next free slot promotes it. With the name of its holder's plan.
    Parked(Option<&'static str>),
    /// The attempt is no longer current, because the job was taken over. Or an unclaimed job has been claimed.
    FencedOut,
    /// Another transaction has the holder's lock. Nothing was changed.
    Blocked,
}

/// The lock timeout. Many attempts ask at once, and each uses a connection of the shared pool.
const PATIENCE: Duration = Duration::from_millis(100);

/// Gives a job a slot if one is free, or parks it and the rest of its user's backlog. Of ten thousand jobs that another
/// client inserted, workers then claim only a handful without effect.
///
/// A job that was not charged, such as a discarded one that an operator retries, reserves what its submission reserved.
///
/// # Errors
///
/// When the database cannot be used. Nothing is changed then.
pub async fn admit_late(
    client: &mut Client,
    rules: &Rules,
    job: LateJob<'_>,
) -> Result<LateAdmission, DatabaseError> {
    match admit(client, rules, job).await {
        Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => Ok(LateAdmission::Blocked),
        admission => Ok(admission?),
    }
}

async fn admit(client: &mut Client, rules: &Rules, job: LateJob<'_>) -> Result<LateAdmission, Error> {
    let transaction = client.transaction().await?;
    lock_account(&transaction, job).await?;
    let Some(status) = transaction
        .query_opt(include_str!("sql/late_job.sql"), &[&job.id, &job.attempt])
        .await?
    else {
        return Ok(LateAdmission::FencedOut);
    };
    if status.get("admitted") {
        return Ok(LateAdmission::Admitted);
    }
    let (holders, meters) = ([job.holder.id], [job.meter]);
    let row = transaction
        .query_one(include_str!("sql/read.sql"), &[&&holders[..], &&meters[..]])
        .await?;
    let mut locked = LockedAccount::from_row(&row, rules);
    if job.attempt.is_some() {
        // The transaction that frees a slot also promotes a parked job. So a slot that is free while jobs are parked is
        // of no use to them, and a claimed job may take it. If it were parked, nothing would promote it.
        locked.account.parked = 0;
    }
    locked.account.for_existing_job();
    let submitted: Option<i64> = status.get("submitted_amount");
    let amount = match submitted {
        Some(amount) if job.holder.user_id.is_some() && !status.get::<_, bool>("has_reservation") => amount,
        _ => 0,
    };
    // The quota does not refuse an operator's retry. It reserves what is left.
    let left = locked.account.remaining().unwrap_or(i64::MAX);
    let amount = amount.min(left).min(locked.account.capacity());
    let (decision, excess) = locked.account.decide_and_draw(amount);
    let admitted = decision == Decision::Admitted;
    write_reservation(
        &transaction,
        rules,
        job,
        &locked,
        (admitted, amount, excess.overage),
    )
    .await?;
    let mut parked = i64::from(!admitted) - i64::from(status.get::<_, bool>("parked"));
    let mut first_parked = None;
    if !admitted {
        let (backlog, first) = park_backlog(&transaction, rules, job, &locked).await?;
        parked += backlog;
        first_parked = Some(first.map_or(job.id, |first| first.min(job.id)));
    }
    let slot_limit = locked
        .account
        .slot_limit
        .map_or(i32::MAX, |limit| i32::try_from(limit).unwrap_or(i32::MAX));
    transaction
        .execute(
            include_str!("sql/update_holders.sql"),
            &[
                &&holders[..],
                &&meters[..],
                &&[i32::from(admitted)][..],
                &&[i32::try_from(parked).unwrap_or(i32::MAX)][..],
                &&[slot_limit][..],
                &first_parked,
            ],
        )
        .await?;
    transaction.commit().await?;
    Ok(if admitted {
        LateAdmission::Admitted
    } else {
        LateAdmission::Parked(locked.plan.map(|plan| plan.name))
    })
}

/// Creates the account if it is missing, and locks it.
async fn lock_account(transaction: &Transaction<'_>, job: LateJob<'_>) -> Result<(), Error> {
    let LateJob { holder, subject, .. } = job;
    transaction
        .batch_execute(&format!(
            "SET LOCAL weir.counters = 'kept'; SET LOCAL lock_timeout = {}",
            PATIENCE.as_millis()
        ))
        .await?;
    let (holders, meters, users) = ([holder.id], [job.meter], [holder.user_id]);
    let subjects = [subject.and_then(kept_text)];
    let provisioned = transaction
        .query(
            include_str!("sql/provision.sql"),
            &[&&holders[..], &&meters[..], &&users[..], &&subjects[..]],
        )
        .await?;
    if provisioned.iter().any(|row| row.get::<_, i64>("new_users") > 0) {
        tracing::warn!(job = job.id, user = %holder.id, "the job's user was unknown and is now on the default plan");
    }
    transaction
        .query(include_str!("sql/lock.sql"), &[&&holders[..], &&meters[..]])
        .await?;
    Ok(())
}

/// Writes the job's reservation, which holds a slot if `admitted`. Otherwise, makes an unclaimed job wait.
async fn write_reservation(
    transaction: &Transaction<'_>,
    rules: &Rules,
    job: LateJob<'_>,
    locked: &LockedAccount,
    (admitted, amount, overage): (bool, i64, i64),
) -> Result<(), Error> {
    transaction
        .execute(
            include_str!("sql/late_reservation.sql"),
            &[
                &job.id,
                &job.holder.id,
                &job.holder.user_id,
                &job.meter,
                &amount,
                &locked.period_start(),
                &admitted,
                &rules.ttl.as_secs_f64(),
                &locked.bits(),
                &locked.at,
                &overage,
            ],
        )
        .await?;
    if let (Some(user), 1..) = (job.holder.user_id, amount) {
        reserve(transaction, user, job.meter, amount, locked).await?;
    }
    if !admitted && job.attempt.is_none() {
        let wait = "UPDATE river_job SET state = 'pending' WHERE id = $1";
        transaction.execute(wait, &[&job.id]).await?;
    }
    Ok(())
}

/// Parks the user's other claimable jobs. Returns their number and the smallest id.
async fn park_backlog(
    transaction: &Transaction<'_>,
    rules: &Rules,
    job: LateJob<'_>,
    locked: &LockedAccount,
) -> Result<(i64, Option<i64>), Error> {
    let Some((user, kinds)) = job.backlog else {
        return Ok((0, None));
    };
    let row = transaction
        .query_one(
            include_str!("sql/park_backlog.sql"),
            &[
                &kinds,
                &user,
                &job.holder.user_id,
                &job.meter,
                &job.holder.id,
                &locked.period_start(),
                &rules.ttl.as_secs_f64(),
                &MAX_PARKED_AT_ONCE,
            ],
        )
        .await?;
    let parked: i64 = row.get("parked");
    if parked > 0 {
        crate::access_log!(
            false,
            job = job.id,
            user,
            parked,
            "parked the backlog of a user without a free slot"
        );
    }
    Ok((parked, row.get("first")))
}

/// Reserves an amount in every window.
async fn reserve(
    transaction: &Transaction<'_>,
    user: Uuid,
    meter: Meter,
    amount: i64,
    locked: &LockedAccount,
) -> Result<(), Error> {
    let count = locked.windows.len();
    let spans: Vec<&str> = locked.windows.iter().map(|window| window.span.as_str()).collect();
    let starts: Vec<_> = locked.windows.iter().map(|window| window.start).collect();
    let allowances = locked.account.allowances.iter();
    let limits: Vec<i64> = allowances
        .map(|one| one.max_accepted().unwrap_or(i64::MAX))
        .collect();
    let params: [&(dyn ToSql + Sync); 6] = [
        &vec![user; count],
        &vec![meter; count],
        &spans,
        &starts,
        &vec![amount; count],
        &limits,
    ];
    transaction
        .execute(include_str!("sql/update_balances.sql"), &params)
        .await?;
    Ok(())
}
