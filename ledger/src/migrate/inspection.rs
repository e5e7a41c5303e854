//! Inspects the database before any change: the owners and the versions of the tables.

use std::collections::{BTreeMap, HashSet};

use riverqueue::migrate::MIGRATION_VERSION_LATEST;
use tokio_postgres::GenericClient;

use super::known::{OLDEST_RIVER, River, quoted};
use super::schema::{Applied, CREATED, Kind, RECORD, Schema};
use super::server::{Changes, Server};
use crate::database::{DatabaseError, Schemas};

/// The current state of the database.
#[derive(Debug)]
pub(super) struct Inspection {
    /// The schema of Weir's tables.
    pub(super) weir: String,
    /// The schema of River's tables.
    pub(super) river: String,
    pub(super) has_weir: bool,
    pub(super) has_river: bool,
    /// Whether the table that records applied files exists.
    pub(super) has_record: bool,
    /// River's version; `None` without River's tables.
    pub(super) river_version: Option<i64>,
    /// The applied files of Weir's schema; `None` if there are none.
    pub(super) applied: Option<Applied>,
    server: Server,
    /// Whether a part of Weir's schema is missing.
    pub(super) lacks_weir: bool,
    faults: Vec<String>,
}

impl Inspection {
    /// The same schemas, both by name.
    pub(super) fn schemas(&self) -> Schemas {
        Schemas {
            weir: Some(self.weir.clone()),
            river: Some(self.river.clone()),
        }
    }

    /// The release that migrated the database, if it is newer than this one.
    pub(super) fn newer_release(&self, schema: &Schema) -> Option<&str> {
        let applied = self
            .applied
            .as_ref()
            .filter(|applied| schema.is_older_than(applied));
        applied.map(|applied| applied.release.as_str())
    }

    /// Whether River's migrations must run; or all obstacles to Weir's migration.
    pub(super) fn plan(&self, river: River) -> Result<bool, Vec<String>> {
        let mut faults = self.faults.clone();
        let schema = &self.river;
        let latest = MIGRATION_VERSION_LATEST;
        // The record was created after the check that River's migrations may run. They commit one by one, so a process
        // that was killed may have left an old version.
        let has_begun = self.has_record && self.applied.is_none();
        let applies = match (self.river_version, river) {
            (Some(version), River::Create) if version < OLDEST_RIVER && has_begun => true,
            (None, River::Skip) => {
                faults.push(format!(
                    "schema {schema:?} has no River tables, and --skip-river creates none; install River {OLDEST_RIVER} or newer there first, set RIVER_SCHEMA to its schema, or leave out --skip-river"
                ));
                false
            }
            (Some(version), River::Skip) if version < OLDEST_RIVER => {
                faults.push(format!(
                    "River's tables in schema {schema:?} are at version {version}, but Weir needs {OLDEST_RIVER} or \
                     newer; ask their owner to migrate them, or run `weir migrate --upgrade-river` to upgrade them to {latest}"
                ));
                false
            }
            (Some(version), River::Create) if version < OLDEST_RIVER => {
                faults.push(format!(
                    "River's tables in schema {schema:?} are at version {version}, but Weir needs {OLDEST_RIVER} or \
                     newer; run `weir migrate --upgrade-river`, or set another RIVER_SCHEMA if other programs use them"
                ));
                false
            }
            (Some(version), River::Upgrade) => version < latest,
            (None, _) => true,
            (Some(_), _) => false,
        };
        let changes = Changes {
            weir: &self.weir,
            river: schema,
            changes_weir: self.lacks_weir,
            changes_river: applies,
        };
        // A schema without a name was reported before.
        if !(self.weir.is_empty() || schema.is_empty()) {
            faults.extend(self.server.faults(changes));
        }
        if faults.is_empty() {
            Ok(applies)
        } else {
            Err(faults)
        }
    }
}

