//! Imports the users, subscriptions, usage and reservations of an existing product.
//!
//! The source is a schema of the same database with tables or views of the names and columns of ADR-21. One statement
//! copies them, so that they are from one snapshot. One transaction checks the copies and writes everything. A repeated
//! import changes nothing.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use tokio_postgres::{Client, Row, Transaction};
use uuid::Uuid;
use weir_policy::subject::{Subject, SubjectError};

use super::error::ControlError;
use super::log::Change;
use super::usage_feed::{IMPORTED, IMPORTED_UNBILLED};
use crate::database::unstorable;
use crate::holder::{Holders, kept_text};

/// The maximum number of users that one statement resolves.
const BATCH: usize = 10_000;

/// The kind of values in a column.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Whole,
    Number,
    Time,
}

/// A column of the source. An optional one counts as null if it is missing.
struct Column {
    name: &'static str,
    kind: Kind,
    is_optional: bool,
}

const fn text(name: &'static str) -> Column {
    Column {
        name,
        kind: Kind::Text,
        is_optional: false,
    }
}

const fn number(name: &'static str) -> Column {
    Column {
        kind: Kind::Number,
        ..text(name)
    }
}

const fn time(name: &'static str) -> Column {
    Column {
        kind: Kind::Time,
        ..text(name)
    }
}

const fn optional(column: Column) -> Column {
    Column {
        is_optional: true,
        ..column
    }
}

/// A table or view of the source, and the temporary table that gets a copy.
struct Relation {
    name: &'static str,
    copy: &'static str,
    columns: &'static [Column],
    is_optional: bool,
}

const SOURCE: &[Relation] = &[
    Relation {
        name: "users",
        copy: "import_users",
        columns: &[text("id")],
        is_optional: false,
    },
    Relation {
        name: "subscription_plans",
        copy: "import_plans",
        columns: &[text("id"), text("tier")],
        is_optional: false,
    },
    Relation {
        name: "user_subscriptions",
        copy: "import_subscriptions",
        columns: &[
            text("user_id"),
            text("plan_id"),
            text("status"),
            time("current_period_start"),
            optional(time("current_period_end")),
            optional(time("updated_at")),
            optional(text("subscription")),
        ],
        is_optional: false,
    },
    Relation {
        name: "usage_events",
        copy: "import_usage",
        columns: &[
            text("id"),
            text("user_id"),
            text("event_type"),
            number("quota_amount"),
            time("created_at"),
        ],
        is_optional: false,
    },
    Relation {
        name: "quota_reservations",
        copy: "import_reservations",
        columns: &[
            text("user_id"),
            text("event_type"),
            number("reserved_amount"),
            Column {
                kind: Kind::Whole,
                ..text("job_id")
            },
            optional(time("created_at")),
        ],
        is_optional: true,
    },
];

/// A row of the source that cannot be imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImportFault {
    /// The table or view.
    pub relation: String,
    /// The row.
    pub row: String,
    /// The problem.
    pub problem: String,
    /// The solution.
    pub remedy: String,
}

/// A sum of the source, and of the same rows in Weir.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImportTotal {
    /// The name of the total.
    pub what: String,
    /// The sum in the source.
    pub source: i64,
    /// The sum in Weir before the import.
    pub before: i64,
    /// The sum in Weir after it.
    pub after: i64,
}

/// The result of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Imported {
    /// It was written, or could be.
    Done(Vec<ImportTotal>),
    /// Nothing was changed, because of these rows.
    Refused(Vec<ImportFault>),
}

/// The source of an import.
#[derive(Clone, Copy, Debug)]
pub struct ImportSource<'a> {
    /// The schema with the tables or views.
    pub schema: &'a str,
    /// The product has billed the usage before this time. The usage feed delivers later usage. `None`: all is billed.
    pub billed_until: Option<Timestamp>,
    /// Whether to roll back at the end.
    pub is_dry_run: bool,
}

