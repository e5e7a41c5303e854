//! The first round trip: takes the locks, and reads under them.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;
use postgres_types::ToSql;
use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;
use weir_policy::admission::Account;
use weir_policy::tier::Tier;

use super::statements::ReservationStatements;
use super::submission::{Quota, Submission};
use crate::committer::{GroupFailure, Locking};
use crate::database::{Failure, Phase};
use crate::event_type::EventType;
use crate::holder;
use crate::rules::Rules;

/// A holder and one of its event types.
pub(super) type AccountKey = (Uuid, EventType);

/// What is decided from. Nobody else changes any of it while the transaction lasts.
pub(super) struct Snapshot {
    /// Where an account is in `accounts`.
    pub(super) positions: BTreeMap<AccountKey, usize>,
    pub(super) accounts: Vec<LockedAccount>,
    /// Fresh job ids, one for each submission, smallest first.
    pub(super) ids: Vec<i64>,
    /// When the transaction started, by the database's clock.
    pub(super) now: Timestamp,
    /// By holder and `Idempotency-Key`: the request's hash, and the job it made.
    pub(super) earlier: HashMap<(Uuid, String), (Vec<u8>, i64)>,
    /// By River's unique key: the live job, and whose it is if it came through Weir.
    pub(super) live: HashMap<Vec<u8>, (i64, Option<Uuid>)>,
}

impl Snapshot {
    pub(super) fn account(&self, one: &Submission) -> &LockedAccount {
        &self.accounts[self.positions[&(one.holder.id, one.event_type)]]
    }
}

/// An account under its lock, with what else the answers need.
#[derive(Debug)]
pub(super) struct LockedAccount {
    pub(super) account: Account,
    /// The account as it was read.
    pub(super) before: Account,
    pub(super) tier: Option<Tier>,
    /// Start and end of the billing period; `None` for a client address.
    pub(super) period: Option<(Timestamp, Timestamp)>,
}

impl LockedAccount {
    pub(super) fn new(account: Account, tier: Option<Tier>, period: Option<(Timestamp, Timestamp)>) -> Self {
        Self {
            account,
            before: account,
            tier,
            period,
        }
    }

    pub(super) fn quota(&self) -> Option<Quota> {
        self.period.map(|(_, end)| Quota::of(&self.account, end))
    }

    /// A row of `read.sql`.
    pub(super) fn from_row(row: &Row, rules: &Rules) -> Self {
        let (slots_in_use, parked): (i32, i32) = (row.get("slots_in_use"), row.get("parked"));
        let tier_name: Option<&str> = row.get("tier");
        let limit: Option<i32> = row.get("monthly_limit");
        let (start, end): (Option<Timestamp>, Option<Timestamp>) =
            (row.get("period_start"), row.get("period_end"));
        let tier = tier_name.and_then(holder::tier);
        let account = Account {
            limit: limit.map(i64::from),
            used: row.get("used"),
            reserved: row.get("reserved"),
            slot_limit: rules.slots(tier_name.is_some(), tier),
            slots_in_use: slots_in_use.unsigned_abs(),
            parked: parked.unsigned_abs(),
        };
        Self::new(account, tier, start.zip(end))
    }
}

/// Why nothing can be decided.
pub(super) enum Unread {
    /// A holder has no row yet.
    FirstContact,
    Failed(GroupFailure),
}

impl From<tokio_postgres::Error> for Unread {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Failed(Failure::of(error, Phase::Open).into())
    }
}

/// The distinct accounts of a group in the order in which they are locked, each with its position in it.
fn positions(group: &[&Submission]) -> BTreeMap<AccountKey, usize> {
    let mut positions: BTreeMap<AccountKey, usize> = group
        .iter()
        .map(|submission| ((submission.holder.id, submission.event_type), 0))
        .collect();
    for (position, index) in positions.values_mut().enumerate() {
        *index = position;
    }
    positions
}