/// Inspects the database over a session with the `search_path` of the server and the URL.
pub(super) async fn inspect(
    client: &impl GenericClient,
    named: &Schemas,
    schema: &Schema,
) -> Result<Inspection, DatabaseError> {
    let row = client
        .query_one(include_str!("sql/where.sql"), &[&named.weir, &named.river])
        .await?;
    let (weir, river): (Option<String>, Option<String>) = (row.get("weir"), row.get("river"));
    let mut faults = Vec::new();
    for (schema, variable) in [(&weir, "WEIR_SCHEMA"), (&river, "RIVER_SCHEMA")] {
        if schema.is_none() {
            faults.push(format!(
                "no schema in search_path exists; set {variable}, such as {variable}={}",
                variable.split('_').next().unwrap_or_default().to_lowercase()
            ));
        }
    }
    let (weir, river) = (weir.unwrap_or_default(), river.unwrap_or_default());
    if weir != river {
        if row.get("has_jobs_at_weir") {
            faults.push(format!(
                "schema {weir:?} has a table river_job, which would hide the one in schema {river:?}; set WEIR_SCHEMA to a \
                 separate schema, such as WEIR_SCHEMA=weir"
            ));
        }
        if row.get("has_record_at_river") {
            faults.push(format!(
                "another Weir already uses the River tables in schema {river:?}, and they can serve only one; set RIVER_SCHEMA to a \
                 separate schema, such as RIVER_SCHEMA={weir}"
            ));
        }
    }
    let missing = missing_rights(client, &river).await?;
    let river_version = if !missing.is_empty() {
        faults.push(format!(
            "this role lacks privileges on River's tables in schema {river:?}; ask their owner to run: {}",
            missing.join("; ")
        ));
        // The role may not read the version.
        Some(OLDEST_RIVER)
    } else if row.get("has_river_ledger") {
        let table = format!("{}.river_migration", quoted(&river));
        let version: Option<i64> = client
            .query_one(
                // River's ledger has no lines before the fifth version.
                &format!("SELECT max(version) FROM {table} m WHERE coalesce(to_jsonb(m) ->> 'line', 'main') = 'main'"),
                &[],
            )
            .await?
            .get(0);
        version.filter(|_| row.get("has_jobs"))
    } else if row.get("has_jobs") {
        // Migrated by another tool, without River's ledger.
        Some(if row.get("has_unique_states") {
            OLDEST_RIVER
        } else {
            0
        })
    } else {
        None
    };
    let has_record: bool = row.get("has_record");
    let applied = if has_record {
        applied(client, &format!("{}.weir_schema", quoted(&weir))).await?
    } else {
        None
    };
    let taken = name_conflicts(client, &weir, applied.as_ref(), schema).await?;
    if !taken.is_empty() {
        let taken = taken.join(", ");
        let remedy = if applied.is_some() {
            "rename them, because the schema already contains Weir's tables"
        } else {
            "set WEIR_SCHEMA to a schema for Weir alone, such as WEIR_SCHEMA=weir, which is created if it is missing"
        };
        faults.push(format!(
            "schema {weir:?} has objects with the names of Weir's tables that are not Weir's: {taken}; {remedy}"
        ));
    }
    let server = Server::of(client, &weir, &river).await?;
    let lacks_weir = applied
        .as_ref()
        .is_none_or(|applied| !schema.is_served_by(applied));
    Ok(Inspection {
        weir,
        river,
        server,
        lacks_weir,
        has_weir: row.get("has_weir"),
        has_river: row.get("has_river"),
        has_record,
        river_version,
        applied,
        faults,
    })
}

/// The grants that this role lacks on River's tables in this schema, as commands.
pub(super) async fn missing_rights(
    client: &impl GenericClient,
    river: &str,
) -> Result<Vec<String>, DatabaseError> {
    let rows = client
        .query(include_str!("sql/river_rights.sql"), &[&river])
        .await?;
    Ok(rows.iter().map(|row| row.get("command")).collect())
}

/// The applied files, by this table. Those whose functions or views were dropped have no hash, so they are applied again.
pub(super) async fn applied(
    client: &impl GenericClient,
    table: &str,
) -> Result<Option<Applied>, DatabaseError> {
    let sql = include_str!("sql/applied.sql").replace("{table}", table);
    let row = client.query_opt(&sql, &[]).await?;
    Ok(row.map(|row| {
        let files: serde_json::Value = row.get("files");
        // A value other than text differs from every file, so all files are applied again.
        let mut files: BTreeMap<String, String> = serde_json::from_value(files).unwrap_or_default();
        let names: HashSet<&str> = row.get::<_, Vec<&str>>("names").into_iter().collect();
        for (path, hash) in &mut files {
            let created = CREATED.get(path.as_str());
            if created.is_some_and(|created| created.iter().any(|name| !names.contains(name.as_str()))) {
                hash.clear();
            }
        }
        Applied {
            release: row.get("release"),
            upgrade: row.get("upgrade"),
            files,
        }
    }))
}

/// Objects with names that are about to be created, although no earlier migration created them.
async fn name_conflicts(
    client: &impl GenericClient,
    in_schema: &str,
    applied: Option<&Applied>,
    schema: &Schema,
) -> Result<Vec<String>, DatabaseError> {
    let creates = match applied {
        // The record itself is created first, so that it can be locked.
        None => schema
            .in_order()
            .iter()
            .filter(|file| file.path != RECORD)
            .flat_map(|file| file.creates())
            .collect(),
        Some(applied) => {
            let missing = schema.missing_from(applied);
            let freed: Vec<_> = missing.iter().flat_map(|file| file.frees()).collect();
            let new = missing
                .iter()
                .filter(|file| !applied.files.contains_key(&file.path));
            new.flat_map(|file| file.creates())
                .filter(|(_, name)| !freed.contains(name))
                .collect::<Vec<_>>()
        }
    };
    let names = |of| -> Vec<&str> {
        let those = creates.iter().filter(|(kind, _)| *kind == of);
        those.map(|(_, name)| name.as_str()).collect()
    };
    let rows = client
        .query(
            include_str!("sql/name_conflicts.sql"),
            &[&in_schema, &names(Kind::Relation), &names(Kind::Function)],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| format!("{} {}", row.get::<_, &str>("kind"), row.get::<_, &str>("name")))
        .collect())
}