/// Imports a product's users, active subscriptions, usage events and the reservations of waiting jobs.
///
/// # Errors
///
/// When the source lacks a table, column or right, or the database cannot be used. Nothing is changed then.
pub async fn import(
    client: &mut Client,
    actor: &str,
    source: ImportSource<'_>,
) -> Result<Imported, ControlError> {
    let holders = Holders::load(client).await?;
    let transaction = client.transaction().await?;
    // An import may take long.
    transaction
        .batch_execute("SET LOCAL statement_timeout = 0")
        .await?;
    let copies = copies(&transaction, source.schema).await?;
    transaction
        .batch_execute(include_str!("sql/import_tables.sql"))
        .await?;
    copy_source(&transaction, &copies).await?;
    let mut faults = resolve_users(&transaction, holders).await?;
    transaction
        .batch_execute(include_str!("sql/import_prepare.sql"))
        .await?;
    faults.extend(row_faults(&transaction).await?);
    check_billed_until(&transaction, source.billed_until).await?;
    if !faults.is_empty() {
        return Ok(Imported::Refused(faults));
    }
    let before = totals(&transaction).await?;
    write(&transaction, source.billed_until).await?;
    // The copied rows determine the totals and their order, and do not change.
    let pairs = before.into_iter().zip(totals(&transaction).await?);
    let totals: Vec<ImportTotal> = pairs
        .map(|((what, source, before), (.., after))| ImportTotal {
            what,
            source,
            before,
            after,
        })
        .collect();
    if source.is_dry_run {
        transaction.rollback().await?;
        return Ok(Imported::Done(totals));
    }
    if totals.iter().any(|total| total.before != total.after) {
        transaction
            .execute(include_str!("sql/import_log.sql"), &[&actor])
            .await?;
        let change = Change {
            actor,
            action: "import",
            after: Some(
                json!({ "schema": source.schema, "billed_until": source.billed_until, "totals": totals }),
            ),
            ..Change::default()
        };
        change.write(&transaction).await?;
    }
    transaction.commit().await?;
    Ok(Imported::Done(totals))
}

/// Copies the source. Its views may call functions, which run with the rights of this session. So the copy can write only
/// temporary tables, and settings that a function changed are set again.
async fn copy_source(transaction: &Transaction<'_>, copies: &[RelationCopy]) -> Result<(), ControlError> {
    let path: String = transaction
        .query_one("SELECT current_setting('search_path')", &[])
        .await?
        .get(0);
    transaction
        .batch_execute("SAVEPOINT copy; SET TRANSACTION READ ONLY")
        .await?;
    if let Err(error) = transaction.batch_execute(&statement(copies)).await {
        return Err(unreadable(transaction, copies, error).await?);
    }
    transaction.batch_execute("RELEASE copy").await?;
    transaction
        .execute("SELECT set_config('search_path', $1, true)", &[&path])
        .await?;
    Ok(())
}

/// Names the first relation that cannot be copied, for example because a view converts a value that does not fit.
async fn unreadable(
    transaction: &Transaction<'_>,
    copies: &[RelationCopy],
    error: tokio_postgres::Error,
) -> Result<ControlError, ControlError> {
    let Some(problem) = unstorable(&error) else {
        return Ok(error.into());
    };
    for copy in copies {
        transaction
            .batch_execute("ROLLBACK TO copy; SET TRANSACTION READ ONLY")
            .await?;
        if transaction
            .batch_execute(&statement(std::slice::from_ref(copy)))
            .await
            .is_err()
        {
            return Ok(ControlError::Invalid(format!(
                "{} cannot be read: {problem}; correct the view, or the rows that it reads",
                copy.place
            )));
        }
    }
    Ok(error.into())
}

/// Refuses new usage without the time of an earlier import, because the feed would never deliver it.
async fn check_billed_until(
    transaction: &Transaction<'_>,
    billed_until: Option<Timestamp>,
) -> Result<(), ControlError> {
    let earlier = transaction
        .query_opt(include_str!("sql/import_billed_until.sql"), &[])
        .await?;
    match earlier {
        Some(row) if billed_until.is_none() => Err(ControlError::Invalid(format!(
            "an earlier import used --billed-until {}; pass it again, otherwise the usage feed would skip the new \
             usage",
            row.get::<_, &str>(0)
        ))),
        _ => Ok(()),
    }
}

