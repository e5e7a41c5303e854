//! Usage events for billing, in an order without gaps.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::meter::Meter;

/// The reason of a sum that replaces archived events. It has no transaction and no job.
pub(super) const ARCHIVED: &str = "archived";

/// The reason of an imported event that the product has billed. It has neither job nor transaction. SQL:
/// `is_imported`.
pub(super) const IMPORTED: &str = "imported";

/// The reason of an imported event that the product has not billed. It has no job. After a restore to another server, it
/// has no transaction either.
pub(super) const IMPORTED_UNBILLED: &str = "imported, not billed";

/// A position between two usage events. No event appears before it later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageCursor {
    /// The transaction that wrote the last event; 0 for older rows without one.
    transaction: u64,
    /// The last event.
    id: Uuid,
    /// The server's timeline at that time. After a failover, transaction ids are reused.
    timeline: Option<i32>,
    /// Events before this time are skipped.
    since: Option<Timestamp>,
}

impl UsageCursor {
    /// The position before the first event at or after this time.
    #[must_use]
    pub fn since(time: Timestamp) -> Self {
        Self {
            since: Some(time),
            ..Self::default()
        }
    }
}

impl fmt::Display for UsageCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.transaction, self.id.simple())?;
        if let Some(timeline) = self.timeline {
            write!(f, ".{timeline}")?;
        }
        match self.since {
            Some(since) => write!(f, ".s{}", since.as_microsecond()),
            None => Ok(()),
        }
    }
}

impl FromStr for UsageCursor {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wants =
            "after must be now, a time such as 2027-01-31T08:00:00Z, or the `next` of an earlier response";
        let (transaction, rest) = text.split_once('.').ok_or(wants)?;
        let (rest, since) = match rest.split_once(".s") {
            Some((rest, since)) => (rest, Some(since.parse().map_err(|_| wants)?)),
            None => (rest, None),
        };
        let (id, timeline) = match rest.split_once('.') {
            Some((id, timeline)) => (id, Some(timeline.parse().map_err(|_| wants)?)),
            None => (rest, None),
        };
        Ok(Self {
            transaction: transaction.parse().map_err(|_| wants)?,
            id: id.parse().map_err(|_| wants)?,
            timeline,
            since: since
                .map(Timestamp::from_microsecond)
                .transpose()
                .map_err(|_| wants)?,
        })
    }
}

/// A usage event.
#[derive(Clone, Debug)]
pub struct UsageEvent {
    /// Its id, which stays the same whenever it is read.
    pub id: Uuid,
    /// The holder.
    pub user: Uuid,
    /// The text that names the holder, if that is not its id.
    pub subject: Option<String>,
    /// The meter.
    pub meter: Meter,
    /// The amount. A negative one reduces the usage.
    pub amount: i64,
    /// The part that grants paid for.
    pub from_grants: i64,
    /// The part above a soft limit.
    pub overage: i64,
    /// When it was charged.
    pub at: Timestamp,
    /// The charged job; `None` for an adjustment.
    pub job_id: Option<i64>,
    /// The start of the billing period that it counts in.
    pub period_start: Timestamp,
    /// The reason of an adjustment.
    pub reason: Option<String>,
}

impl From<&Row> for UsageEvent {
    fn from(row: &Row) -> Self {
        Self {
            id: row.get("id"),
            user: row.get("user_id"),
            subject: row.get("subject"),
            meter: row.get("event_type"),
            amount: row.get("quota_amount"),
            from_grants: row.get("from_grants"),
            overage: row.get("overage"),
            at: row.get("created_at"),
            job_id: row.get("job_id"),
            period_start: row.get("period_start"),
            reason: row.get("reason"),
        }
    }
}

/// The events after a cursor, and the cursor after them. Events of open transactions come after all returned ones. A
/// long transaction therefore delays all events written since its start, for every reader.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn usage_after(
    client: &Client,
    after: UsageCursor,
    limit: i64,
) -> Result<(Vec<UsageEvent>, UsageCursor), tokio_postgres::Error> {
    let Some(after) = on_this_timeline(client, after).await? else {
        return Ok((Vec::new(), after));
    };
    let rows = client
        .query(
            include_str!("sql/usage_after.sql"),
            &[
                &after.transaction.to_string(),
                &after.id,
                &limit,
                &[ARCHIVED, IMPORTED].as_slice(),
                &after.since,
            ],
        )
        .await?;
    let next = rows.last().map_or(after, |row| UsageCursor {
        transaction: row
            .get::<_, &str>("transaction")
            .parse()
            .unwrap_or(after.transaction),
        id: row.get("id"),
        ..after
    });
    Ok((rows.iter().map(UsageEvent::from).collect(), next))
}

/// The position after all committed events. Events of open transactions come after it.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn usage_now(client: &Client) -> Result<UsageCursor, tokio_postgres::Error> {
    let now = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS transaction, \
               current_timeline() AS timeline";
    let row = client.query_one(now, &[]).await?;
    Ok(UsageCursor {
        transaction: row.get::<_, i64>("transaction").unsigned_abs(),
        timeline: row.get("timeline"),
        ..UsageCursor::default()
    })
}

/// The same position on the server's timeline. If the last event was lost, the position is before everything written
/// since, and events that were read already are repeated. `None` until Weir has noted the timeline.
async fn on_this_timeline(
    client: &Client,
    after: UsageCursor,
) -> Result<Option<UsageCursor>, tokio_postgres::Error> {
    let timeline = after.timeline.unwrap_or_default();
    let params: [&(dyn ToSql + Sync); 3] = [&after.transaction.to_string(), &after.id, &timeline];
    let row = client
        .query_one(include_str!("sql/usage_place.sql"), &params)
        .await?;
    let now: Option<i32> = row.get("timeline");
    let same = UsageCursor {
        timeline: now.or(after.timeline),
        ..after
    };
    let is_known = row.get::<_, Option<bool>>("is_known").unwrap_or(true);
    if is_known || after.timeline.is_none() {
        return Ok(Some(same));
    }
    let first: Option<u64> = row
        .get::<_, Option<&str>>("first_xid")
        .and_then(|xid| xid.parse().ok());
    Ok(first.map(|first| match first <= after.transaction {
        true => UsageCursor {
            transaction: first,
            id: Uuid::nil(),
            ..same
        },
        false => same,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_survive_formatting_and_parsing() {
        let cursor = UsageCursor {
            transaction: u64::MAX,
            id: Uuid::from_u128(7),
            timeline: Some(2),
            since: None,
        };
        let older = UsageCursor {
            timeline: None,
            ..cursor
        };
        let since = Timestamp::from_microsecond(-7).ok();
        for cursor in [
            cursor,
            older,
            UsageCursor { since, ..cursor },
            UsageCursor { since, ..older },
        ] {
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        for wrong in [
            "",
            "7",
            "x.y",
            "7.",
            "-1.00000000000000000000000000000000",
            "7.00000000000000000000000000000000.x",
            "7.00000000000000000000000000000000.s",
        ] {
            assert!(wrong.parse::<UsageCursor>().is_err(), "{wrong}");
        }
    }
}
