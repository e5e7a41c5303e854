//! `ledger/schema/` is the current schema: a new database and an upgraded one have equal objects.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::Weir;
use tokio_postgres::Client;
use weir_ledger::database::Database;
use weir_ledger::migrate::{self, River, Schema, SchemaFile};

/// Every object of a schema by its name, with its definition.
async fn catalogue(client: &Client) -> BTreeMap<String, String> {
    let rows = client
        .query(include_str!("common/catalogue.sql"), &[&"public"])
        .await
        .unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// The names of the objects that differ.
fn differences(one: &BTreeMap<String, String>, other: &BTreeMap<String, String>) -> Vec<String> {
    let names = one.keys().chain(other.keys());
    let mut differing: Vec<_> = names
        .filter(|name| one.get(*name) != other.get(*name))
        .cloned()
        .collect();
    differing.sort();
    differing.dedup();
    differing
}

fn file<'a>(schema: &'a mut Schema, path: &str) -> &'a mut SchemaFile {
    schema.files.iter_mut().find(|file| file.path == path).unwrap()
}

/// The next release: with one more column, one more table with a trigger, and a changed function.
fn next_release() -> Schema {
    let mut next = Schema::present();
    next.release = "999.0.0".to_owned();
    let column = "ALTER TABLE periodic_jobs ADD COLUMN note text;\n\
                  COMMENT ON COLUMN periodic_jobs.note IS 'For operators.';\n";
    next.upgrades.push(SchemaFile {
        path: format!("{:04}__note.sql", next.upgrades.len() + 1),
        sql: column.to_owned(),
    });
    let table = file(&mut next, "tables/periodic_jobs.sql");
    table.sql = table
        .sql
        .replace("    PRIMARY KEY", "    note text,\n    PRIMARY KEY");
    table
        .sql
        .push_str("COMMENT ON COLUMN periodic_jobs.note IS 'For operators.';\n");
    let notes = "CREATE TABLE notes (id bigint PRIMARY KEY);\n\
                 CREATE TRIGGER keep_notes BEFORE DELETE ON notes FOR EACH ROW EXECUTE FUNCTION keep_notes();\n";
    let trigger = "CREATE OR REPLACE FUNCTION keep_notes() RETURNS trigger LANGUAGE plpgsql\n\
                   AS $$ BEGIN RETURN NULL; END $$;\n";
    let add = |list: &mut Vec<SchemaFile>, path: &str, sql: &str| {
        let (path, sql) = (path.to_owned(), sql.to_owned());
        list.push(SchemaFile { path, sql });
    };
    let number = next.upgrades.len() + 1;
    add(&mut next.upgrades, &format!("{number:04}__notes.sql"), notes);
    add(&mut next.files, "tables/notes.sql", notes);
    add(&mut next.files, "functions/events/keep_notes.sql", trigger);
    let function = file(&mut next, "functions/account/utc_text.sql");
    function.sql = function.sql.replace("STABLE", "IMMUTABLE");
    next
}

