//! `weir uninstall`: gives the waiting jobs back to River, and drops Weir's objects. River's tables stay.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, GenericClient, Transaction};

use super::error::MigrateError;
use super::inspection::{Inspection, inspect};
use super::known::quoted;
use super::schema::{Kind, Schema};
use super::script;
use crate::database::{Database, DatabaseError};
use crate::processes::DEAD_AFTER;

/// The number of unfinished jobs that change their state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReturnedJobs {
    /// Jobs that become available: they waited for a slot or an answer, or their process died.
    pub available: i64,
    /// Jobs that River starts at their time.
    pub scheduled: i64,
    /// Deliveries to webhooks, and cancelled jobs of dead processes.
    pub cancelled: i64,
    /// Jobs of dead processes without another attempt.
    pub discarded: i64,
}

/// The changes of `weir uninstall`.
#[derive(Clone, Debug)]
pub struct Uninstalled {
    /// The schema of Weir's tables.
    pub schema: String,
    /// The jobs that change their state.
    pub jobs: ReturnedJobs,
    /// Queues with unfinished jobs that River's clients must work.
    pub queues: Vec<String>,
    /// Whether the schema itself goes; it stays if it contains other objects.
    pub drops_schema: bool,
    /// The roles that stay, with the reason.
    pub kept_roles: Vec<String>,
}

/// The changes that [`uninstall`] would make.
///
/// # Errors
///
/// When the database cannot be used, has no Weir, was migrated by a newer release, or a process of Weir runs.
pub async fn uninstall_preview(
    database: &Database,
    queue: Option<&str>,
) -> Result<Uninstalled, MigrateError> {
    let (client, found) = installed(database).await?;
    let jobs = return_jobs(&client, false).await?;
    let mut queues = queues(&client, &lanes(&client).await?).await?;
    if let Some(queue) = queue.filter(|_| !queues.is_empty()) {
        queues = vec![queue.to_owned()];
    }
    Ok(Uninstalled {
        jobs,
        queues,
        drops_schema: found.weir != found.river && found.weir != "public",
        schema: found.weir,
        kept_roles: Vec::new(),
    })
}

/// Gives all waiting jobs to River's clients and drops Weir's objects, in one transaction. With `queue`, unfinished jobs
/// move from Weir's lanes to this queue. Then drops the roles, unless another database uses them.
///
/// # Errors
///
/// As [`uninstall_preview`], and when another program's object uses one of Weir's. Nothing was changed then.
pub async fn uninstall(database: &Database, queue: Option<&str>) -> Result<Uninstalled, MigrateError> {
    let (mut client, found) = installed(database).await?;
    let mut transaction = client.transaction().await?;
    let settings = format!("{}; {}", script::LOCK, script::settings());
    transaction.batch_execute(&settings).await?;
    let jobs = return_jobs(&transaction, true).await?;
    let lanes = lanes(&transaction).await?;
    let mut queues = queues(&transaction, &lanes).await?;
    if let Some(queue) = queue.filter(|_| !queues.is_empty()) {
        let rename = "UPDATE river_job SET queue = $1 WHERE queue = ANY ($2) AND finalized_at IS NULL";
        transaction.execute(rename, &[&queue, &queues]).await?;
        queues = vec![queue.to_owned()];
    }
    let forget =
        "DELETE FROM river_queue WHERE (name = ANY ($1) OR name LIKE 'weir\\_%') AND name <> ALL ($2)";
    transaction.execute(forget, &[&lanes, &queues]).await?;
    drop_objects(&transaction, &found.weir).await?;
    let drops_schema = found.weir != "public" && drop_schema(&mut transaction, &found.weir).await?;
    transaction.commit().await?;
    Ok(Uninstalled {
        jobs,
        queues,
        drops_schema,
        schema: found.weir,
        kept_roles: drop_roles(&client).await,
    })
}

