//! What `weir migrate --print` shows: the same migrations as a script, which changes the same when it is run.

use std::fmt::Write as _;

use riverqueue::migrate::{Direction, MigrateOpts, PostgresMigrator};

use super::error::MigrateError;
use super::known::{GRANT_FUNCTIONS, LEDGER, embedded, lead_functions, quoted};
use super::look::Found;
use crate::database::Database;

/// The ledger of River's migrations has lines from its fifth on.
const FIRST_LINE: i64 = 5;

/// The script for a database in which this was found.
pub(super) async fn of(
    database: &Database,
    found: &Found,
    applies_river: bool,
    are_led: bool,
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
    let mut runner = embedded::migrations::runner();
    runner.set_migration_table_name(LEDGER);
    let mut weirs = String::new();
    // They are embedded in the order of their files' names, in which the tenth comes before the second.
    let mut migrations: Vec<_> = runner.get_migrations().iter().collect();
    migrations.sort_by_key(|migration| migration.version());
    for migration in migrations {
        let is_applied = found
            .weir_version
            .is_some_and(|version| i64::from(migration.version()) <= i64::from(version));
        if is_applied {
            continue;
        }
        let _ = write!(
            weirs,
            "\n-- Weir's {migration}\nBEGIN;\n{}\nINSERT INTO {LEDGER} (version, name, applied_on, checksum)\nVALUES ({}, '{}', \
             to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), '{}');\nCOMMIT;\n",
            migration.sql().unwrap_or_default().trim_end(),
            migration.version(),
            migration.name(),
            migration.checksum(),
        );
    }
    let lead_functions = lead_functions();
    if !weirs.is_empty() {
        let _ = write!(
            script,
            "SET search_path = {weir}, {river};\n\
             CREATE TABLE IF NOT EXISTS {LEDGER}\n    (version int4 PRIMARY KEY, name varchar(255), applied_on varchar(255), checksum varchar(255));\n\
             {weirs}\n{lead_functions}\n{GRANT_FUNCTIONS}"
        );
    } else if !are_led {
        let _ = write!(
            script,
            "SET search_path = {weir}, {river};\n{lead_functions}\n{GRANT_FUNCTIONS}"
        );
    }
    Ok(script)
}