/// A new database of that release.
async fn new_database(release: &Schema) -> Weir {
    Weir::made(&[], async |url| {
        let database = Database::at(url).unwrap();
        migrate::migrate_to(&database, River::Create, release)
            .await
            .unwrap();
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgraded_database_is_the_same_as_a_new_one() {
    let next = next_release();
    let new = new_database(&next).await;
    let upgraded = Weir::new().await;
    let done = migrate::migrate_to(&upgraded.context.database, River::Create, &next)
        .await
        .unwrap();
    let applied: Vec<_> = done
        .weir
        .iter()
        .map(|path| path.rsplit('/').next().unwrap())
        .collect();
    assert_eq!(applied[0], "keep_notes.sql", "{done:?}");
    assert_eq!(applied.len(), 4, "{done:?}");
    let (one, other) = (
        catalogue(&new.client().await).await,
        catalogue(&upgraded.client().await).await,
    );
    assert_eq!(differences(&one, &other), Vec::<String>::new());
    let client = upgraded.client().await;
    assert!(
        migrate::is_current(&client).await.unwrap(),
        "this release's processes keep running"
    );
    new.abandon().await;
    upgraded.abandon().await;
}

/// PostgreSQL keeps the old function next to one with other parameters, and old statements continue to call it.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_signature_that_no_upgrade_drops_is_named() {
    let mut next = next_release();
    let function = file(&mut next, "functions/account/utc_text.sql");
    function.sql = function
        .sql
        .replace("(at timestamptz)", "(at timestamptz, zone text DEFAULT 'UTC')");
    let new = new_database(&next).await;
    let upgraded = Weir::new().await;
    migrate::migrate_to(&upgraded.context.database, River::Create, &next)
        .await
        .unwrap();
    let (one, other) = (
        catalogue(&new.client().await).await,
        catalogue(&upgraded.client().await).await,
    );
    let named = differences(&one, &other);
    assert!(!named.is_empty());
    assert!(
        named
            .iter()
            .all(|object| object.contains("utc_text(timestamp with time zone)")),
        "{named:?}"
    );
    new.abandon().await;
    upgraded.abandon().await;
}

/// During a rolling upgrade, a process of the older release may restart and migrate again.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_release_leaves_a_newer_schema_as_it_is() {
    let weir = Weir::new().await;
    let database = &weir.context.database;
    migrate::migrate_to(database, River::Create, &next_release())
        .await
        .unwrap();
    let client = weir.client().await;
    let role = format!("reader_{}", std::process::id());
    client
        .batch_execute(&format!(
            "CREATE ROLE {role}; GRANT EXECUTE ON FUNCTION utc_text(timestamptz) TO {role}"
        ))
        .await
        .unwrap();
    let before = catalogue(&client).await;
    let done = migrate::migrate(database).await.unwrap();
    let after = catalogue(&client).await;
    let record: String = client
        .query_one("SELECT release FROM weir_schema", &[])
        .await
        .unwrap()
        .get(0);
    client
        .batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await
        .unwrap();
    assert_eq!(differences(&before, &after), Vec::<String>::new());
    assert_eq!(record, "999.0.0");
    assert_eq!(done.newer_release.as_deref(), Some("999.0.0"));
    assert_eq!(done.weir, Vec::<String>::new());
    let script = migrate::script(database, River::Create).await.unwrap();
    assert_eq!(script, "");
    weir.abandon().await;
}

/// What `weir migrate` compares tables with.
#[tokio::test(flavor = "multi_thread")]
async fn the_expected_parts_of_tables_are_those_of_a_new_database() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let rows = client
        .query(
            include_str!("../../../ledger/src/migrate/sql/objects.sql"),
            &[&"public"],
        )
        .await
        .unwrap();
    let found: Vec<String> = rows.iter().map(|row| row.get("object")).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ledger/snapshots/objects.txt");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, found.join("\n") + "\n").unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap();
    let expected: Vec<_> = expected.lines().collect();
    assert_eq!(
        found, expected,
        "run UPDATE_SNAPSHOTS=1 npm test -- expected_parts"
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_differ_are_named_and_refused() {
    for (change, object) in [
        (
            "ALTER TABLE holders DROP COLUMN parked_from",
            "column holders.parked_from bigint",
        ),
        (
            "ALTER TABLE grants ALTER COLUMN amount TYPE numeric",
            "column grants.amount bigint",
        ),
        (
            "DROP INDEX weir_jobs_parked",
            "index CREATE INDEX weir_jobs_parked",
        ),
        (
            "ALTER TABLE holders DROP CONSTRAINT holders_parked_check",
            "constraint holders.holders_parked_check",
        ),
        (
            "ALTER TABLE admin_log DISABLE TRIGGER append_only",
            "trigger CREATE TRIGGER append_only",
        ),
    ] {
        let weir = Weir::new().await;
        let client = weir.client().await;
        client.batch_execute(change).await.unwrap();
        let database = &weir.context.database;
        let error = migrate::migrate(database).await.unwrap_err();
        let preview = migrate::script(database, River::Create).await.unwrap_err();
        assert_eq!(preview.to_string(), error.to_string());
        let faults = migrate::table_faults(&client).await.unwrap();
        assert!(error.to_string().contains(object), "{change}: {error}");
        assert!(
            faults.iter().any(|fault| fault.contains(object)),
            "{change}: {faults:?}"
        );
        weir.abandon().await;
    }
}

/// A restored dump may lack some of them.
#[tokio::test(flavor = "multi_thread")]
async fn functions_and_views_that_were_dropped_are_created_again() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let drop = "DROP VIEW subscribed_webhooks; DROP FUNCTION weir_progress";
    client.batch_execute(drop).await.unwrap();
    assert!(!migrate::is_current(&client).await.unwrap());
    let migrated = migrate::migrate(&weir.context.database).await.unwrap();
    assert_eq!(
        migrated.weir,
        ["functions/api/weir_progress.sql", "views/subscribed_webhooks.sql"]
    );
    assert!(migrate::is_current(&client).await.unwrap());
    client.batch_execute("TABLE subscribed_webhooks").await.unwrap();
    weir.end().await;
}

/// An operator's index does not stop an upgrade.
#[tokio::test(flavor = "multi_thread")]
async fn additional_parts_of_tables_are_allowed() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let index = "CREATE INDEX by_amount ON usage_events (quota_amount)";
    client.batch_execute(index).await.unwrap();
    migrate::migrate(&weir.context.database).await.unwrap();
    weir.end().await;
}

