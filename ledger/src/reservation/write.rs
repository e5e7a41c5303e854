//! The second round trip: writes the decisions, and commits.

use jiff::Timestamp;
use postgres_types::ToSql;
use serde_json::Value;
use tokio_postgres::GenericClient;
use uuid::Uuid;

use super::decide::Outcome;
use super::read::Snapshot;
use super::statements::ReservationStatements;
use super::submission::{Answer, Submission};
use crate::database::session::Connection;
use crate::meter::Meter;
use crate::rules::Rules;
use crate::unique_key::LIVE_STATES;

/// The rows of new jobs, by column.
#[derive(Default)]
struct NewRows<'a> {
    ids: Vec<i64>,
    args: Vec<&'a Value>,
    kinds: Vec<&'a str>,
    max_attempts: Vec<i16>,
    metadata: Vec<&'a Value>,
    queues: Vec<&'a str>,
    states: Vec<&'static str>,
    priorities: Vec<i16>,
    run_at: Vec<Option<Timestamp>>,
    holders: Vec<Uuid>,
    users: Vec<Option<Uuid>>,
    meters: Vec<Meter>,
    amounts: Vec<i64>,
    periods: Vec<Option<Timestamp>>,
    windows: Vec<i16>,
    overages: Vec<i64>,
    admitted: Vec<bool>,
    keys: Vec<Option<&'a str>>,
    hashes: Vec<Option<&'a [u8]>>,
    unique_keys: Vec<Option<&'a [u8]>>,
}

