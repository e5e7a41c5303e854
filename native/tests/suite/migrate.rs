//! `weir migrate` in another program's database: it inspects the database before it changes anything.

use std::process::Output;

use crate::common::others::{THEIR_TABLES, contents, river_at, weir};
use crate::common::{GO_TESTS, Weir, Who};
use weir_ledger::database::{Database, Schemas};
use weir_ledger::migrate::{self, River, Schema, SchemaFile};

fn message(output: &Output) -> String {
    let message = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8(message).unwrap()
}

const OWN: [(&str, &str); 2] = [("WEIR_SCHEMA", "weir"), ("RIVER_SCHEMA", "public")];

fn own() -> Schemas {
    Schemas {
        weir: Some("weir".to_owned()),
        river: Some("public".to_owned()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_objects_are_named_and_an_old_river_stays_by_default() {
    let weir = Weir::made(&OWN, async |url| {
        let client = Database::at(url).unwrap().connect().await.unwrap();
        client.batch_execute(THEIR_TABLES).await.unwrap();
        river_at(url, 4).await;
        let before = contents(&client, "").await;
        let refused = async |arguments: &[&str], more: &[(&str, &str)], expected: &[&str]| {
            let output = weir(url, arguments, more);
            assert_eq!(output.status.code(), Some(2), "{output:?}");
            let text = message(&output);
            for words in expected {
                assert!(text.contains(words), "{words}: {text}");
            }
            assert!(!text.contains("db error"), "{text}");
            assert_eq!(contents(&client, "").await, before);
            let ours = client.query_one("SELECT to_regnamespace('weir') IS NULL", &[]);
            assert!(ours.await.unwrap().get::<_, bool>(0));
        };
        let tables = [
            "table grants",
            "table processes",
            "table users",
            "index holders_newest",
        ];
        let taken = [&tables[..], &["function touch_updated_at", "WEIR_SCHEMA=weir"]].concat();
        let old = ["at version 4", "needs 6 or newer", "--upgrade-river"];
        refused(&["migrate"], &[], &[&taken[..], &old[..]].concat()).await;
        refused(&["migrate", "--print"], &[], &taken).await;
        refused(&["migrate", "--upgrade-river"], &[], &taken).await;
        refused(&["migrate"], &OWN, &old).await;
        refused(&["migrate", "--skip-river"], &OWN, &old).await;
        let theirs = contents(&client, "^river_").await;
        let asked = self::weir(url, &["migrate", "--upgrade-river"], &OWN);
        assert!(asked.status.success(), "{}", message(&asked));
        assert!(
            message(&asked).contains("applied River's 8\ncreated Weir's schema: "),
            "{}",
            message(&asked)
        );
        assert_eq!(contents(&client, "^river_").await, theirs);
    })
    .await;
    let who = Who::User(weir.user("free").await);
    let working = weir.work().await;
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    assert_eq!(weir.finished(id, who).await["status"], "completed");
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_migration_that_was_killed_is_finished() {
    for version in 1..=5 {
        let weir = Weir::made(&OWN, async |url| {
            let client = Database::at(url).unwrap().connect().await.unwrap();
            // As after a kill between two of River's migrations, which commit one by one.
            let schema = Schema::present();
            let record = schema
                .files
                .iter()
                .find(|file| file.path == "tables/weir_schema.sql");
            let record = &record.unwrap().sql;
            river_at(url, version).await;
            client
                .batch_execute(&format!("CREATE SCHEMA weir; SET search_path = weir; {record}"))
                .await
                .unwrap();
            let printed = weir(url, &["migrate", "--print"], &OWN);
            assert!(printed.status.success(), "{version}: {}", message(&printed));
            let finished = weir(url, &["migrate"], &OWN);
            assert!(finished.status.success(), "{version}: {}", message(&finished));
            let again = weir(url, &["migrate"], &OWN);
            assert!(
                message(&again).starts_with("nothing to do"),
                "{}",
                message(&again)
            );
        })
        .await;
        weir.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recent_enough_river_is_not_changed() {
    let weir = Weir::made(&[], async |url| {
        let client = Database::at(url).unwrap().connect().await.unwrap();
        let none = weir(url, &["migrate", "--skip-river"], &[]);
        assert_eq!(none.status.code(), Some(2));
        assert!(message(&none).contains("no River tables"), "{}", message(&none));
        river_at(url, 6).await;
        // Weir has a function with the name of River's channels.
        let river = async || contents(&client, "^(?!river_)|^river_channel").await;
        let before = river().await;
        let output = weir(url, &["migrate"], &[]);
        assert!(output.status.success(), "{}", message(&output));
        assert!(
            message(&output).contains("stay at version 6"),
            "{}",
            message(&output)
        );
        let again = weir(url, &["migrate", "--skip-river"], &[]);
        assert!(
            message(&again).starts_with("nothing to do"),
            "{}",
            message(&again)
        );
        assert_eq!(river().await, before);
    })
    .await;
    let who = Who::User(weir.user("free").await);
    let working = weir.work().await;
    for _ in 0..3 {
        let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
        assert_eq!(weir.finished(id, who).await["status"], "completed");
    }
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_script_does_what_migrate_does() {
    does_what_migrate_does(None).await;
    does_what_migrate_does(Some(4)).await;
}

/// On a database with River's tables at this version, if any.
async fn does_what_migrate_does(river: Option<i64>) {
    let weir = Weir::made(&OWN, async |url| {
        let database = Database::at(url).unwrap().in_schemas(own());
        let client = Database::at(url).unwrap().connect().await.unwrap();
        client.batch_execute(THEIR_TABLES).await.unwrap();
        if let Some(version) = river {
            river_at(url, version).await;
        }
        let before = contents(&client, "").await;
        let print = ["migrate", "--print", "--upgrade-river"];
        let printed = weir(url, &print, &OWN);
        assert!(printed.status.success(), "{}", message(&printed));
        assert_eq!(contents(&client, "").await, before);
        assert!(
            !migrate::is_current(&database.connect().await.unwrap())
                .await
                .unwrap()
        );
        client.batch_execute(&message(&printed)).await.unwrap();
        let client = database.connect().await.unwrap();
        assert!(migrate::is_current(&client).await.unwrap());
        // Both ledgers contain it, with the checksums that a run by `migrate` compares.
        assert_eq!(
            migrate::migrate_with(&database, River::Upgrade).await.unwrap(),
            migrate::Migrated::default()
        );
        let again = weir(url, &print, &OWN);
        assert!(
            message(&again).starts_with("-- nothing to do"),
            "{}",
            message(&again)
        );
    })
    .await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_migration_shows_postgresqls_message() {
    let weir = Weir::made(&[], async |url| {
        let client = Database::at(url).unwrap().connect().await.unwrap();
        client
            .batch_execute(
                "CREATE FUNCTION guard() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN \
                     IF to_regclass('users') IS NOT NULL THEN RAISE 'ask the owners first'; END IF; \
                 END $$; \
                 CREATE EVENT TRIGGER guard ON ddl_command_end EXECUTE FUNCTION guard()",
            )
            .await
            .unwrap();
        let output = weir(url, &["migrate"], &[]);
        assert_eq!(output.status.code(), Some(2));
        let text = message(&output);
        assert!(
            text.contains("tables/users.sql") && text.contains("ask the owners first"),
            "{text}"
        );
        assert!(!text.contains("db error"), "{text}");
        client.batch_execute("DROP EVENT TRIGGER guard").await.unwrap();
        let output = weir(url, &["migrate"], &[]);
        assert!(output.status.success(), "{}", message(&output));
    })
    .await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn schemas_with_confusable_names_are_refused() {
    let weir = Weir::new().await;
    for (more, expected) in [
        (
            ("WEIR_SCHEMA", "other"),
            "they can serve only one; set RIVER_SCHEMA",
        ),
        (("RIVER_SCHEMA", "other"), "set WEIR_SCHEMA to a separate schema"),
    ] {
        let output = self::weir(weir.url(), &["migrate"], &[more]);
        assert_eq!(output.status.code(), Some(2));
        assert!(message(&output).contains(expected), "{}", message(&output));
        let output = self::weir(weir.url(), &["status"], &[more]);
        assert!(
            message(&output).contains("run `weir migrate` first"),
            "{}",
            message(&output)
        );
    }
    weir.end().await;
}

/// The next release, with this upgrade.
fn with_upgrade(sql: &str) -> Schema {
    let mut next = Schema::present();
    next.release = "999.0.0".to_owned();
    next.upgrades.push(SchemaFile {
        path: format!("{:04}__test.sql", next.upgrades.len() + 1),
        sql: sql.to_owned(),
    });
    next
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_that_an_upgrade_creates_must_not_exist() {
    let weir = Weir::new().await;
    let next = with_upgrade("CREATE TABLE invoices (id int PRIMARY KEY)");
    let client = weir.client().await;
    client
        .batch_execute("CREATE TABLE invoices (id int)")
        .await
        .unwrap();
    let before = contents(&client, "").await;
    let database = &weir.context.database;
    let refused = migrate::migrate_to(database, River::Create, &next).await;
    let text = refused.unwrap_err().to_string();
    assert!(
        text.contains("table invoices; rename them") && !text.contains("users"),
        "{text}"
    );
    assert_eq!(contents(&client, "").await, before);
    client.batch_execute("DROP TABLE invoices").await.unwrap();
    let done = migrate::migrate_to(database, River::Create, &next).await;
    assert_eq!(done.unwrap().weir.len(), 1);
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_upgrade_names_the_obstacle() {
    let weir = Weir::new().await;
    let next = with_upgrade("ALTER TABLE usage_events DROP COLUMN IF EXISTS note");
    let client = weir.client().await;
    client
        .batch_execute(
            "ALTER TABLE usage_events ADD note text; CREATE VIEW report AS SELECT note FROM usage_events",
        )
        .await
        .unwrap();
    let database = &weir.context.database;
    let refused = migrate::migrate_to(database, River::Create, &next).await;
    let text = refused.unwrap_err().to_string();
    assert!(
        text.contains("view report") && text.contains("__test.sql"),
        "{text}"
    );
    client.batch_execute("DROP VIEW report").await.unwrap();
    migrate::migrate_to(database, River::Create, &next).await.unwrap();
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_waiting_for_a_table_lets_others_pass() {
    let weir = Weir::new().await;
    let next = with_upgrade("ALTER TABLE user_subscriptions ADD COLUMN note text");
    let database = &weir.context.database;
    // As in pg_dump's output.
    let mut dump = database.connect().await.unwrap();
    let open = dump.transaction().await.unwrap();
    open.batch_execute("LOCK TABLE user_subscriptions IN ACCESS SHARE MODE")
        .await
        .unwrap();
    let client = database.connect().await.unwrap();
    let behind = async {
        let waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'user_subscriptions'::regclass";
        while client.query_opt(waits, &[]).await.unwrap().is_none() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        client
            .batch_execute("SET statement_timeout = '20s'")
            .await
            .unwrap();
        client
            .query("SELECT 1 FROM user_subscriptions", &[])
            .await
            .unwrap();
        open.rollback().await.unwrap();
    };
    let migrating = migrate::migrate_to(database, River::Create, &next);
    let (migrated, ()) = tokio::join!(migrating, behind);
    assert_eq!(migrated.unwrap().weir.len(), 1);
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_applications_functions_are_not_mistaken_for_weirs() {
    let weir = Weir::made(&OWN, async |url| {
        let database = Database::at(url).unwrap().in_schemas(own());
        migrate::migrate_with(&database, River::Upgrade).await.unwrap();
        let client = database.connect().await.unwrap();
        client
            .batch_execute(
                "CREATE FUNCTION weir.weir_of_theirs() RETURNS int LANGUAGE sql AS 'SELECT 1';
                 CREATE FUNCTION weir.of_theirs() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
                 CREATE TRIGGER of_theirs BEFORE UPDATE ON weir.usage_events EXECUTE FUNCTION weir.of_theirs()",
            )
            .await
            .unwrap();
        assert!(migrate::is_current(&client).await.unwrap());
        migrate::migrate(&database).await.unwrap();
        let changed = "SELECT proname::text FROM pg_proc WHERE proname LIKE '%of_theirs' AND proconfig IS NOT NULL";
        let changed = client.query(changed, &[]).await.unwrap();
        assert!(changed.is_empty(), "{:?}", changed[0].get::<_, String>(0));
    })
    .await;
    weir.end().await;
}