/// The first round trip. With `begin` it starts a transaction; else the caller's is under way.
pub(super) async fn lock_and_read<C: GenericClient + Sync>(
    client: &C,
    statements: &ReservationStatements,
    rules: &Rules,
    group: &[&Submission],
    locking: &Locking,
    begin: bool,
) -> Result<Snapshot, Unread> {
    let positions = positions(group);
    let (holders, event_types): (Vec<Uuid>, Vec<EventType>) = positions.keys().copied().unzip();
    let (key_holders, key_texts): (Vec<Uuid>, Vec<&str>) = group
        .iter()
        .filter_map(|one| {
            one.idempotency
                .as_ref()
                .map(|idempotency| (one.holder.id, idempotency.key.as_str()))
        })
        .unzip();
    let wanted = i32::try_from(group.len()).unwrap_or(i32::MAX);
    let unique_keys: Vec<&[u8]> = group.iter().filter_map(|one| one.unique_key.as_deref()).collect();
    let key_params: [&(dyn ToSql + Sync); 2] = [&key_holders, &key_texts];
    let account_params: [&(dyn ToSql + Sync); 2] = [&holders, &event_types];
    let id_params: [&(dyn ToSql + Sync); 1] = [&wanted];
    let live_params: [&(dyn ToSql + Sync); 1] = [&unique_keys];
    let lock = match locking {
        Locking::Wait(_) => &statements.lock,
        Locking::Skip => &statements.lock_skipping,
    };
    // Sent together, executed one after the other: each statement sees what was committed when its turn came, so
    // everything after the locks is read under them. Biased, because the order of polling is the order of sending, and
    // the first error is the one that tells. What has nothing to do is not sent.
    let query = async |statement, needed: bool, params: &[&(dyn ToSql + Sync)]| match needed {
        true => client.query(statement, params).await,
        false => Ok(Vec::new()),
    };
    let ((), locked, read, ids, earlier, _, live) = tokio::try_join!(
        biased;
        async {
            match begin {
                true => client.batch_execute("BEGIN").await,
                false => Ok(()),
            }
        },
        client.query(lock, &account_params),
        client.query(&statements.read, &account_params),
        client.query(&statements.ids, &id_params),
        query(&statements.earlier, !key_holders.is_empty(), &key_params),
        query(&statements.free_keys, !key_holders.is_empty(), &key_params),
        query(&statements.live, !unique_keys.is_empty(), &live_params),
    )?;
    if read.len() < positions.len() {
        return Err(Unread::FirstContact);
    }
    if locked.len() < positions.len() {
        let locked: HashSet<AccountKey> = locked
            .iter()
            .map(|row| (row.get("holder"), row.get("event_type")))
            .collect();
        let is_missing = |one: &Submission| !locked.contains(&(one.holder.id, one.event_type));
        let missing = group.iter().enumerate().filter(|(_, one)| is_missing(one));
        let missing = missing.map(|(index, one)| (index, one.holder.id)).collect();
        return Err(Unread::Failed(GroupFailure::NotLocked(missing)));
    }
    let mut accounts: Vec<(i64, LockedAccount)> = read
        .iter()
        .map(|row| (row.get("position"), LockedAccount::from_row(row, rules)))
        .collect();
    accounts.sort_by_key(|(position, _)| *position);
    let now = ids.first().map_or(Timestamp::UNIX_EPOCH, |row| row.get("at"));
    let mut ids: Vec<i64> = ids.iter().map(|row| row.get("id")).collect();
    ids.sort_unstable();
    Ok(Snapshot {
        positions,
        accounts: accounts.into_iter().map(|(_, locked)| locked).collect(),
        ids,
        now,
        earlier: earlier.iter().map(earlier_submission).collect(),
        live: live.iter().map(live_job).collect(),
    })
}

/// A row of `earlier.sql`.
fn earlier_submission(row: &Row) -> ((Uuid, String), (Vec<u8>, i64)) {
    let hash: Option<Vec<u8>> = row.get("request_hash");
    (
        (row.get("holder"), row.get("idempotency_key")),
        (hash.unwrap_or_default(), row.get("job_id")),
    )
}

/// A row of `live.sql`.
fn live_job(row: &Row) -> (Vec<u8>, (i64, Option<Uuid>)) {
    (row.get("unique_key"), (row.get("id"), row.get("holder")))
}