impl<'a> NewRows<'a> {
    fn of(group: &[&'a Submission], snapshot: &Snapshot, outcomes: &'a [Outcome]) -> Self {
        let mut rows = Self::default();
        for (one, outcome) in group.iter().zip(outcomes) {
            let Answer::Accepted { job, .. } = &outcome.answer else {
                continue;
            };
            let idempotency = one.idempotency.as_ref();
            rows.ids.push(job.id);
            rows.args.push(&one.args);
            rows.kinds.push(&one.kind);
            rows.max_attempts.push(one.max_attempts);
            rows.metadata.push(&one.metadata);
            rows.queues.push(&job.queue);
            rows.states
                .push(if job.has_slot { "available" } else { "pending" });
            rows.priorities.push(one.priority);
            rows.run_at.push(job.run_at);
            rows.holders.push(one.holder.id);
            rows.users.push(one.holder.user_id);
            rows.meters.push(one.meter);
            rows.amounts.push(job.reserved);
            let account = snapshot.account(one);
            rows.periods.push(account.period_start());
            rows.windows.push(account.bits());
            rows.overages.push(outcome.overage);
            rows.admitted.push(job.has_slot);
            rows.keys
                .push(idempotency.map(|idempotency| idempotency.key.as_str()));
            rows.hashes
                .push(idempotency.map(|idempotency| idempotency.request_hash.as_slice()));
            rows.unique_keys.push(one.unique_key.as_deref());
        }
        rows
    }
}

/// The draws of new jobs on grants, by column. Mostly empty.
#[derive(Default)]
struct DrawRows {
    jobs: Vec<i64>,
    positions: Vec<i16>,
    grants: Vec<Uuid>,
    amounts: Vec<i64>,
}

impl DrawRows {
    fn of(outcomes: &[Outcome]) -> Self {
        let mut rows = Self::default();
        for one in outcomes {
            let Answer::Accepted { job, .. } = &one.answer else {
                continue;
            };
            for (position, (grant, amount)) in (0..).zip(&one.draws) {
                rows.jobs.push(job.id);
                rows.positions.push(position);
                rows.grants.push(*grant);
                rows.amounts.push(*amount);
            }
        }
        rows
    }
}

/// The changes of counters, by column: one row per locked holder, and one per balance that grows.
#[derive(Default)]
struct CounterRows {
    holders: Vec<Uuid>,
    meters: Vec<Meter>,
    slots: Vec<i32>,
    parked: Vec<i32>,
    slot_limits: Vec<i32>,
    balance_users: Vec<Uuid>,
    balance_meters: Vec<Meter>,
    balance_spans: Vec<&'static str>,
    balance_periods: Vec<Timestamp>,
    reserved: Vec<i64>,
    limits: Vec<i64>,
}

impl CounterRows {
    fn of(snapshot: &Snapshot) -> Self {
        let mut rows = Self::default();
        let signed = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        for (&(holder, meter), &position) in &snapshot.positions {
            let locked = &snapshot.accounts[position];
            let (account, before) = (&locked.account, &locked.before);
            if (account.slots_in_use, account.parked) != (before.slots_in_use, before.parked) {
                rows.holders.push(holder);
                rows.meters.push(meter);
                rows.slots
                    .push(signed(account.slots_in_use - before.slots_in_use));
                rows.parked.push(signed(account.parked - before.parked));
                rows.slot_limits.push(account.slot_limit.map_or(i32::MAX, signed));
            }
            let windows = locked.windows.iter().zip(&account.allowances);
            for ((window, now), then) in windows.zip(&before.allowances) {
                let added = now.reserved - then.reserved;
                if added > 0 {
                    rows.balance_users.push(holder);
                    rows.balance_meters.push(meter);
                    rows.balance_spans.push(window.span.as_str());
                    rows.balance_periods.push(window.start);
                    rows.reserved.push(added);
                    rows.limits.push(now.max_accepted().unwrap_or(i64::MAX));
                }
            }
        }
        rows
    }
}

/// The second round trip. With `commit`, it ends the transaction there. Otherwise, the caller does.
pub(super) async fn write<C: GenericClient + Sync>(
    client: &C,
    statements: &ReservationStatements,
    rules: &Rules,
    group: &[&Submission],
    snapshot: &Snapshot,
    outcomes: &[Outcome],
    commit: Option<&Connection<ReservationStatements>>,
) -> Result<(), tokio_postgres::Error> {
    let finish = async || match commit {
        Some(connection) => connection.commit().await,
        None => Ok(()),
    };
    let rows = NewRows::of(group, snapshot, outcomes);
    if rows.ids.is_empty() {
        return finish().await;
    }
    let counters = CounterRows::of(snapshot);
    let draws = DrawRows::of(outcomes);
    let ttl = rules.ttl.as_secs_f64();
    let jobs: [&(dyn ToSql + Sync); 11] = [
        &rows.ids,
        &rows.args,
        &rows.kinds,
        &rows.max_attempts,
        &rows.metadata,
        &rows.queues,
        &rows.states,
        &rows.unique_keys,
        &LIVE_STATES,
        &rows.priorities,
        &rows.run_at,
    ];
    let reservations: [&(dyn ToSql + Sync); 12] = [
        &rows.ids,
        &rows.holders,
        &rows.users,
        &rows.meters,
        &rows.amounts,
        &rows.periods,
        &rows.admitted,
        &ttl,
        &rows.windows,
        &snapshot.at(),
        &rows.run_at,
        &rows.overages,
    ];
    let submissions: [&(dyn ToSql + Sync); 7] = [
        &rows.ids,
        &rows.holders,
        &rows.users,
        &rows.meters,
        &rows.amounts,
        &rows.keys,
        &rows.hashes,
    ];
    let first_id = rows.ids.iter().min();
    let holders: [&(dyn ToSql + Sync); 6] = [
        &counters.holders,
        &counters.meters,
        &counters.slots,
        &counters.parked,
        &counters.slot_limits,
        &first_id,
    ];
    let balances: [&(dyn ToSql + Sync); 6] = [
        &counters.balance_users,
        &counters.balance_meters,
        &counters.balance_spans,
        &counters.balance_periods,
        &counters.reserved,
        &counters.limits,
    ];
    let draw: [&(dyn ToSql + Sync); 4] = [&draws.jobs, &draws.positions, &draws.grants, &draws.amounts];
    // A statement without rows is not sent.
    let execute = async |statement, rows: usize, params: &[&(dyn ToSql + Sync)]| match rows {
        0 => Ok(0),
        _ => client.execute(statement, params).await,
    };
    tokio::try_join!(
        biased;
        client.execute(&statements.insert_jobs, &jobs),
        client.execute(&statements.insert_reservations, &reservations),
        client.execute(&statements.insert_submissions, &submissions),
        client.execute(&statements.update_holders, &holders),
        execute(&statements.update_balances, counters.balance_users.len(), &balances),
        execute(&statements.draw, draws.jobs.len(), &draw),
        finish(),
    )?;
    Ok(())
}