/// The release of this source.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// The scripts of the earlier releases, in `native/tests/snapshots/releases/VERSION.sql`. This release's script is written there
/// with `UPDATE_SNAPSHOTS=1`, unless it exists.
async fn released_scripts() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = root.join("tests/snapshots/releases");
    let changes = std::fs::read_to_string(root.join("../CHANGELOG.md")).unwrap();
    let own = folder.join(format!("{RELEASE}.sql"));
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() && !own.exists() {
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(own, printed_script().await).unwrap();
    }
    let missing: Vec<_> = releases(&changes)
        .into_iter()
        .filter(|release| *release != RELEASE && !folder.join(format!("{release}.sql")).exists())
        .collect();
    assert!(
        missing.is_empty(),
        "native/tests/snapshots/releases/ lacks the schema of {missing:?}; check out each tag and run there: \
         UPDATE_SNAPSHOTS=1 npm test -- every_release"
    );
    let Ok(files) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let scripts = files.map(|file| {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).unwrap())
    });
    scripts.collect()
}

/// The releases of a changelog: its headings such as `## [0.1.0] - 2026-11-27`.
fn releases(changes: &str) -> Vec<&str> {
    let headings = changes.lines().filter_map(|line| line.strip_prefix("## ["));
    let versions = headings.filter_map(|heading| heading.split_once("] - "));
    versions.map(|(version, _)| version).collect()
}

/// The script of `weir migrate --print` for an empty database.
async fn printed_script() -> String {
    let mut script = String::new();
    let weir = Weir::made(&[], async |url| {
        let database = Database::at(url).unwrap();
        script = migrate::script(&database, River::Create).await.unwrap();
        migrate::migrate(&database).await.unwrap();
    })
    .await;
    weir.abandon().await;
    script
}