/// The part of the copying statement for one relation.
struct RelationCopy {
    /// The table or view, with its schema.
    place: String,
    /// A common table expression.
    sql: String,
}

/// The statement that makes these copies, from one snapshot.
fn statement(copies: &[RelationCopy]) -> String {
    let parts: Vec<&str> = copies.iter().map(|copy| &*copy.sql).collect();
    format!("WITH {} SELECT 1", parts.join(", "))
}

/// The copies of the source. Fails when tables, columns or rights are missing, and lists them all.
async fn copies(transaction: &Transaction<'_>, schema: &str) -> Result<Vec<RelationCopy>, ControlError> {
    let own = "SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
               WHERE c.oid = to_regclass('weir_settings')";
    if transaction.query_one(own, &[]).await?.get::<_, &str>(0) == schema {
        return Err(ControlError::Invalid(format!(
            "the schema {schema} contains Weir's tables; pass the schema of your product"
        )));
    }
    let names: Vec<&str> = SOURCE.iter().map(|relation| relation.name).collect();
    let rows = transaction
        .query(include_str!("sql/import_source.sql"), &[&schema, &names])
        .await?;
    let (mut faults, mut copies) = (Vec::new(), Vec::new());
    for relation in SOURCE {
        let columns: Vec<&str> = relation.columns.iter().map(|column| column.name).collect();
        let columns = columns.join(", ");
        let found: Vec<&Row> = rows
            .iter()
            .filter(|row| row.get::<_, &str>("relation") == relation.name)
            .collect();
        let place = format!("{schema}.{}", relation.name);
        let Some(first) = found.first() else {
            if !relation.is_optional {
                faults.push(format!(
                    "{place} does not exist; create a view with the columns {columns}"
                ));
            }
            continue;
        };
        if !first.get::<_, bool>("is_readable") {
            faults.push(format!(
                "this role cannot read {place}; ask its owner to run: {}",
                first.get::<_, &str>("grants")
            ));
        }
        let types: BTreeMap<&str, &str> = found
            .iter()
            .map(|row| (row.get("name"), row.get("type")))
            .collect();
        let mut values = Vec::new();
        for column in relation.columns {
            match value(column, types.get(column.name).copied()) {
                Ok(value) => values.push(value),
                Err(problem) => faults.push(format!("{place}: {problem}")),
            }
        }
        let sql = format!(
            "{} AS (INSERT INTO pg_temp.{} ({columns}) SELECT {} FROM {} s)",
            relation.name,
            relation.copy,
            values.join(", "),
            first.get::<_, &str>("place"),
        );
        copies.push(RelationCopy { place, sql });
    }
    if faults.is_empty() {
        return Ok(copies);
    }
    Err(ControlError::Invalid(format!(
        "the schema {schema} cannot be imported:\n  - {}",
        faults.join("\n  - ")
    )))
}

/// The expression that copies a column of this type.
fn value(column: &Column, type_name: Option<&str>) -> Result<String, String> {
    let name = column.name;
    let to = match column.kind {
        Kind::Text => "text",
        Kind::Whole => "bigint",
        Kind::Number => "numeric",
        Kind::Time => "timestamptz",
    };
    let Some(found) = type_name else {
        return match column.is_optional {
            true => Ok(format!("NULL::{to}")),
            false => Err(format!("the column {name} does not exist; add it in a view")),
        };
    };
    let is_fit = match column.kind {
        Kind::Text => true,
        Kind::Whole => ["smallint", "integer", "bigint"].contains(&found),
        Kind::Number => ["smallint", "integer", "bigint", "numeric"].contains(&found),
        Kind::Time => found.starts_with("timestamp "),
    };
    if !is_fit {
        return Err(format!(
            "the column {name} is of the type {found}; convert it in a view: {name}::{to}"
        ));
    }
    // Times without a zone are in UTC.
    Ok(match found {
        "timestamp without time zone" => format!("s.{name} AT TIME ZONE 'UTC'"),
        _ => format!("s.{name}::{to}"),
    })
}

