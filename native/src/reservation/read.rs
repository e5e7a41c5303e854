//! The first round trip: takes the locks, and reads under them.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use uuid::Uuid;
use weir_policy::admission::Account;
use weir_policy::tier::Tier;

use super::transaction::{Connection, Rules};
use super::{Quota, Submission};
use crate::holder;
use crate::service::EventType;

pub(super) type AccountKey = (Uuid, EventType);

/// What is decided from. Nobody else changes any of it while the transaction lasts.
pub(super) struct Snapshot {
    /// Where an account is in `accounts`.
    pub(super) places: BTreeMap<AccountKey, usize>,
    pub(super) accounts: Vec<Locked>,
    /// Fresh job ids, one for each submission, smallest first.
    pub(super) ids: Vec<i64>,
    /// By holder and `Idempotency-Key`: the request's hash, and the job it made.
    pub(super) earlier: HashMap<(Uuid, String), (Vec<u8>, i64)>,
    /// By River's unique key: the live job, and whose it is if it came through Weir.
    pub(super) live: HashMap<Vec<u8>, (i64, Option<Uuid>)>,
}

impl Snapshot {
    pub(super) fn account(&self, one: &Submission) -> &Locked {
        &self.accounts[self.places[&(one.holder.id, one.event_type)]]
    }
}

/// An account under its lock, with what else the answers need.
pub(super) struct Locked {
    pub(super) account: Account,
    pub(super) is_user: bool,
    pub(super) tier: Option<Tier>,
    pub(super) period: Option<(Timestamp, Timestamp)>,
    pub(super) slots_before: u32,
    pub(super) parked_before: u32,
    pub(super) reserved_before: i64,
}

impl Locked {
    pub(super) fn quota(&self) -> Option<Quota> {
        self.period.map(|(_, end)| Quota::of(&self.account, end))
    }
}

/// The distinct accounts of a group, in the order in which they are locked, with their place in it.
fn places(group: &[Submission]) -> BTreeMap<AccountKey, usize> {
    let mut places: BTreeMap<AccountKey, usize> = group
        .iter()
        .map(|submission| ((submission.holder.id, submission.event_type), 0))
        .collect();
    for (place, index) in places.values_mut().enumerate() {
        *index = place;
    }
    places
}

/// The first round trip. `None` when a holder is not known yet.
pub(super) async fn lock_and_read(
    connection: &Connection,
    rules: &Rules,
    group: &[Submission],
) -> Result<Option<Snapshot>, tokio_postgres::Error> {
    let client = &connection.client;
    let places = places(group);
    let (holders, event_types): (Vec<Uuid>, Vec<EventType>) = places.keys().copied().unzip();
    let (key_holders, key_texts): (Vec<Uuid>, Vec<&str>) = group
        .iter()
        .filter_map(|one| {
            one.idempotency
                .as_ref()
                .map(|idempotency| (one.holder.id, idempotency.key.as_str()))
        })
        .unzip();
    let wanted = i32::try_from(group.len()).unwrap_or(i32::MAX);
    // Sent together, executed one after the other: each statement sees what was committed when its turn came,
    // so everything after the first is read under the locks. Biased, because the order of polling is the order of
    // sending, and the first error is the one that tells.
    let key_params: [&(dyn postgres_types::ToSql + Sync); 2] = [&key_holders, &key_texts];
    let account_params: [&(dyn postgres_types::ToSql + Sync); 2] = [&holders, &event_types];
    let id_params: [&(dyn postgres_types::ToSql + Sync); 1] = [&wanted];
    let unique_keys: Vec<&[u8]> = group.iter().filter_map(|one| one.unique_key.as_deref()).collect();
    let live_params: [&(dyn postgres_types::ToSql + Sync); 1] = [&unique_keys];
    let ((), locked, read, ids, (earlier, _), live) = tokio::try_join!(
        biased;
        client.batch_execute("BEGIN"),
        client.query(&connection.lock, &account_params),
        client.query(&connection.read, &account_params),
        client.query(&connection.ids, &id_params),
        async {
            if key_holders.is_empty() {
                return Ok((Vec::new(), 0));
            }
            tokio::try_join!(
        biased;
                client.query(&connection.earlier, &key_params),
                client.execute(&connection.forget, &key_params)
            )
        },
        async {
            if unique_keys.is_empty() {
                return Ok(Vec::new());
            }
            client.query(&connection.live, &live_params).await
        },
    )?;
    if locked.len() < places.len() {
        return Ok(None);
    }
    let mut accounts: Vec<(i64, Locked)> = Vec::with_capacity(read.len());
    for row in &read {
        let place: i64 = row.get(0);
        let (slots, parked): (i32, i32) = (row.get(1), row.get(2));
        let (slots, parked) = (slots.unsigned_abs(), parked.unsigned_abs());
        let tier_name: Option<&str> = row.get(3);
        let limit: Option<i32> = row.get(4);
        let start: Option<Timestamp> = row.get(5);
        let end: Option<Timestamp> = row.get(6);
        let (used, reserved): (i64, i64) = (row.get(7), row.get(8));
        let is_user = tier_name.is_some();
        let tier = tier_name.and_then(holder::tier);
        let account = Account {
            limit: limit.map(i64::from),
            used,
            reserved,
            slot_limit: rules.slots(is_user, tier),
            slots_in_use: slots,
            parked,
        };
        let period = start.zip(end);
        accounts.push((
            place,
            Locked {
                account,
                is_user,
                tier,
                period,
                slots_before: slots,
                parked_before: parked,
                reserved_before: reserved,
            },
        ));
    }
    accounts.sort_by_key(|(place, _)| *place);
    let accounts = accounts.into_iter().map(|(_, locked)| locked).collect();
    let mut ids: Vec<i64> = ids.iter().map(|row| row.get(0)).collect();
    ids.sort_unstable();
    let earlier = earlier
        .iter()
        .map(|row| {
            (
                (row.get(0), row.get(1)),
                (row.get::<_, Option<Vec<u8>>>(2).unwrap_or_default(), row.get(3)),
            )
        })
        .collect();
    let live = live
        .iter()
        .map(|row| (row.get(0), (row.get(1), row.get(2))))
        .collect();
    Ok(Some(Snapshot {
        places,
        accounts,
        ids,
        earlier,
        live,
    }))
}