#[test]
fn the_releases_are_the_dated_headings_of_the_changelog() {
    let changes = "# Changelog\n## [Unreleased]\n## [0.2.0] - 2027-01-31\n- x\n## [0.1.0] - 2026-11-27\n";
    assert_eq!(releases(changes), ["0.2.0", "0.1.0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_the_first_release_are_upgraded() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/releases/0.1.0.sql");
    let script = std::fs::read_to_string(path).unwrap();
    let rows = "
        INSERT INTO plan_changes (event_id, user_id, plan, occurred_at, effective, applied, recorded_at)
        VALUES ('evt_1', gen_random_uuid(), 'free', '2026-01-15Z', 'period_end', true, '2026-01-15Z'),
               ('evt_2', gen_random_uuid(), 'free', '2026-01-15Z', 'now', true, '2026-01-15Z');
        INSERT INTO webhooks (url, secret, events)
        VALUES ('https://example.com/all', 's', '{job.completed,job.failed,job.cancelled,quota.threshold,quota.renewed,plan.changed}'),
               ('https://example.com/some', 's', '{job.completed}');
        INSERT INTO submissions (job_id, holder, user_id, event_type, reserved_amount)
        SELECT n, u, u, 'analysis', 1 FROM generate_series(1, 2) n, gen_random_uuid() u;
        INSERT INTO users (id) SELECT DISTINCT user_id FROM submissions;
        INSERT INTO quota_reservations (job_id, holder, user_id, event_type, reserved_amount, admitted_at, due_at)
        SELECT s.job_id, s.holder, s.user_id, s.event_type, 1, now(), NULL FROM submissions s WHERE s.job_id = 2
        UNION ALL
        SELECT 3, s.holder, s.user_id, s.event_type, 0, NULL, now() FROM submissions s WHERE s.job_id = 1;
        INSERT INTO river_job (id, args, kind, queue, max_attempts) VALUES (2, '{}', 'test', 'test', 1)";
    let weir = Weir::made(&[], async |url| {
        let database = Database::at(url).unwrap();
        let client = database.connect().await.unwrap();
        client.batch_execute(&script).await.unwrap();
        client.batch_execute(rows).await.unwrap();
        let starts = "INSERT INTO processes (client_id) VALUES ('weir_old')";
        client.batch_execute(starts).await.unwrap();
        let error = migrate::migrate(&database).await.unwrap_err().to_string();
        assert!(
            error.contains("stop these processes first") && error.contains("weir_old"),
            "{error}"
        );
        client.batch_execute("DELETE FROM processes").await.unwrap();
        migrate::migrate(&database).await.unwrap();
    })
    .await;
    let client = weir.client().await;
    for (query, expected) in [
        (
            "SELECT string_agg(coalesce(utc_text(due_at), '-'), ' ' ORDER BY event_id) FROM plan_changes",
            "2026-02-01T00:00:00.000000Z -",
        ),
        (
            "SELECT string_agg(('webhook.disabled' = ANY (events))::text, ' ' ORDER BY url) FROM webhooks",
            "true false",
        ),
        (
            "SELECT string_agg((deleted_at IS NOT NULL)::text, ' ' ORDER BY job_id) FROM weir_jobs WHERE submitted_at IS NOT NULL",
            "true false",
        ),
        // The submitted job without a reservation has ended, and the job of another client was not submitted.
        (
            "SELECT string_agg(concat_ws(' ', submitted_at IS NOT NULL, ended_at IS NULL, admitted_at IS NOT NULL, \
                                         due_at IS NOT NULL), ', ' ORDER BY job_id) FROM weir_jobs",
            "t f f f, t t t f, f t f t",
        ),
        ("SELECT sum(reserved)::text FROM quota_balances", "1"),
    ] {
        let found: String = client.query_one(query, &[]).await.unwrap().get(0);
        assert_eq!(found, expected, "{query}");
    }
    weir.abandon().await;
}

/// A release's schema is stored when it is made. See CONTRIBUTING.md.
#[tokio::test(flavor = "multi_thread")]
async fn every_release_can_be_upgraded_to_the_current_schema() {
    let present = Weir::new().await;
    let wanted = catalogue(&present.client().await).await;
    let mut scripts = released_scripts().await;
    // The next release starts from the script that this release prints.
    scripts.push(("this release".to_owned(), printed_script().await));
    for (release, script) in scripts {
        let released = Weir::made(&[], async |url| {
            let database = Database::at(url).unwrap();
            database
                .connect()
                .await
                .unwrap()
                .batch_execute(&script)
                .await
                .unwrap();
            migrate::migrate(&database).await.unwrap();
        })
        .await;
        let found = catalogue(&released.client().await).await;
        assert_eq!(differences(&found, &wanted), Vec::<String>::new(), "{release}");
        released.abandon().await;
    }
    present.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_comparison_names_the_object_that_differs() {
    let weir = Weir::new().await;
    let mut client = weir.client().await;
    let before = catalogue(&client).await;
    for (change, object) in [
        ("DROP INDEX weir_jobs_parked", "index weir_jobs_parked"),
        (
            "ALTER TABLE holders DROP CONSTRAINT holders_parked_check",
            "constraint holders.holders_parked_check",
        ),
        ("DROP TRIGGER emit_usage ON holders", "trigger holders.emit_usage"),
        ("ALTER FUNCTION emit_usage() RESET ALL", "function emit_usage()"),
        (
            "GRANT SELECT ON users TO PUBLIC",
            "rights of PUBLIC on table users",
        ),
        ("COMMENT ON TABLE users IS 'People.'", "comment on table users"),
        ("ALTER TABLE users ADD COLUMN note text", "column users.note"),
    ] {
        let transaction = client.transaction().await.unwrap();
        transaction.batch_execute(change).await.unwrap();
        let after = catalogue(transaction.client()).await;
        assert_eq!(differences(&before, &after), [object], "{change}");
        transaction.rollback().await.unwrap();
    }
    weir.end().await;
}
