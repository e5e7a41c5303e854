//! What is in the database before anything is changed: whose the tables are, and how old River's.

use std::sync::LazyLock;

use regex::Regex;
use riverqueue::migrate::MIGRATION_VERSION_LATEST;
use tokio_postgres::Client;

use super::known::{LEDGER, OLDEST_RIVER, River, embedded, quoted};
use crate::database::{DatabaseError, Schemas};

/// What a migration makes: its kind and its name.
static MADE: LazyLock<Regex> = LazyLock::new(|| {
    #[expect(clippy::unwrap_used, reason = "a constant, which every test compiles")]
    Regex::new(
        r"(?m)^\s*CREATE\s+(?:OR\s+REPLACE\s+)?(?:UNIQUE\s+|UNLOGGED\s+|MATERIALIZED\s+)*(TABLE|TYPE|DOMAIN|VIEW|SEQUENCE|INDEX|FUNCTION|PROCEDURE)\s+(?:CONCURRENTLY\s+)?(?:IF\s+NOT\s+EXISTS\s+)?(\w+)",
    )
    .unwrap()
});

/// What is there.
#[derive(Debug)]
pub(super) struct Found {
    /// The schema of Weir's tables.
    pub(super) weir: String,
    /// The schema of River's.
    pub(super) river: String,
    pub(super) has_weir: bool,
    pub(super) has_river: bool,
    /// River's version; `None` without River's tables.
    pub(super) river_version: Option<i64>,
    /// The last of Weir's migrations; `None` without any.
    pub(super) weir_version: Option<i32>,
    faults: Vec<String>,
}

impl Found {
    /// The same schemas, both by name.
    pub(super) fn schemas(&self) -> Schemas {
        Schemas {
            weir: Some(self.weir.clone()),
            river: Some(self.river.clone()),
        }
    }

    /// Whether River's migrations are to be run; or everything that keeps Weir from being migrated.
    pub(super) fn plan(&self, river: River) -> Result<bool, Vec<String>> {
        let mut faults = self.faults.clone();
        let schema = &self.river;
        let latest = MIGRATION_VERSION_LATEST;
        let applies = match (self.river_version, river) {
            (None, River::Skip) => {
                faults.push(format!(
                    "schema {schema:?} has no tables of River's, and --skip-river makes none; have River's version \
                     {OLDEST_RIVER} or newer there first, set RIVER_SCHEMA to where it is, or leave out --skip-river"
                ));
                false
            }
            (Some(version), River::Skip) if version < OLDEST_RIVER => {
                faults.push(format!(
                    "River's tables in schema {schema:?} are at version {version}, and Weir needs {OLDEST_RIVER} or \
                     newer; have them migrated, or run `weir migrate --upgrade-river`, which brings them to {latest}"
                ));
                false
            }
            (Some(version), River::AsItIs) if version < OLDEST_RIVER => {
                faults.push(format!(
                    "River's tables in schema {schema:?} are at version {version}, and Weir needs {OLDEST_RIVER} or \
                     newer; they may be somebody else's, so they are brought to {latest} only when asked: run `weir \
                     migrate --upgrade-river`, or set RIVER_SCHEMA to a schema for a River of Weir's own"
                ));
                false
            }
            (Some(version), River::Upgrade) => version < latest,
            (None, _) => true,
            (Some(_), _) => false,
        };
        if faults.is_empty() {
            Ok(applies)
        } else {
            Err(faults)
        }
    }
}

/// Looks, over a session whose `search_path` is as the server and the URL make it.
pub(super) async fn look(client: &Client, told: &Schemas) -> Result<Found, DatabaseError> {
    let row = client
        .query_one(include_str!("sql/where.sql"), &[&told.weir, &told.river])
        .await?;
    let (weir, river): (Option<String>, Option<String>) = (row.get("weir"), row.get("river"));
    let mut faults = Vec::new();
    for (schema, variable) in [(&weir, "WEIR_SCHEMA"), (&river, "RIVER_SCHEMA")] {
        if schema.is_none() {
            faults.push(format!(
                "search_path leads to no schema that there is; set {variable}, such as {variable}={}",
                variable.split('_').next().unwrap_or_default().to_lowercase()
            ));
        }
    }
    let (weir, river) = (weir.unwrap_or_default(), river.unwrap_or_default());
    if weir != river {
        if row.get("has_jobs_at_weir") {
            faults.push(format!(
                "schema {weir:?} has a river_job of its own, which would be taken for that of schema {river:?}; set \
                 WEIR_SCHEMA to a schema of Weir's own, such as WEIR_SCHEMA=weir"
            ));
        }
        if row.get("has_ledger_at_river") {
            faults.push(format!(
                "schema {river:?} has a Weir with River's tables there, and they serve one Weir; set RIVER_SCHEMA to a \
                 schema of its own, such as RIVER_SCHEMA={weir}"
            ));
        }
    }
    let river_version = if row.get("has_river_ledger") {
        let table = format!("{}.river_migration", quoted(&river));
        let version: Option<i64> = client
            .query_one(
                // Before River's fifth, its ledger has no lines.
                &format!("SELECT max(version) FROM {table} m WHERE coalesce(to_jsonb(m) ->> 'line', 'main') = 'main'"),
                &[],
            )
            .await?
            .get(0);
        version.filter(|_| row.get("has_jobs"))
    } else if row.get("has_jobs") {
        // Migrated by another tool, which keeps no ledger of River's.
        Some(if row.get("has_unique_states") {
            OLDEST_RIVER
        } else {
            0
        })
    } else {
        None
    };
    let weir_version: Option<i32> = if row.get("has_ledger") {
        let table = format!("{}.{LEDGER}", quoted(&weir));
        client
            .query_one(&format!("SELECT max(version) FROM {table}"), &[])
            .await?
            .get(0)
    } else {
        None
    };
    let taken = taken(client, &weir, weir_version).await?;
    if !taken.is_empty() {
        let taken = taken.join(", ");
        let remedy = if weir_version.is_some() {
            "rename them, since Weir's tables are there already"
        } else {
            "set WEIR_SCHEMA to a schema for Weir alone, such as WEIR_SCHEMA=weir, which is made if it is missing"
        };
        faults.push(format!(
            "schema {weir:?} has what is not Weir's under names that Weir's tables need: {taken}; {remedy}"
        ));
    }
    Ok(Found {
        weir,
        river,
        has_weir: row.get("has_weir"),
        has_river: row.get("has_river"),
        river_version,
        weir_version,
        faults,
    })
}

/// What is there under names that the migrations to come make, and no earlier one has made.
async fn taken(client: &Client, schema: &str, version: Option<i32>) -> Result<Vec<String>, DatabaseError> {
    let (mut tables, mut functions, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    for migration in embedded::migrations::runner().get_migrations() {
        let is_applied = version.is_some_and(|version| i64::from(migration.version()) <= i64::from(version));
        for made in MADE.captures_iter(migration.sql().unwrap_or_default()) {
            let name = made[2].to_owned();
            match &made[1] {
                _ if is_applied => ours.push(name),
                "FUNCTION" | "PROCEDURE" => functions.push(name),
                _ => tables.push(name),
            }
        }
    }
    tables.retain(|name| !ours.contains(name));
    functions.retain(|name| !ours.contains(name));
    let rows = client
        .query(include_str!("sql/taken.sql"), &[&schema, &tables, &functions])
        .await?;
    Ok(rows
        .iter()
        .map(|row| format!("{} {}", row.get::<_, &str>("kind"), row.get::<_, &str>("name")))
        .collect())
}
