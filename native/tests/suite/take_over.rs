//! `weir import` imports an existing product: docs/how-to/take-over.md.

use std::process::Output;

use crate::common::others::river_at;
use crate::common::process::command;
use crate::common::{GO_TESTS, Weir, Who};
use riverqueue::migrate::MIGRATION_VERSION_LATEST;
use serde_json::{Value, json};
use tokio_postgres::Client;
use uuid::Uuid;
use weir_ledger::control::{UsageCursor, UsageEvent, usage_after};
use weir_ledger::database::Database;
use weir_ledger::migrate::OLDEST_RIVER;
use weir_ledger::plans;

/// Weir's tables are apart from the product's.
const SCHEMAS: [(&str, &str); 2] = [("WEIR_SCHEMA", "weir"), ("RIVER_SCHEMA", "public")];

const PAID: Uuid = Uuid::from_u128(0x4000_8000_0000_0000_000a);
const FROZEN: Uuid = Uuid::from_u128(0x4000_8000_0000_0000_000b);
const CANCELED: Uuid = Uuid::from_u128(0x4000_8000_0000_0000_000c);
const OVER: Uuid = Uuid::from_u128(0x4000_8000_0000_0000_000d);

/// Weir in the database of a product, which this SQL creates.
async fn product(sql: &str) -> Weir {
    let weir = Weir::made(&SCHEMAS, async |url| {
        river_at(url, 6).await;
        let client = Database::at(url).unwrap().connect().await.unwrap();
        client.batch_execute("SET search_path = public").await.unwrap();
        client.batch_execute(sql).await.unwrap();
        let migrated = crate::common::others::weir(url, &["migrate"], &SCHEMAS);
        assert!(migrated.status.success(), "{migrated:?}");
    })
    .await;
    weir.is_clean().await;
    weir
}

/// A Weir in the database of ADR-21's product.
async fn adr_21() -> Weir {
    let tests = json!([{ "path": "a_test.go", "content": GO_TESTS }]).to_string();
    product(&include_str!("common/product.sql").replace("{tests}", &tests.replace('\'', "''"))).await
}

fn import(weir: &Weir, arguments: &[&str]) -> Output {
    command(weir, &[&["import"], arguments].concat())
        .output()
        .unwrap()
}

/// The totals that an import prints: name, in the source, in Weir before and after.
fn totals(output: &Output) -> Vec<(String, i64, i64, i64)> {
    assert!(output.status.success(), "{output:?}");
    let totals: Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |total: &Value, name: &str| total[name].as_i64().unwrap();
    totals
        .as_array()
        .unwrap()
        .iter()
        .map(|total| {
            let what = total["what"].as_str().unwrap().to_owned();
            (
                what,
                number(total, "source"),
                number(total, "before"),
                number(total, "after"),
            )
        })
        .collect()
}

/// The rows of all of Weir's tables, as text.
async fn rows(client: &Client) -> Vec<String> {
    let tables = client
        .query(
            "SELECT c.oid::regclass::text FROM pg_class c \
             WHERE c.relnamespace = 'weir'::regnamespace AND c.relkind = 'r' ORDER BY 1",
            &[],
        )
        .await
        .unwrap();
    let mut found = Vec::new();
    for table in &tables {
        let name: &str = table.get(0);
        let sql = format!("SELECT '{name} ' || t::text FROM {name} t ORDER BY 1");
        let rows = client.query(&sql, &[]).await.unwrap();
        found.extend(rows.iter().map(|row| row.get::<_, String>(0)));
    }
    found
}

/// The events of the usage feed after a position, once there are this many: any open transaction of the server holds
/// the feed back.
async fn fed(weir: &Weir, client: &Client, after: UsageCursor, count: usize) -> Vec<UsageEvent> {
    weir.until("the events of the usage feed", async || {
        let (events, _) = usage_after(client, after, 100).await.unwrap();
        (events.len() >= count).then_some(events)
    })
    .await
}