/// A session and the installation that it finds, which this release created and no process uses.
async fn installed(database: &Database) -> Result<(Client, Inspection), MigrateError> {
    let client = database.connect_without_schemas().await?;
    let schema = Schema::present();
    let found = inspect(&client, database.schemas(), &schema).await?;
    if found.applied.is_none() {
        return Err(MigrateError::NotInstalled(found.weir));
    }
    if let Some(release) = found.newer_release(&schema) {
        return Err(MigrateError::Newer(release.to_owned()));
    }
    if found.lacks_weir {
        let fault = "its schema is that of an older release; run `weir migrate` first".to_owned();
        return Err(MigrateError::Refused(vec![fault]));
    }
    let client = database.clone().in_schemas(found.schemas()).connect().await?;
    refuse_running(&client).await?;
    Ok((client, found))
}

/// Fails if processes use Weir.
pub(super) async fn refuse_running(client: &impl GenericClient) -> Result<(), MigrateError> {
    let rows = client
        .query(
            include_str!("sql/processes_in_use.sql"),
            &[&DEAD_AFTER.as_secs_f64()],
        )
        .await?;
    if rows.is_empty() {
        Ok(())
    } else {
        Err(MigrateError::Running(
            rows.iter().map(|row| row.get("process")).collect(),
        ))
    }
}

/// Counts the jobs that change their state, and changes them if `writes`.
async fn return_jobs(client: &impl GenericClient, writes: bool) -> Result<ReturnedJobs, DatabaseError> {
    let rows = client
        .query(include_str!("sql/return_jobs.sql"), &[&writes])
        .await?;
    let count = |state: &str| {
        let row = rows.iter().find(|row| row.get::<_, &str>(0) == state);
        row.map_or(0, |row| row.get(1))
    };
    Ok(ReturnedJobs {
        available: count("available"),
        scheduled: count("scheduled"),
        cancelled: count("cancelled"),
        discarded: count("discarded"),
    })
}

/// The queues of all services.
async fn lanes(client: &impl GenericClient) -> Result<Vec<String>, DatabaseError> {
    let sql = "SELECT s.name || '_' || lane FROM weir_services s \
               CROSS JOIN unnest(ARRAY['priority', 'default', 'scheduled']) AS lane";
    let rows = client.query(sql, &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Those of them with unfinished jobs.
async fn queues(client: &impl GenericClient, lanes: &[String]) -> Result<Vec<String>, DatabaseError> {
    let sql =
        "SELECT DISTINCT queue FROM river_job WHERE finalized_at IS NULL AND queue = ANY ($1) ORDER BY 1";
    let rows = client.query(sql, &[&lanes]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn drop_objects(transaction: &Transaction<'_>, weir: &str) -> Result<(), MigrateError> {
    let schema = Schema::present();
    let names = |kind| schema.names(kind).into_iter().collect::<Vec<_>>();
    let commands = transaction
        .query(
            include_str!("sql/drop_objects.sql"),
            &[&weir, &names(Kind::Relation), &names(Kind::Function)],
        )
        .await?;
    for row in commands {
        let command: String = row.get("command");
        let ran = transaction.batch_execute(&command).await;
        ran.map_err(|error| match error.code() {
            Some(&SqlState::DEPENDENT_OBJECTS_STILL_EXIST) => MigrateError::InUse(Box::new(error)),
            _ => error.into(),
        })?;
    }
    Ok(())
}

/// Drops the schema unless it contains other objects or belongs to another role. Returns whether it did.
async fn drop_schema(transaction: &mut Transaction<'_>, schema: &str) -> Result<bool, DatabaseError> {
    let savepoint = transaction.savepoint("schema").await?;
    let dropped = savepoint
        .batch_execute(&format!("DROP SCHEMA {}", quoted(schema)))
        .await;
    match dropped {
        Ok(()) => savepoint.commit().await?,
        Err(_) => savepoint.rollback().await?,
    }
    Ok(dropped.is_ok())
}

/// Drops the roles for other languages. Returns those that stay, with the reason.
async fn drop_roles(client: &Client) -> Vec<String> {
    let mut kept = Vec::new();
    for role in ["weir_submitter", "weir_worker"] {
        if let Err(error) = client.batch_execute(&format!("DROP ROLE IF EXISTS {role}")).await {
            kept.push(format!("{role}: {}", crate::database::message_of(&error)));
        }
    }
    kept
}