/// Writes each user's id in Weir into its copy. Returns the ids that are no subjects.
async fn resolve_users(
    transaction: &Transaction<'_>,
    holders: Holders,
) -> Result<Vec<ImportFault>, ControlError> {
    let rows = transaction
        .query(
            "SELECT DISTINCT id FROM pg_temp.import_users WHERE id IS NOT NULL ORDER BY id",
            &[],
        )
        .await?;
    let mut faults = Vec::new();
    for rows in rows.chunks(BATCH) {
        let (mut texts, mut ids, mut known_as) = (
            Vec::<&str>::new(),
            Vec::<Uuid>::new(),
            Vec::<Option<String>>::new(),
        );
        for row in rows {
            let id: &str = row.get("id");
            match id.parse::<Subject>() {
                Ok(subject) => {
                    texts.push(id);
                    ids.push(holders.subject(&subject).id);
                    known_as.push(kept_text(&subject).map(str::to_owned));
                }
                Err(problem) => faults.push(not_a_subject(id, problem)),
            }
        }
        transaction
            .execute(
                "UPDATE pg_temp.import_users u SET holder = k.holder, known_as = k.known_as \
                 FROM unnest($1::text[], $2::uuid[], $3::text[]) AS k (id, holder, known_as) WHERE u.id = k.id",
                &[&texts, &ids, &known_as],
            )
            .await?;
    }
    Ok(faults)
}

fn not_a_subject(id: &str, problem: SubjectError) -> ImportFault {
    ImportFault {
        relation: "users".to_owned(),
        row: format!("id {id:?}"),
        problem: problem.to_string(),
        remedy: "use the subject of the user's tokens as id".to_owned(),
    }
}

async fn row_faults(transaction: &Transaction<'_>) -> Result<Vec<ImportFault>, ControlError> {
    let rows = transaction
        .query(include_str!("sql/import_faults.sql"), &[])
        .await?;
    Ok(rows
        .iter()
        .map(|row| ImportFault {
            relation: row.get("relation"),
            row: row.get("row"),
            problem: row.get("problem"),
            remedy: row.get("remedy"),
        })
        .collect())
}

/// The totals: name, in the source, in Weir.
async fn totals(transaction: &Transaction<'_>) -> Result<Vec<(String, i64, i64)>, ControlError> {
    let rows = transaction
        .query(include_str!("sql/import_totals.sql"), &[])
        .await?;
    Ok(rows
        .iter()
        .map(|row| (row.get("what"), row.get("source"), row.get("weir")))
        .collect())
}

async fn write(transaction: &Transaction<'_>, billed_until: Option<Timestamp>) -> Result<(), ControlError> {
    let users = transaction
        .query_one(include_str!("sql/import_users.sql"), &[])
        .await?;
    let (wanted, created): (i64, i64) = (users.get("wanted"), users.get("created"));
    if created < wanted {
        // Their usage would stay in the month of their first submission.
        return Err(ControlError::Invalid(
            "users submitted jobs for the first time during the import; stop submissions, and import again"
                .to_owned(),
        ));
    }
    // Before the first write to their rows, as everywhere.
    let locked: Vec<Uuid> = transaction
        .query_one(include_str!("sql/import_lock.sql"), &[])
        .await?
        .get("holders");
    transaction
        .execute(include_str!("sql/import_months.sql"), &[])
        .await?;
    let moved = transaction
        .query(include_str!("sql/import_subscriptions.sql"), &[])
        .await?;
    let moved: Vec<Uuid> = moved.iter().map(|row| row.get("holder")).collect();
    if !moved.is_empty() {
        transaction
            .execute(
                "SELECT move_usage(u, period_start_of(u, clock_timestamp())) FROM unnest($1::uuid[]) AS u",
                &[&moved],
            )
            .await?;
    }
    transaction
        .execute(
            include_str!("sql/import_usage.sql"),
            &[&billed_until, &IMPORTED, &IMPORTED_UNBILLED],
        )
        .await?;
    transaction
        .execute(include_str!("sql/import_reservations.sql"), &[])
        .await?;
    transaction
        .execute("SELECT rebuild_accounts($1)", &[&locked])
        .await?;
    transaction
        .execute(include_str!("sql/import_accept.sql"), &[])
        .await?;
    Ok(())
}
