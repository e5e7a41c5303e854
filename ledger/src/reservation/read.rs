//! The first round trip: takes the locks, and reads under them.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;
use postgres_types::ToSql;
use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;
use weir_policy::admission::{Account, Allowance};
use weir_policy::grants::Grant;
use weir_policy::span::Span;

use super::statements::ReservationStatements;
use super::submission::{Quotas, Submission, Window};
use crate::committer::{GroupFailure, Locking};
use crate::database::session::Connection;
use crate::database::{Failure, Phase};
use crate::meter::Meter;
use crate::plans::Plan;
use crate::rules::Rules;

/// A holder and one of its meters.
pub(super) type AccountKey = (Uuid, Meter);

/// The rows that a decision is based on. They cannot change while the transaction lasts.
pub(super) struct Snapshot {
    /// The index of an account in `accounts`.
    pub(super) positions: BTreeMap<AccountKey, usize>,
    pub(super) accounts: Vec<LockedAccount>,
    /// Fresh job ids, one for each submission, smallest first.
    pub(super) ids: Vec<i64>,
    /// When the transaction started, by the database's clock.
    pub(super) now: Timestamp,
    /// By holder and `Idempotency-Key`: the request's hash, and its job.
    pub(super) earlier: HashMap<(Uuid, String), (Vec<u8>, i64)>,
    /// By unique key: the unfinished job.
    pub(super) live: HashMap<Vec<u8>, i64>,
}

impl Snapshot {
    pub(super) fn account(&self, one: &Submission) -> &LockedAccount {
        &self.accounts[self.positions[&(one.holder.id, one.meter)]]
    }

    /// The time of the decision, by the database's clock. One statement reads all accounts.
    pub(super) fn at(&self) -> Timestamp {
        self.accounts.first().map_or(self.now, |locked| locked.at)
    }
}

/// An account under its lock, and the other data for the answers.
#[derive(Debug)]
pub(super) struct LockedAccount {
    pub(super) account: Account,
    /// The account as it was read, before the decisions.
    pub(super) before: Account,
    /// `None` for a client address.
    pub(super) plan: Option<Plan>,
    /// The windows of the account's allowances, the month first; none for a client address.
    pub(super) windows: Vec<Window>,
    /// The time that determines the windows.
    pub(super) at: Timestamp,
    /// The ids of the account's grants, in order.
    pub(super) grant_ids: Vec<Uuid>,
}

impl LockedAccount {
    pub(super) fn new(account: Account, plan: Option<Plan>, windows: Vec<Window>, at: Timestamp) -> Self {
        Self {
            before: account.clone(),
            account,
            plan,
            windows,
            at,
            grant_ids: Vec::new(),
        }
    }

    pub(super) fn quotas(&self) -> Option<Quotas> {
        Quotas::of(&self.account.allowances, &self.windows)
    }

    /// When the billing period started; `None` for a client address.
    pub(super) fn period_start(&self) -> Option<Timestamp> {
        self.windows.first().map(|month| month.start)
    }

    /// The windows other than the month, as a set of [`Span`]s.
    pub(super) fn bits(&self) -> i16 {
        self.windows.iter().map(|window| window.span.bit()).sum()
    }

    /// A row of `read.sql`.
    pub(super) fn from_row(row: &Row, rules: &Rules) -> Self {
        let (slots_in_use, parked): (i32, i32) = (row.get("slots_in_use"), row.get("parked"));
        let plan = Plan::from_row(row);
        let (windows, allowances) = windows(row);
        let account = Account {
            allowances,
            slot_limit: rules.slots(plan),
            slots_in_use: slots_in_use.unsigned_abs(),
            parked: parked.unsigned_abs(),
            scheduled: row
                .get::<_, Option<i32>>("scheduled")
                .unwrap_or_default()
                .unsigned_abs(),
            max_waiting: row.get::<_, Option<i32>>("max_waiting").map(i32::unsigned_abs),
            grants: grants(row),
        };
        Self {
            grant_ids: row.get::<_, Option<_>>("grant_ids").unwrap_or_default(),
            ..Self::new(account, plan, windows, row.get("at"))
        }
    }
}

impl Quotas {
    /// The quotas of a row with the columns of `read.sql`; `None` without a plan.
    pub(crate) fn from_row(row: &Row) -> Option<Self> {
        let (windows, allowances) = windows(row);
        Self::of(&allowances, &windows)
    }
}

/// The grants of a row of `read.sql`. Most rows have none.
fn grants(row: &Row) -> Vec<Grant> {
    let Some(amounts) = row.get::<_, Option<Vec<i64>>>("grant_amounts") else {
        return Vec::new();
    };
    let ends: Vec<Option<Timestamp>> = row.get("grant_ends");
    let starts: Vec<Timestamp> = row.get("grant_starts");
    let moments = ends.into_iter().zip(starts);
    let grants = amounts.into_iter().zip(moments);
    grants
        .map(|(left, (end, start))| Grant {
            left,
            expires_at: end.map(Timestamp::as_microsecond),
            created_at: start.as_microsecond(),
        })
        .collect()
}

