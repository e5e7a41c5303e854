//! The second round trip: writes what was decided, and commits.

use jiff::Timestamp;
use serde_json::Value;
use uuid::Uuid;
use weir_policy::admission::Decision;
use weir_policy::lane::Lane;

use super::Submission;
use super::decide::{Decided, Verdict};
use super::read::Snapshot;
use super::transaction::{Connection, Rules};
use crate::service::EventType;
use crate::unique::LIVE_STATES;

/// The columns of the rows to write, one entry a new job.
#[derive(Default)]
struct Rows<'a> {
    ids: Vec<i64>,
    args: Vec<&'a Value>,
    kinds: Vec<&'a str>,
    max_attempts: Vec<i16>,
    metadata: Vec<&'a Value>,
    queues: Vec<String>,
    states: Vec<&'static str>,
    holders: Vec<Uuid>,
    users: Vec<Option<Uuid>>,
    event_types: Vec<EventType>,
    amounts: Vec<i32>,
    periods: Vec<Option<Timestamp>>,
    admitted: Vec<bool>,
    keys: Vec<Option<&'a str>>,
    hashes: Vec<Option<&'a [u8]>>,
    unique_keys: Vec<Option<&'a [u8]>>,
}

fn rows<'a>(group: &'a [Submission], snapshot: &Snapshot, decided: &[Decided]) -> Rows<'a> {
    let mut rows = Rows::default();
    for (one, decided) in group.iter().zip(decided) {
        let Verdict::New { id, decision, unique } = &decided.verdict else {
            continue;
        };
        let locked = snapshot.account(one);
        let admitted = *decision == Decision::Admitted;
        rows.ids.push(*id);
        rows.args.push(&one.args);
        rows.kinds.push(&one.kind);
        rows.max_attempts.push(one.max_attempts);
        rows.metadata.push(&one.metadata);
        rows.queues
            .push(Lane::select(locked.tier, false).queue(&one.service));
        rows.states.push(if admitted { "available" } else { "pending" });
        rows.holders.push(one.holder.id);
        rows.users.push(one.holder.user_id);
        rows.event_types.push(one.event_type);
        rows.amounts.push(one.holder.user_id.map_or(0, |_| one.amount));
        rows.periods.push(locked.period.map(|(start, _)| start));
        rows.admitted.push(admitted);
        rows.keys.push(
            one.idempotency
                .as_ref()
                .map(|idempotency| idempotency.key.as_str()),
        );
        rows.unique_keys
            .push(one.unique_key.as_deref().filter(|_| *unique));
        rows.hashes.push(
            one.idempotency
                .as_ref()
                .map(|idempotency| idempotency.request_hash.as_slice()),
        );
    }
    rows
}

/// The second round trip.
pub(super) async fn write(
    connection: &Connection,
    rules: &Rules,
    group: &[Submission],
    snapshot: &Snapshot,
    decided: &[Decided],
) -> Result<(), tokio_postgres::Error> {
    let client = &connection.client;
    let rows = rows(group, snapshot, decided);
    if rows.ids.is_empty() {
        return client.batch_execute("COMMIT").await;
    }
    let (mut holders, mut event_types) = (Vec::new(), Vec::new());
    let (mut slots, mut parked, mut slot_limits) = (Vec::new(), Vec::new(), Vec::new());
    let (mut users, mut user_events, mut periods) = (Vec::new(), Vec::new(), Vec::new());
    let (mut reserved, mut limits) = (Vec::new(), Vec::new());
    let signed = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    for (&(holder, event_type), &place) in &snapshot.places {
        let locked = &snapshot.accounts[place];
        let account = &locked.account;
        holders.push(holder);
        event_types.push(event_type);
        slots.push(signed(account.slots_in_use - locked.slots_before));
        parked.push(signed(account.parked - locked.parked_before));
        slot_limits.push(account.slot_limit.map_or(i32::MAX, signed));
        let added = account.reserved - locked.reserved_before;
        if let (true, Some((start, _)), 1..) = (locked.is_user, locked.period, added) {
            users.push(holder);
            user_events.push(event_type);
            periods.push(start);
            reserved.push(added);
            limits.push(account.limit.unwrap_or(i64::MAX));
        }
    }
    let mut queues: Vec<&str> = rows
        .queues
        .iter()
        .zip(&rows.admitted)
        .filter(|(_, admitted)| **admitted)
        .map(|(queue, _)| queue.as_str())
        .collect();
    queues.sort_unstable();
    queues.dedup();
    let payloads: Vec<String> = queues.iter().map(|queue| insert_payload(queue)).collect();
    let ttl = rules.ttl.as_secs_f64();
    let jobs: [&(dyn postgres_types::ToSql + Sync); 9] = [
        &rows.ids,
        &rows.args,
        &rows.kinds,
        &rows.max_attempts,
        &rows.metadata,
        &rows.queues,
        &rows.states,
        &rows.unique_keys,
        &LIVE_STATES,
    ];
    let tickets: [&(dyn postgres_types::ToSql + Sync); 8] = [
        &rows.ids,
        &rows.holders,
        &rows.users,
        &rows.event_types,
        &rows.amounts,
        &rows.periods,
        &rows.admitted,
        &ttl,
    ];
    let submissions: [&(dyn postgres_types::ToSql + Sync); 7] = [
        &rows.ids,
        &rows.holders,
        &rows.users,
        &rows.event_types,
        &rows.amounts,
        &rows.keys,
        &rows.hashes,
    ];
    let slots_params: [&(dyn postgres_types::ToSql + Sync); 5] =
        [&holders, &event_types, &slots, &parked, &slot_limits];
    let balances: [&(dyn postgres_types::ToSql + Sync); 5] =
        [&users, &user_events, &periods, &reserved, &limits];
    let notify: [&(dyn postgres_types::ToSql + Sync); 1] = [&payloads];
    tokio::try_join!(
        biased;
        client.execute(&connection.jobs, &jobs),
        client.execute(&connection.tickets, &tickets),
        client.execute(&connection.submissions, &submissions),
        client.execute(&connection.slots, &slots_params),
        client.execute(&connection.balances, &balances),
        client.execute(&connection.notify, &notify),
        client.batch_execute("COMMIT"),
    )?;
    Ok(())
}

/// What River's clients send on `river_insert`.
pub(crate) fn insert_payload(queue: &str) -> String {
    serde_json::json!({ "queue": queue }).to_string()
}
