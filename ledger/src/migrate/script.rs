//! The steps of a migration, and the script of the same steps for `weir migrate --print`.

use std::fmt::Write as _;
use std::time::Duration;

use riverqueue::migrate::{Direction, MigrateOpts, PostgresMigrator};
use tokio_postgres::Client;

use super::error::MigrateError;
use super::inspection::Inspection;
use super::known::{literal, quoted};
use super::schema::{Kind, RECORD, Schema};
use crate::database::Database;

/// The first version with a line in the ledger of River's migrations.
const FIRST_LINE: i64 = 5;

/// The step that records the applied files.
pub(super) const CLOSING: &str = "weir_schema";

/// One step: its file and its SQL.
pub(super) struct Step {
    pub(super) path: String,
    pub(super) sql: String,
}

/// The `search_path` in which a migration's transaction creates objects. Functions inherit it, with temporary objects
/// last, so that they never use a session's temporary table instead of Weir's.
pub(super) fn path(found: &Inspection) -> String {
    let (weir, river) = (quoted(&found.weir), quoted(&found.river));
    if weir == river {
        format!("SET LOCAL search_path = {weir}, pg_temp")
    } else {
        format!("SET LOCAL search_path = {weir}, {river}, pg_temp")
    }
}

/// The missing steps of a database in this state.
pub(super) fn steps(found: &Inspection, schema: &Schema) -> Vec<Step> {
    let files = match &found.applied {
        Some(applied) => schema.missing_from(applied),
        None => {
            let mut files = schema.in_order();
            files.retain(|file| !found.has_record || file.path != RECORD);
            files
        }
    };
    let mut steps: Vec<_> = files
        .iter()
        .map(|file| Step {
            path: file.path.clone(),
            sql: file.for_river(&found.river),
        })
        .collect();
    let is_recorded =
        found.applied.as_ref() == Some(&schema.applied()) || found.newer_release(schema).is_some();
    if !steps.is_empty() || !is_recorded {
        let now = schema.applied();
        let files = serde_json::to_string_pretty(&now.files).unwrap_or_default();
        steps.push(Step {
            path: CLOSING.to_owned(),
            sql: format!(
                "INSERT INTO weir_schema (release, upgrade, files) VALUES ({}, {}, {})\nON CONFLICT (one) DO UPDATE SET \
                 release = excluded.release, upgrade = excluded.upgrade, files = excluded.files, migrated_at = now();\n",
                literal(&now.release),
                now.upgrade,
                literal(&files),
            ),
        });
    }
    steps
}

/// The query for the required changes of rights.
pub(super) fn rights(found: &Inspection, schema: &Schema) -> String {
    let names = |kind| {
        let names: Vec<_> = schema.names(kind).into_iter().collect();
        literal(&format!("{{{}}}", names.join(",")))
    };
    include_str!("sql/rights.sql")
        .replace("{weir}", &literal(&found.weir))
        .replace("{functions}", &names(Kind::Function))
        .replace("{relations}", &names(Kind::Relation))
}

/// The lock timeout of a migration, because other users of the table wait behind it.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Lets one migration run at a time.
pub(super) const LOCK: &str = "LOCK TABLE weir_schema IN SHARE ROW EXCLUSIVE MODE";

/// The settings of a migration's transaction.
pub(super) fn settings() -> String {
    format!(
        "SET LOCAL lock_timeout = {}; SET LOCAL check_function_bodies = off",
        LOCK_TIMEOUT.as_millis()
    )
}

/// The script for a database in this state. It has the statements of [`super::migrate_to`] with three
/// differences:
///
/// - It creates the record with the other tables, so it locks only an existing record.
/// - It does not try again after a lock timeout.
/// - It neither reports nor refuses rights that it could not revoke.
pub(super) async fn of(
    database: &Database,
    client: &Client,
    found: &Inspection,
    applies_river: bool,
    schema: &Schema,
) -> Result<String, MigrateError> {
    let mut script = String::new();
    let (weir, river) = (quoted(&found.weir), quoted(&found.river));
    for (schema, is_there) in [(&river, found.has_river), (&weir, found.has_weir)] {
        let line = format!("CREATE SCHEMA {schema};\n");
        if !is_there && !script.contains(&line) {
            script.push_str(&line);
        }
    }
    if applies_river {
        let pool = database.river_pool(1)?;
        let opts = MigrateOpts::default().with_dry_run(true);
        let steps = PostgresMigrator::new(pool.clone())
            .migrate(Direction::Up, opts)
            .await?;
        pool.close().await;
        let _ = writeln!(script, "SET search_path = {river};");
        for step in steps.versions {
            let (columns, values) = if step.version < FIRST_LINE {
                ("version", step.version.to_string())
            } else {
                ("line, version", format!("'main', {}", step.version))
            };
            let _ = write!(
                script,
                "\n-- River's {} {}\nBEGIN;\n{}\nINSERT INTO river_migration ({columns}) VALUES ({values});\nCOMMIT;\n",
                step.version,
                step.name,
                step.sql.trim_end(),
            );
        }
    }
    if found.newer_release(schema).is_some() {
        return Ok(script);
    }
    let steps = steps(found, schema);
    let rights = rights(found, schema);
    if steps.is_empty() && client.query(&rights, &[]).await?.is_empty() {
        return Ok(script);
    }
    let lock = if found.has_record {
        format!("{LOCK};\n")
    } else {
        String::new()
    };
    let _ = write!(
        script,
        "\nBEGIN;\n{};\n{lock}{};\n\n{}\n",
        path(found),
        settings(),
        include_str!("sql/roles.sql").trim_end(),
    );
    for step in steps {
        let _ = write!(script, "\n-- {}\n{}\n", step.path, step.sql.trim_end());
    }
    let _ = write!(
        script,
        "\n{}\n-- Rights\nDO $do$\nDECLARE\n    statement text;\nBEGIN\n    FOR statement IN SELECT r.command FROM (\n{}\n    ) r \
         LOOP\n        EXECUTE statement;\n    END LOOP;\nEND\n$do$;\nCOMMIT;\n",
        include_str!("sql/adopt_usage_events.sql"),
        rights.trim_end()
    );
    Ok(script)
}