/// The windows of a row with their limits and usage, the month first; none without a plan.
fn windows(row: &Row) -> (Vec<Window>, Vec<Allowance>) {
    let (start, end): (Option<Timestamp>, Option<Timestamp>) =
        (row.get("period_start"), row.get("period_end"));
    let (mut windows, mut allowances) = (Vec::new(), Vec::new());
    if let Some((start, end)) = start.zip(end) {
        windows.push(Window {
            span: Span::Month,
            start,
            end,
        });
        allowances.push(Allowance {
            limit: row.get("monthly_limit"),
            ceiling: row.get("monthly_ceiling"),
            used: row.get("used"),
            reserved: row.get("reserved"),
            from_grants: row.get("from_grants"),
            granted: row.get("granted"),
        });
        read_short_windows(row, row.get("at"), &mut windows, &mut allowances);
    }
    (windows, allowances)
}

/// The windows other than the month, from the arrays of `read.sql`.
fn read_short_windows(row: &Row, at: Timestamp, windows: &mut Vec<Window>, allowances: &mut Vec<Allowance>) {
    let Some(spans) = row.get::<_, Option<Vec<&str>>>("short_spans") else {
        return;
    };
    let (limits, ceilings): (Vec<Option<i64>>, Vec<Option<i64>>) =
        (row.get("short_limits"), row.get("short_ceilings"));
    let (used, reserved): (Vec<i64>, Vec<i64>) = (row.get("short_used"), row.get("short_reserved"));
    let limits = limits.into_iter().zip(ceilings);
    for (((span, (limit, ceiling)), used), reserved) in spans.into_iter().zip(limits).zip(used).zip(reserved)
    {
        let Some(window) = Span::parse(span).and_then(|span| Window::containing(span, at)) else {
            continue;
        };
        windows.push(window);
        allowances.push(Allowance {
            limit,
            ceiling,
            used,
            reserved,
            ..Allowance::default()
        });
    }
}

/// Why no decision is possible.
pub(super) enum ReadError {
    /// A holder has no row yet.
    MissingHolder,
    Failed(GroupFailure),
}

impl From<Failure> for ReadError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure.into())
    }
}

impl From<tokio_postgres::Error> for ReadError {
    fn from(error: tokio_postgres::Error) -> Self {
        Failure::of(error, Phase::Open).into()
    }
}

/// The distinct accounts of a group in lock order, each with its index.
fn positions(group: &[&Submission]) -> BTreeMap<AccountKey, usize> {
    let mut positions: BTreeMap<AccountKey, usize> = group
        .iter()
        .map(|submission| ((submission.holder.id, submission.meter), 0))
        .collect();
    for (position, index) in positions.values_mut().enumerate() {
        *index = position;
    }
    positions
}

/// The first round trip. With `begin`, it starts a transaction there. Otherwise, it continues the caller's.
pub(super) async fn lock_and_read<C: GenericClient + Sync>(
    client: &C,
    statements: &ReservationStatements,
    rules: &Rules,
    group: &[&Submission],
    locking: &Locking,
    begin: Option<&Connection<ReservationStatements>>,
) -> Result<Snapshot, ReadError> {
    let positions = positions(group);
    let (holders, meters): (Vec<Uuid>, Vec<Meter>) = positions.keys().copied().unzip();
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
    let account_params: [&(dyn ToSql + Sync); 2] = [&holders, &meters];
    let id_params: [&(dyn ToSql + Sync); 1] = [&wanted];
    let live_params: [&(dyn ToSql + Sync); 1] = [&unique_keys];
    let lock = match locking {
        Locking::Wait(_) => &statements.lock,
        Locking::Skip => &statements.lock_skipping,
    };
    // Sent together, executed in sequence. Each statement sees everything committed before its turn, so all statements
    // after the locks read under them. Biased, because the order of polling is the order of sending, and the first
    // error shows the cause. A statement without work is not sent.
    let query = async |statement, needed: bool, params: &[&(dyn ToSql + Sync)]| match needed {
        true => client.query(statement, params).await,
        false => Ok(Vec::new()),
    };
    let ((), locked, read, ids, earlier, _, live) = tokio::try_join!(
        biased;
        async {
            match begin {
                Some(connection) => connection.begin().await,
                None => Ok(()),
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
        return Err(ReadError::MissingHolder);
    }
    if locked.len() < positions.len() {
        let locked: HashSet<AccountKey> = locked
            .iter()
            .map(|row| (row.get("holder"), row.get("event_type")))
            .collect();
        let is_missing = |one: &Submission| !locked.contains(&(one.holder.id, one.meter));
        let missing = group.iter().enumerate().filter(|(_, one)| is_missing(one));
        let missing = missing.map(|(index, one)| (index, one.holder.id)).collect();
        return Err(ReadError::Failed(GroupFailure::NotLocked(missing)));
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
        live: live
            .iter()
            .map(|row| (row.get("unique_key"), row.get("id")))
            .collect(),
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