async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_continues_periods_usage_and_waiting_jobs() {
    let weir = adr_21().await;
    let client = weir.client().await;
    let before = rows(&client).await;
    let tried = import(&weir, &["--from", "public", "--dry-run", "--json"]);
    let all = [
        ("active subscriptions", 3),
        ("reserved of analysis", 4),
        ("usage events of analysis", 6),
        ("usage events of specview", 2),
        ("usage of analysis", 103),
        ("usage of specview", 403),
        ("users", 4),
        ("waiting jobs of analysis", 4),
    ];
    let expected = |before: bool| -> Vec<(String, i64, i64, i64)> {
        let row = |(what, n): (&str, i64)| (what.to_owned(), n, if before { n } else { 0 }, n);
        all.map(row).to_vec()
    };
    let sorted = |output: &Output| {
        let mut totals = totals(output);
        totals.sort();
        totals
    };
    assert_eq!(sorted(&tried), expected(false));
    assert_eq!(rows(&client).await, before, "a dry run changes nothing");

    assert_eq!(
        sorted(&import(&weir, &["--from", "public", "--json"])),
        expected(false)
    );
    assert_eq!(weir.complaints().await, [""; 0]);
    // Each user's month starts as the product's did, also if it was never renewed.
    let anchors = "SELECT count(*) FROM public.user_subscriptions s JOIN user_subscriptions w USING (user_id) \
                   WHERE s.status = 'active' AND w.current_period_start = s.current_period_start";
    assert_eq!(number(&client, anchors).await, 3);
    for (user, meter, used, reserved, limit) in [
        (PAID, "analysis", 30, 3, json!(1000)),
        (PAID, "specview", 400, 0, json!(100_000)),
        (FROZEN, "analysis", 4, 1, json!(50)),
        (CANCELED, "specview", 3, 0, json!(5000)),
        (OVER, "analysis", 53, 0, json!(50)),
    ] {
        let quota = weir.quota(Who::User(user), meter).await;
        assert_eq!(quota["used"], used, "{user} {meter}: {quota}");
        assert_eq!(quota["reserved"], reserved, "{user} {meter}: {quota}");
        assert_eq!(quota["limit"], limit, "{user} {meter}: {quota}");
    }
    let period = weir.get("/api/usage", Who::User(CANCELED)).await.body["period"].clone();
    assert!(
        period["start"].as_str().unwrap().contains("-01T00:00:00"),
        "{period}"
    );
    let body = json!({ "files": [{ "path": "a_test.go", "content": GO_TESTS }] });
    let refused = weir.post("/api/jobs/analysis", Who::User(OVER), &body).await;
    assert_eq!(refused.status, 429, "{}", refused.body);

    let after = rows(&client).await;
    assert_eq!(
        sorted(&import(&weir, &["--from", "public", "--json"])),
        expected(true)
    );
    assert_eq!(rows(&client).await, after, "a second import changes nothing");

    // The feed starts with what Weir charges.
    let (events, cursor) = usage_after(&client, UsageCursor::default(), 100).await.unwrap();
    assert_eq!(events.len(), 0, "{events:?}");
    let working = weir.work().await;
    weir.all_finished().await;
    for who in [PAID, FROZEN].map(Who::User) {
        weir.released(who, "analysis").await;
    }
    assert_eq!(weir.quota(Who::User(PAID), "analysis").await["used"], 33);
    assert_eq!(weir.quota(Who::User(FROZEN), "analysis").await["used"], 5);
    let job = weir.get("/api/jobs/1001", Who::User(PAID)).await;
    assert_eq!(job.body["status"], "completed", "{}", job.body);
    let events = fed(&weir, &client, cursor, 4).await;
    assert_eq!(events.len(), 4, "{events:?}");
    assert!(events.iter().all(|event| event.job_id.is_some()), "{events:?}");
    working.stop().await;
    weir.is_clean().await;
    let again = import(&weir, &["--from", "public"]);
    assert!(again.status.success(), "{again:?}");
    assert_eq!(weir.quota(Who::User(PAID), "analysis").await["used"], 33);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_cannot_be_imported_are_listed_and_nothing_is() {
    let weir = adr_21().await;
    let client = weir.client().await;
    client
        .batch_execute(
            "ALTER TABLE public.usage_events ALTER event_type TYPE text; \
             UPDATE public.usage_events SET event_type = 'videos' WHERE quota_amount = 7; \
             UPDATE public.usage_events SET quota_amount = -2 WHERE quota_amount = 9; \
             UPDATE public.usage_events SET created_at = now() + interval '1 day' WHERE quota_amount = 53; \
             ALTER TABLE public.subscription_plans ALTER tier TYPE text; \
             UPDATE public.subscription_plans SET tier = 'gold' WHERE tier = 'pro'; \
             UPDATE public.user_subscriptions SET current_period_end = current_period_start - interval '1 day' \
             WHERE current_period_start < now() - interval '90 days'; \
             UPDATE public.river_job SET state = 'running', attempted_at = now(), attempt = 1 WHERE id = 1001; \
             UPDATE public.river_job SET queue = 'analysis' WHERE id = 1002; \
             UPDATE public.river_job SET args = args || '{\"user_id\": \"x\"}' WHERE id = 1003; \
             UPDATE public.river_job SET kind = 'video:cut' WHERE id = 1004",
        )
        .await
        .unwrap();
    let before = rows(&client).await;
    let refused = import(&weir, &["--from", "public"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let printed = String::from_utf8(refused.stderr).unwrap();
    for problem in [
        "Weir has no meter videos; it has analysis, specview; add the meter to weir.toml",
        "quota_amount is -2; set a whole number",
        "that is not in the future",
        "of user 00000000-0000-4000-8000-00000000000a: Weir has no plan gold; it has enterprise, free, pro, pro_plus",
        "of user 00000000-0000-4000-8000-00000000000b: current_period_end is",
        "of job 1001: the job is running; stop your workers",
        "of job 1002: the job is in the queue analysis, which is none of the service analysis; \
         UPDATE river_job SET queue = 'analysis_default' WHERE id = 1002",
        "of job 1003: the arguments of the job name user x",
        "of job 1004: no service has jobs of the kind video:cut",
        "9 problems in the schema public; nothing was imported",
    ] {
        assert!(printed.contains(problem), "{problem}: {printed}");
    }
    assert_eq!(printed.lines().count(), 10, "{printed}");
    assert_eq!(rows(&client).await, before);
    // A source of another form is refused as a whole.
    let refused = import(&weir, &["--from", "weir"]);
    assert!(!refused.status.success(), "{refused:?}");
    client
        .batch_execute(
            "CREATE SCHEMA other; CREATE VIEW other.users AS SELECT 1 AS uid; \
             CREATE VIEW other.subscription_plans AS SELECT 1 AS id, 'free' AS tier; \
             CREATE VIEW other.usage_events AS \
             SELECT 1 AS id, 1 AS user_id, 'analysis' AS event_type, '3' AS quota_amount, now()::text AS created_at",
        )
        .await
        .unwrap();
    let refused = import(&weir, &["--from", "other"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let printed = String::from_utf8(refused.stderr).unwrap();
    for problem in [
        "other.users: the column id does not exist; add it in a view",
        "other.user_subscriptions does not exist; create a view with the columns user_id, plan_id, status",
        "other.usage_events: the column quota_amount is of the type text; convert it in a view: quota_amount::numeric",
        "other.usage_events: the column created_at is of the type text",
    ] {
        assert!(printed.contains(problem), "{problem}: {printed}");
    }
    assert_eq!(rows(&client).await, before);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_import_follows_changes_and_respects_the_provider() {
    let weir = adr_21().await;
    let client = weir.client().await;
    // The provider has reported a change of `paid` after the product's last one. `frozen` has used Weir already.
    let plan = |arguments: &[&str]| {
        let output = command(&weir, &[&["user", "plan"], arguments].concat())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    plan(&[&PAID.to_string(), "enterprise"]);
    // Weir has seen the waiting jobs: it has parked those without a free slot, without an amount.
    weir.reconcile().await;
    plans::ensure_user(&client, FROZEN, "free").await.unwrap();
    weir.use_up(FROZEN, "analysis", 2).await;
    weir.is_clean().await;
    assert!(import(&weir, &["--from", "public"]).status.success());
    assert_eq!(
        weir.quota(Who::User(PAID), "analysis").await["limit"],
        Value::Null
    );
    let quota = weir.quota(Who::User(FROZEN), "analysis").await;
    assert_eq!(
        (&quota["used"], &quota["reserved"]),
        (&json!(6), &json!(1)),
        "{quota}"
    );
    assert_eq!(weir.complaints().await, [""; 0]);

    client
        .batch_execute(&format!(
            "UPDATE public.user_subscriptions SET updated_at = now(), current_period_start = now() - interval '1 day', \
                    current_period_end = now() - interval '1 day' + interval '1 month', \
                    plan_id = (SELECT id FROM public.subscription_plans WHERE tier = 'pro') \
             WHERE user_id = '{FROZEN}'; \
             INSERT INTO public.users VALUES ('00000000-0000-4000-8000-00000000000e', 'new'); \
             INSERT INTO public.usage_events (user_id, event_type, analysis_id, quota_amount, created_at) \
             SELECT u.id, 'analysis', gen_random_uuid(), e.amount, e.at FROM public.users u, \
                    (VALUES (5, now() - interval '2 hours'), (6, now() - interval '100 days')) AS e (amount, at) \
             WHERE u.login = 'new'"
        ))
        .await
        .unwrap();
    let days_ago = |days: i64| jiff::Timestamp::now() - jiff::SignedDuration::from_hours(24 * days);
    let billed = days_ago(1);
    let second = import(
        &weir,
        &["--from", "public", "--billed-until", &billed.to_string()],
    );
    assert!(second.status.success(), "{second:?}");
    let quota = weir.quota(Who::User(FROZEN), "analysis").await;
    assert_eq!(
        (&quota["limit"], &quota["used"]),
        (&json!(1000), &json!(6)),
        "{quota}"
    );
    // The feed delivers only what the product has not billed.
    let events = fed(&weir, &client, UsageCursor::default(), 2).await;
    let amounts: Vec<i64> = events.iter().map(|event| event.amount).collect();
    assert_eq!(amounts, [2, 5]);

    // Archiving leaves imported events, so that another import finds them.
    let file = std::env::temp_dir().join(format!("weir-import-{}.ndjson", Uuid::new_v4()));
    let to = file.display().to_string();
    let limit = days_ago(40).to_string();
    let archived = command(&weir, &["usage", "archive", "--before", &limit, "--to", &to])
        .output()
        .unwrap();
    assert!(archived.status.success(), "{archived:?}");
    let _ = std::fs::remove_file(&file);
    let usage = "SELECT sum(quota_amount)::bigint FROM usage_events";
    let before = number(&client, usage).await;
    assert!(import(&weir, &["--from", "public"]).status.success());
    assert_eq!(number(&client, usage).await, before);

    // A user who was deleted in between is not created again.
    let deleted = command(&weir, &["user", "delete", &CANCELED.to_string(), "--yes"])
        .output()
        .unwrap();
    assert!(deleted.status.success(), "{deleted:?}");
    let users = weir.count("users").await;
    assert!(import(&weir, &["--from", "public"]).status.success());
    assert_eq!(weir.count("users").await, users);
    assert_eq!(number(&client, usage).await, before);
    weir.end().await;
}

/// A product with one user on the plan pro, and seven units of usage. `checked` is called for each user.
const SMALL: &str = "CREATE SCHEMA src; \
     CREATE TABLE src.people (id text); INSERT INTO src.people VALUES ('anne'); \
     CREATE FUNCTION src.checked(id text) RETURNS text LANGUAGE sql VOLATILE AS 'SELECT id'; \
     CREATE VIEW src.users AS SELECT src.checked(id) AS id FROM src.people; \
     CREATE VIEW src.subscription_plans AS SELECT p AS id, p AS tier FROM unnest('{free,pro}'::text[]) AS p; \
     CREATE TABLE src.user_subscriptions (user_id text, plan_id text, status text, current_period_start timestamptz); \
     INSERT INTO src.user_subscriptions VALUES ('anne', 'pro', 'active', now() - interval '1 day'); \
     CREATE TABLE src.usage_events (id text, user_id text, event_type text, quota_amount int, created_at timestamptz); \
     INSERT INTO src.usage_events VALUES ('first', 'anne', 'analysis', 7, now() - interval '1 hour')";

/// Runs an import that must be refused with this message.
fn refused(weir: &Weir, arguments: &[&str], problem: &str) {
    let output = import(weir, arguments);
    assert!(!output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(printed.contains(problem), "{problem}: {printed}");
}

async fn plan_of_anne(client: &Client) -> String {
    let row = client
        .query_one(
            "SELECT p.tier::text FROM user_subscriptions s JOIN subscription_plans p ON p.id = s.plan_id \
             JOIN users u ON u.id = s.user_id WHERE u.subject = 'anne' AND s.status = 'active'",
            &[],
        )
        .await;
    row.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_of_the_source_cannot_change_weir() {
    let weir = product(SMALL).await;
    let client = weir.client().await;
    let replace = async |body: &str| {
        let sql = format!(
            "CREATE OR REPLACE FUNCTION src.checked(id text) RETURNS text LANGUAGE plpgsql AS \
             $$BEGIN {body}; RETURN id; END$$"
        );
        client.batch_execute(&sql).await.unwrap();
    };
    replace("UPDATE weir.subscription_plans SET max_waiting = 1").await;
    refused(&weir, &["--from", "src"], "read-only transaction");
    assert_eq!(weir.count("users").await, 0);
    replace("PERFORM set_config('search_path', 'src', false)").await;
    let imported = import(&weir, &["--from", "src"]);
    assert!(imported.status.success(), "{imported:?}");
    let counted = "SELECT sum(used)::bigint FROM quota_balances WHERE span = 'month'";
    assert_eq!(number(&client, counted).await, 7);
    weir.is_clean().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_import_keeps_changes_of_subscriptions() {
    let weir = product(SMALL).await;
    let client = weir.client().await;
    for plan in ["pro", "free", "pro", "pro"] {
        let change = format!("UPDATE src.user_subscriptions SET plan_id = '{plan}'");
        client.batch_execute(&change).await.unwrap();
        let imported = import(&weir, &["--from", "src"]);
        assert!(imported.status.success(), "{imported:?}");
        assert_eq!(plan_of_anne(&client).await, plan);
    }
    client
        .batch_execute("UPDATE src.user_subscriptions SET status = 'canceled'")
        .await
        .unwrap();
    let remedy = "of user anne: none is active, and an earlier import gave the user plan pro; weir user plan anne free";
    refused(&weir, &["--from", "src"], remedy);
    let changed = command(&weir, &["user", "plan", "anne", "free"])
        .output()
        .unwrap();
    assert!(changed.status.success(), "{changed:?}");
    assert!(import(&weir, &["--from", "src"]).status.success());
    assert_eq!(plan_of_anne(&client).await, "free");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_import_keeps_usage() {
    let weir = product(SMALL).await;
    let client = weir.client().await;
    let from = ["--from", "src", "--billed-until"];
    let now = jiff::Timestamp::now().to_string();
    assert!(import(&weir, &[&from[..], &[&now]].concat()).status.success());
    let add = async |rows: &str| {
        let sql = format!("INSERT INTO src.usage_events VALUES {rows}");
        client.batch_execute(&sql).await.unwrap();
    };
    add("('second', 'anne', 'analysis', 5, clock_timestamp())").await;
    refused(&weir, &["--from", "src"], "an earlier import used --billed-until");
    assert!(import(&weir, &[&from[..], &[&now]].concat()).status.success());
    // Unbilled usage stays in the feed after a restore to another server, where it has no transaction.
    client
        .batch_execute("UPDATE usage_events SET xid = NULL")
        .await
        .unwrap();
    let (events, _) = usage_after(&client, UsageCursor::default(), 100).await.unwrap();
    let amounts: Vec<i64> = events.iter().map(|event| event.amount).collect();
    assert_eq!(amounts, [5]);
    add(
        "('0190c1e4-9d0b-7000-8000-000000000001', 'anne', 'analysis', 1, now()), \
         ('0190C1E49D0B70008000000000000001', 'anne', 'analysis', 1, now())",
    )
    .await;
    refused(
        &weir,
        &[&from[..], &[&now]].concat(),
        "2 rows have this id; give each event its own id",
    );
    weir.is_clean().await;
    weir.end().await;
}

/// Waits until the import waits for a lock.
async fn the_import_waits(weir: &Weir) {
    let looking = weir.client().await;
    let blocked =
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    weir.until("the import to wait", async || {
        looking.query_opt(blocked, &[]).await.unwrap()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_submission_during_an_import_stops_it() {
    let weir = std::sync::Arc::new(product(SMALL).await);
    let mut client = weir.client().await;
    let submission = client.transaction().await.unwrap();
    let submit = "SELECT outcome FROM weir_submit('anne', 'analysis', '{}', 1)";
    submission.query_one(submit, &[]).await.unwrap();
    let importing = tokio::task::spawn_blocking({
        let weir = std::sync::Arc::clone(&weir);
        move || {
            refused(
                &weir,
                &["--from", "src"],
                "users submitted jobs for the first time during the import",
            )
        }
    });
    the_import_waits(&weir).await;
    submission.commit().await.unwrap();
    importing.await.unwrap();
    assert_eq!(weir.count("usage_events").await, 0);
    std::sync::Arc::into_inner(weir).unwrap().end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_and_submissions_during_an_import_are_counted() {
    let weir = std::sync::Arc::new(product(SMALL).await);
    let mut client = weir.client().await;
    assert!(import(&weir, &["--from", "src"]).status.success());
    let more = "INSERT INTO src.usage_events VALUES ('second', 'anne', 'analysis', 1, clock_timestamp())";
    client.batch_execute(more).await.unwrap();
    // Anne has no account yet, so only her own row can be locked.
    let before = client.transaction().await.unwrap();
    let uses =
        "SELECT weir_submit('anne', 'analysis', '{}', 3), weir_charge('anne', 'analysis', 5, 'order 1')";
    before.execute(uses, &[]).await.unwrap();
    let importing = tokio::task::spawn_blocking({
        let weir = std::sync::Arc::clone(&weir);
        move || import(&weir, &["--from", "src"])
    });
    the_import_waits(&weir).await;
    before.commit().await.unwrap();
    assert!(importing.await.unwrap().status.success());
    weir.is_clean().await;
    std::sync::Arc::into_inner(weir).unwrap().end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn imports_do_not_accept_an_excess_of_other_windows() {
    let weir = product(SMALL).await;
    let client = weir.client().await;
    assert!(import(&weir, &["--from", "src"]).status.success());
    // Over the limit of an earlier month, and accepted by nothing.
    client
        .batch_execute(
            "INSERT INTO usage_events (user_id, event_type, quota_amount, created_at, period_start) \
             SELECT user_id, event_type, 5000, created_at - interval '60 days', period_start - interval '2 months' \
             FROM usage_events",
        )
        .await
        .unwrap();
    weir.recount().await;
    let before = weir.complaints().await;
    assert!(
        before.iter().any(|complaint| complaint.contains("5000")),
        "{before:?}"
    );
    client
        .batch_execute(
            "INSERT INTO src.usage_events VALUES ('second', 'anne', 'analysis', 1, clock_timestamp())",
        )
        .await
        .unwrap();
    assert!(import(&weir, &["--from", "src"]).status.success());
    assert_eq!(weir.complaints().await, before);
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_out_of_range_are_listed() {
    let weir = product(SMALL).await;
    let client = weir.client().await;
    let change = async |sql: &str| client.batch_execute(sql).await.unwrap();
    change(
        "ALTER TABLE src.usage_events ALTER quota_amount TYPE numeric; \
         ALTER TABLE src.user_subscriptions ADD current_period_end timestamptz",
    )
    .await;
    // Far ends are common, as periods without an end.
    change("UPDATE src.user_subscriptions SET current_period_end = '9999-12-31 23:59:59.999999+00'").await;
    assert!(import(&weir, &["--from", "src", "--dry-run"]).status.success());
    for (sql, problem) in [
        (
            "UPDATE src.user_subscriptions SET current_period_end = '294276-12-31 23:59:59.999999+00'",
            "user_subscriptions, of user anne: current_period_end is 294276-12-31 23:59:59.999999+00; set a time after \
             current_period_start and before the year 10000, or null",
        ),
        (
            "UPDATE src.user_subscriptions SET current_period_end = NULL; \
             INSERT INTO src.usage_events VALUES ('huge', 'anne', 'analysis', 1e19, now())",
            "usage_events, id huge: quota_amount is 10000000000000000000; set a whole number from 0 to 10^15",
        ),
        (
            "DELETE FROM src.usage_events; INSERT INTO src.usage_events \
             SELECT n::text, 'anne', 'analysis', 1e15, now() - interval '1 hour' FROM generate_series(1, 9224) n",
            "usage_events, of meter analysis: the amounts add up to 9224000000000000000; correct the amounts, which \
             may add up to 9223372036854775807",
        ),
        (
            "DELETE FROM src.usage_events; INSERT INTO src.people VALUES (repeat('long', 9000))",
            "1 problem in the schema src",
        ),
    ] {
        change(sql).await;
        refused(&weir, &["--from", "src"], problem);
    }
    // A value that fails to convert in a view is in no row.
    change(
        "DELETE FROM src.people WHERE id <> 'anne'; ALTER TABLE src.usage_events RENAME TO own_events; \
         INSERT INTO src.own_events VALUES ('huge', 'anne', 'analysis', 1e19, now()); \
         CREATE VIEW src.usage_events AS \
         SELECT id, user_id, event_type, quota_amount::bigint, created_at FROM src.own_events",
    )
    .await;
    refused(
        &weir,
        &["--from", "src"],
        "usage_events cannot be read: bigint out of range; correct the view, or the rows that it reads",
    );
    assert_eq!(weir.count("users").await, 0);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_copied_users_have_an_index_from_the_start() {
    let weir = product(SMALL).await;
    let client = weir.client().await;
    // PostgreSQL uses an index that is created after updates only in later transactions. An import would then read all
    // users for each row. It calls this function while it copies.
    client
        .batch_execute(
            "CREATE OR REPLACE FUNCTION src.checked(id text) RETURNS text LANGUAGE plpgsql AS $$BEGIN \
                 IF NOT EXISTS (SELECT FROM pg_index WHERE indrelid = 'pg_temp.import_users'::regclass) THEN \
                     RAISE 'no index'; \
                 END IF; \
                 RETURN id; \
             END$$",
        )
        .await
        .unwrap();
    let imported = import(&weir, &["--from", "src"]);
    assert!(imported.status.success(), "{imported:?}");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_import_locks_only_users_with_new_rows() {
    let weir = product(SMALL).await;
    let (mut client, other) = (weir.client().await, weir.client().await);
    assert!(import(&weir, &["--from", "src"]).status.success());
    let submit = "SELECT outcome FROM weir_submit('anne', 'analysis', '{}', 1)";
    client.query_one(submit, &[]).await.unwrap();
    let locking = client.transaction().await.unwrap();
    let lock = "SELECT lock_holders(ARRAY(SELECT holder FROM holders))";
    locking.query_one(lock, &[]).await.unwrap();
    assert!(import(&weir, &["--from", "src"]).status.success());
    other
        .batch_execute(
            "INSERT INTO src.usage_events VALUES ('second', 'anne', 'analysis', 5, clock_timestamp())",
        )
        .await
        .unwrap();
    refused(
        &weir,
        &["--from", "src"],
        "lock timeout (55P03); another transaction holds the lock: end it",
    );
    locking.rollback().await.unwrap();
    assert!(import(&weir, &["--from", "src"]).status.success());
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_other_users_do_not_wait_for_an_import() {
    let weir = std::sync::Arc::new(product(SMALL).await);
    let (client, looking) = (weir.client().await, weir.client().await);
    // The import waits for this lock when it has written the usage.
    client
        .batch_execute(
            "CREATE FUNCTION src.wait() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN \
                 PERFORM set_config('lock_timeout', '0', true); \
                 PERFORM pg_advisory_xact_lock(17); \
                 RETURN NULL; \
             END$$; \
             CREATE TRIGGER wait AFTER INSERT ON usage_events FOR EACH STATEMENT EXECUTE FUNCTION src.wait(); \
             SELECT pg_advisory_lock(17)",
        )
        .await
        .unwrap();
    let importing = tokio::task::spawn_blocking({
        let weir = std::sync::Arc::clone(&weir);
        move || import(&weir, &["--from", "src"])
    });
    let blocked =
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'";
    weir.until("the import to wait", async || {
        looking.query_opt(blocked, &[]).await.unwrap()
    })
    .await;
    let changed = command(&weir, &["user", "plan", "bert", "pro"]).output().unwrap();
    assert!(changed.status.success(), "{changed:?}");
    client
        .batch_execute("SELECT pg_advisory_unlock(17)")
        .await
        .unwrap();
    let imported = importing.await.unwrap();
    assert!(imported.status.success(), "{imported:?}");
    let logged = "SELECT count(*) FROM admin_log WHERE reason = 'import' AND action = 'plan.set'";
    assert_eq!(number(&looking, logged).await, 1);
    std::sync::Arc::into_inner(weir).unwrap().end().await;
}

/// The blocks of a page in this language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    page.split(&format!("```{language}\n"))
        .skip(1)
        .map(|part| part.split("```").next().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_page_take_over_a_product() {
    let page = include_str!("../../../docs/how-to/take-over.md");
    let weir = product(
        "CREATE TABLE accounts (id bigint PRIMARY KEY, is_closed boolean NOT NULL); \
         CREATE TABLE products (code text PRIMARY KEY); \
         CREATE TABLE contracts (account_id bigint, product_code text, stripe_id text, updated_at timestamptz, \
                                 paid_from timestamptz, paid_until timestamptz); \
         CREATE TABLE scans (id bigserial, account_id bigint, files int, done_at timestamp NOT NULL); \
         INSERT INTO accounts VALUES (1, false), (2, false), (3, true); \
         INSERT INTO products VALUES ('free'), ('pro'); \
         INSERT INTO contracts VALUES \
             (1, 'pro', 'sub_1', now() - interval '9 days', now() - interval '9 days', now() - interval '9 days' + interval '1 month'), \
             (2, 'pro', 'sub_2', now() - interval '90 days', now() - interval '90 days', now() - interval '60 days'), \
             (3, 'pro', 'sub_3', now(), now(), now() + interval '1 month'); \
         INSERT INTO scans (account_id, files, done_at) VALUES \
             (1, 8, now() AT TIME ZONE 'UTC' - interval '8 days'), (2, 1, now() AT TIME ZONE 'UTC'), \
             (3, 5, now() AT TIME ZONE 'UTC')",
    )
    .await;
    let product = weir.client_as_it_is().await;
    for sql in blocks(page, "sql") {
        product.batch_execute(sql).await.unwrap();
    }
    let mut commands = 0;
    for block in blocks(page, "sh") {
        for line in block.lines().filter_map(|line| line.trim().strip_prefix("weir ")) {
            let arguments: Vec<&str> = line.split(' ').collect();
            let output = command(&weir, &arguments).output().unwrap();
            assert!(output.status.success(), "{line}: {output:?}");
            commands += 1;
        }
    }
    assert_eq!(commands, 4);
    let client = weir.client().await;
    let row = client
        .query_one(
            "SELECT (SELECT array_agg(subject ORDER BY subject) FROM users) AS users, \
                    (SELECT sum(quota_amount)::bigint FROM usage_events) AS used, \
                    (SELECT array_agg(subscription) FROM plan_changes) AS subscriptions",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, Vec<String>>("users"), ["1", "2"]);
    assert_eq!(row.get::<_, i64>("used"), 9);
    assert_eq!(row.get::<_, Vec<String>>("subscriptions"), ["sub_1"]);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_grants_suffice_for_rivers_tables_of_another_role() {
    for river in [OLDEST_RIVER, MIGRATION_VERSION_LATEST] {
        documented_grants_suffice(river).await;
    }
}

async fn documented_grants_suffice(river: i64) {
    let page = include_str!("../../../docs/how-to/beside.md");
    let grants = blocks(page, "sql")
        .into_iter()
        .find(|block| block.contains("GRANT"))
        .unwrap();
    let (role, owner) = (
        format!("weir_app_{}", Uuid::new_v4().simple()),
        format!("product_{}", Uuid::new_v4().simple()),
    );
    let mut own = String::new();
    let weir = Weir::made(&SCHEMAS, async |url| {
        river_at(url, river).await;
        let client = Database::at(url).unwrap().connect().await.unwrap();
        let database: String = client
            .query_one("SELECT current_database()::text", &[])
            .await
            .unwrap()
            .get(0);
        client
            .batch_execute(&format!(
                "SET search_path = public; REVOKE ALL ON SCHEMA public FROM PUBLIC; \
                 CREATE ROLE {role} LOGIN PASSWORD 'secret'; CREATE ROLE {owner}; \
                 DO $$ DECLARE o record; BEGIN \
                     FOR o IN SELECT c.oid::regclass AS name FROM pg_class c \
                              WHERE c.relname ~ '^river_' AND c.relkind = 'r' LOOP \
                         EXECUTE format('ALTER TABLE %s OWNER TO {owner}', o.name); END LOOP; END $$; \
                 ALTER SCHEMA public OWNER TO {owner}; ALTER DATABASE {database} OWNER TO {owner}; SET ROLE {owner}"
            ))
            .await
            .unwrap();
        let grants = grants
            .replace("weir_app", &role)
            .replace("DATABASE product", &format!("DATABASE {database}"));
        client.batch_execute(&grants).await.unwrap();
        let mut reached = reqwest::Url::parse(url).unwrap();
        reached.set_username(&role).unwrap();
        reached.set_password(Some("secret")).unwrap();
        own = reached.to_string();
        let migrated = crate::common::others::weir(&own, &["migrate"], &SCHEMAS);
        assert!(migrated.status.success(), "{migrated:?}");
    })
    .await;
    // The product's own client inserts a job, and Weir's role works it.
    let user = weir.user("pro").await;
    let context = weir.another(&[("DATABASE_URL", &own)]);
    let args = json!({ "user_id": user, "files": [{ "path": "a_test.go", "content": GO_TESTS }] });
    weir.insert_by_river(args, "analysis_priority").await;
    let submitted = weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    let working = weir::work::Working::start(&context, weir::work::Role::Both, &context.settings.services)
        .await
        .unwrap();
    weir.all_finished().await;
    let job = weir.finished(submitted, Who::User(user)).await;
    assert_eq!(job["status"], "completed", "{job}");
    working.stop().await;
    weir.is_clean().await;
    let client = weir.client().await;
    // An import names the rights that it lacks.
    let hidden = "CREATE SCHEMA hidden; CREATE TABLE hidden.users (id int)";
    client.batch_execute(hidden).await.unwrap();
    let refused = crate::common::others::weir(&own, &["import", "--from", "hidden"], &SCHEMAS);
    let printed = String::from_utf8(refused.stderr).unwrap();
    let grants =
        format!("ask its owner to run: GRANT USAGE ON SCHEMA hidden TO {role}; GRANT SELECT ON ALL TABLES");
    assert!(printed.contains(&grants), "{printed}");
    client
        .batch_execute(&format!(
            "DO $$ BEGIN EXECUTE format('REASSIGN OWNED BY {role}, {owner} TO %I', current_user); END $$; \
             DROP OWNED BY {role}, {owner} CASCADE; DROP ROLE {role}; DROP ROLE {owner}"
        ))
        .await
        .unwrap();
    weir.end().await;
}
