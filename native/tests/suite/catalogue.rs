//! The catalogue: meters, plans and windows of any product take effect as soon as they are in the database.

use std::path::Path;
use std::process::Command;

use crate::common::process::command;
use crate::common::{Answer, Weir, Who};
use futures_util::future::join_all;
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;
use weir_ledger::catalogue::{self, Catalogue, CatalogueError};
use weir_ledger::database::Database;
use weir_ledger::migrate;
use weir_policy::span::Span;

/// The product of `examples/images`.
const IMAGES: (&str, &str) = (
    "WEIR_CONFIG",
    concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/images/weir.toml"),
);

async fn images() -> Weir {
    Weir::with(&[IMAGES]).await
}

async fn render(weir: &Weir, user: Uuid) -> Answer {
    weir.post("/api/jobs/render", Who::User(user), &json!({"words": "a weir"}))
        .await
}

/// The window of a meter in `/api/usage`.
async fn window(weir: &Weir, user: Uuid, meter: &str, window: &str) -> Value {
    let usage = weir.get("/api/usage", Who::User(user)).await.body;
    let meters = usage["meters"].as_array().unwrap();
    let meter = meters.iter().find(|one| one["name"] == meter).unwrap();
    let windows = meter["windows"].as_array().unwrap();
    windows
        .iter()
        .find(|one| one["window"] == window)
        .cloned()
        .unwrap_or_default()
}

/// Waits if the hour is about to end, because the test would see two of them.
async fn early_in_the_hour() {
    let left = 3600 - Timestamp::now().as_second().rem_euclid(3600);
    if left < 20 {
        tokio::time::sleep(std::time::Duration::from_secs(left.unsigned_abs() + 1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_window_of_a_plan_holds_against_submissions_at_once() {
    let weir = images().await;
    early_in_the_hour().await;
    let user = weir.user("hobby").await;
    let answers = join_all((0..40).map(|_| render(&weir, user))).await;
    let accepted = answers.iter().filter(|answer| answer.status == 202).count();
    assert_eq!(accepted, 10, "the hour's limit, though the month has 50");
    let refused = answers.iter().find(|answer| answer.status == 429).unwrap();
    assert_eq!(refused.body["title"], "Quota Exceeded");
    assert_eq!(refused.body["violated-policies"], json!(["renders-hour"]));
    assert_eq!(refused.body["windows"].as_array().unwrap().len(), 1);
    assert_eq!(refused.body["windows"][0]["window"], "hour");
    assert_eq!(refused.body["windows"][0]["remaining"], 0);
    assert_eq!(refused.body["quota"]["remaining"], 40, "the month's, as ever");
    let retry_after: i64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=3600).contains(&retry_after), "{retry_after}");
    let policy = refused.headers["ratelimit-policy"].to_str().unwrap();
    assert!(policy.starts_with("\"renders-month\";q=50;w="), "{policy}");
    assert!(policy.ends_with(", \"renders-hour\";q=10;w=3600"), "{policy}");
    let limit = refused.headers["ratelimit"].to_str().unwrap();
    assert!(limit.contains("\"renders-hour\";r=0;t="), "{limit}");
    weir.is_clean().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_names_each_full_window_and_the_latest_reset() {
    let weir = images().await;
    early_in_the_hour().await;
    let user = weir.user("hobby").await;
    weir.use_up(user, "renders", 50).await;
    let refused = render(&weir, user).await;
    assert_eq!(refused.status, 429);
    assert_eq!(
        refused.body["violated-policies"],
        json!(["renders-month", "renders-hour"]),
        "manual usage counts in every window: {}",
        refused.body
    );
    let ends: Vec<Timestamp> = refused.body["windows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|window| window["reset_at"].as_str().unwrap().parse().unwrap())
        .collect();
    let renews_at: Timestamp = refused.body["renews_at"].as_str().unwrap().parse().unwrap();
    assert_eq!(Some(&renews_at), ends.iter().max());
    let complaints = weir.complaints().await;
    assert_eq!(
        complaints.len(),
        1,
        "writes by hand are accepted, and the audit reports them: {complaints:?}"
    );
    assert!(complaints[0].contains("renders, hour of"), "{complaints:?}");
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_amount_above_a_whole_window_does_not_get_retry_after() {
    let weir = images().await;
    let user = weir.user("hobby").await;
    let ask = async |most: i64| {
        let args = json!({"words": "a weir", "max_tokens": most});
        let answer = weir.post("/api/jobs/caption", Who::User(user), &args).await;
        assert_eq!(answer.status, 429, "{}", answer.body);
        answer.body["detail"].as_str().unwrap().to_owned()
    };
    let never = ask(20_001).await;
    assert!(
        never.starts_with("The request needs 20001, but your plan allows 20000 per month and has "),
        "{never}"
    );
    weir.use_up(user, "tokens", 15_000).await;
    let later = ask(10_000).await;
    assert!(later.starts_with("Your plan has 5000 left until"), "{later}");
    weir.is_clean().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_charged_to_the_windows_in_which_it_was_reserved() {
    let weir = images().await;
    early_in_the_hour().await;
    let user = weir.user("hobby").await;
    let accepted = render(&weir, user).await;
    assert_eq!(accepted.status, 202, "{}", accepted.body);
    let id = accepted.body["job"]["id"].as_i64().unwrap();
    assert_eq!(window(&weir, user, "renders", "hour").await["reserved"], 1);
    // It was accepted an hour ago.
    let client = weir.client().await;
    client
        .execute(
            "UPDATE quota_reservations SET created_at = created_at - interval '1 hour' WHERE job_id = $1",
            &[&id],
        )
        .await
        .unwrap();
    weir.recount().await;
    assert_eq!(window(&weir, user, "renders", "hour").await["reserved"], 0);
    weir.is_clean().await;
    weir.ended_by_other_client(id, "completed").await;
    weir.reconcile().await;
    let hour = window(&weir, user, "renders", "hour").await;
    assert_eq!(
        (&hour["used"], &hour["reserved"]),
        (&json!(0), &json!(0)),
        "this hour"
    );
    let month = window(&weir, user, "renders", "month").await;
    assert_eq!((&month["used"], &month["reserved"]), (&json!(1), &json!(0)));
    let earlier: (i64, i64) = {
        let row = client
            .query_one(
                "SELECT used, reserved FROM quota_balances \
                 WHERE user_id = $1 AND span = 'hour' AND period_start < date_trunc('hour', now(), 'UTC')",
                &[&user],
            )
            .await
            .unwrap();
        (row.get(0), row.get(1))
    };
    assert_eq!(earlier, (1, 0), "the hour in which it was reserved");
    weir.is_clean().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn earlier_usage_in_a_window_counts_after_a_plan_change() {
    let weir = images().await;
    early_in_the_hour().await;
    let user = weir.user("business").await;
    // Business has no limit by the hour, but another plan has one.
    for _ in 0..12 {
        assert_eq!(render(&weir, user).await.status, 202);
    }
    let unlimited = weir.get("/api/usage", Who::User(user)).await.body;
    assert_eq!(unlimited["renders"]["limit"], Value::Null);
    let client = weir.client().await;
    assert!(
        weir_ledger::plans::ensure_user(&client, user, "hobby")
            .await
            .unwrap()
    );
    let refused = render(&weir, user).await;
    assert_eq!(refused.status, 429, "{}", refused.body);
    assert_eq!(refused.body["windows"][0]["reserved"], 12, "{}", refused.body);
    weir.is_clean().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn amounts_may_exceed_an_int_and_unused_parts_are_released() {
    let weir = images().await;
    let user = weir.user("business").await;
    let who = Who::User(user);
    let args = json!({"words": "three words only", "max_tokens": 5_000_000_000_i64});
    let accepted = weir.post("/api/jobs/caption", who, &args).await;
    assert_eq!(accepted.status, 202, "{}", accepted.body);
    assert_eq!(accepted.body["job"]["reserved"], 5_000_000_000_i64);
    assert_eq!(accepted.body["quota"]["reserved"], 5_000_000_000_i64);
    let id = accepted.body["job"]["id"].as_i64().unwrap();
    let client = weir.client().await;
    client
        .execute(
            "UPDATE river_job SET metadata = metadata || '{\"weir:used\": 3000000000}' WHERE id = $1",
            &[&id],
        )
        .await
        .unwrap();
    weir.ended_by_other_client(id, "completed").await;
    weir.reconcile().await;
    let usage = weir.get("/api/usage", who).await.body;
    assert_eq!(usage["tokens"]["used"], 3_000_000_000_i64, "{usage}");
    assert_eq!(usage["tokens"]["reserved"], 0);
    weir.is_clean().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_and_lanes_are_those_of_the_plan() {
    let weir = images().await;
    let (hobby, team) = (weir.user("hobby").await, weir.user("team").await);
    let submit = async |user: Uuid, service: &str| {
        let path = format!("/api/jobs/{service}");
        let answer = weir
            .post(&path, Who::User(user), &json!({"words": "a weir"}))
            .await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        let job = &answer.body["job"];
        assert_eq!(job["plan"], if user == hobby { "hobby" } else { "team" });
        let parked = job["waiting_for"] == "slot";
        (job["queue"].as_str().unwrap().to_owned(), parked)
    };
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(submit(team, "render").await.1);
    }
    assert_eq!(seen, [false, false, false, true], "three slots");
    assert_eq!(
        submit(team, "export").await,
        ("export_priority".to_owned(), false)
    );
    assert!(submit(team, "export").await.1, "one slot for exports");
    assert_eq!(
        submit(hobby, "render").await,
        ("render_default".to_owned(), false)
    );
    assert!(submit(hobby, "render").await.1, "one slot");
    weir.is_clean().await;
    weir.end().await;
}

/// The settings' catalogue with a change.
fn changed(weir: &Weir, change: impl FnOnce(&mut Catalogue)) -> Catalogue {
    let mut catalogue = weir.context.settings.catalogue.clone();
    change(&mut catalogue);
    catalogue
}

#[tokio::test(flavor = "multi_thread")]
async fn raised_limits_apply_immediately_and_new_slots_wake_parked_jobs() {
    let weir = images().await;
    early_in_the_hour().await;
    let user = weir.user("hobby").await;
    for _ in 0..10 {
        assert_eq!(render(&weir, user).await.status, 202);
    }
    assert_eq!(render(&weir, user).await.status, 429);
    let more = changed(&weir, |catalogue| {
        let limits = catalogue
            .plans
            .get_mut("hobby")
            .unwrap()
            .meters
            .get_mut("renders")
            .unwrap();
        limits.limits.insert(Span::Hour, 12);
        limits.slots = 4;
    });
    let mut client = weir.client().await;
    let changes = catalogue::apply(&mut client, &more).await.unwrap();
    assert_eq!(
        changes,
        [
            "plan hobby: slots for renders 1 -> 4",
            "plan hobby: renders per hour 10 -> 12"
        ]
    );
    assert_eq!(
        catalogue::apply(&mut client, &more).await.unwrap(),
        Vec::<String>::new()
    );
    let written: i64 = client
        .query_one(
            "SELECT count(*) FROM catalogue_changes WHERE change IN ('plan hobby: slots for renders 1 -> 4', \
                 'plan hobby: renders per hour 10 -> 12')",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(written, 2, "the changes are on record");
    assert_eq!(
        render(&weir, user).await.status,
        202,
        "the API was not started again"
    );
    weir.reconcile().await;
    let admitted: i64 = client
        .query_one(
            "SELECT count(*) FROM quota_reservations WHERE admitted_at IS NOT NULL",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(admitted, 4);
    weir.is_clean().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removing_a_catalogue_entry_in_use_is_refused() {
    let weir = images().await;
    let (team, hobby) = (weir.user("team").await, weir.user("hobby").await);
    assert_eq!(render(&weir, hobby).await.status, 202);
    let before = catalogue::load(&weir.client().await).await.unwrap();
    let without = changed(&weir, |catalogue| {
        catalogue.plans.shift_remove("team");
        catalogue.meters.remove("renders");
        catalogue.meters.insert("videos".to_owned(), "videos".to_owned());
        for plan in catalogue.plans.values_mut() {
            plan.meters.remove("renders");
        }
    });
    let mut client = weir.client().await;
    let Err(CatalogueError::InUse(reasons)) = catalogue::apply(&mut client, &without).await else {
        panic!("it was applied");
    };
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(
        reasons[0]
            .starts_with("plan team: it is not in weir.toml, but 1 subscription(s) use it, 1 of them active")
    );
    assert!(reasons[0].contains(&team.to_string()), "{reasons:?}");
    assert!(reasons[1].starts_with("meter renders: it is not in weir.toml, but 1 holder(s) have used it"));
    assert!(reasons[1].contains(&hobby.to_string()), "{reasons:?}");
    assert_eq!(catalogue::load(&weir.client().await).await.unwrap(), before);
    weir.end().await;
}

/// The schema starts with default plans. A catalogue without them removes nothing that its reader knows.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_migrate_prints_no_changes_of_the_catalogue() {
    let weir = Weir::made(&[IMAGES], async |url| {
        let mut migrate = Command::new(env!("CARGO_BIN_EXE_weir"));
        let migrated = migrate
            .arg("migrate")
            .env("DATABASE_URL", url)
            .env(IMAGES.0, IMAGES.1)
            .output();
        let migrated = migrated.unwrap();
        let printed = String::from_utf8_lossy(&migrated.stdout);
        assert!(printed.contains("created the catalogue: "), "{migrated:?}");
        assert!(!printed.contains("changed the catalogue"), "{printed}");
    })
    .await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_loads_the_plans_and_a_missing_meter_stops_the_start() {
    let weir = Weir::made(&[IMAGES], async |url| {
        migrate::migrate(&Database::at(url).unwrap()).await.unwrap();
    })
    .await;
    let run = |arguments: &[&str]| command(&weir, arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let migrated = run(&["migrate"]);
    let printed = text(&migrated.stdout);
    assert!(migrated.status.success(), "{printed}{}", text(&migrated.stderr));
    assert!(
        printed.contains("changed the catalogue: meter renders: new, in images\n"),
        "{printed}"
    );
    assert!(
        printed.contains("changed the catalogue: plan hobby: new\n"),
        "{printed}"
    );
    assert!(
        printed.contains("changed the catalogue: plan free: removed\n"),
        "{printed}"
    );
    let again = text(&run(&["migrate"]).stdout);
    assert_eq!(again, "nothing to do: the database is up to date\n");
    let plans = text(&run(&["plans"]).stdout);
    assert!(plans.contains("hobby (default)"), "{plans}");
    assert!(plans.ends_with("weir.toml has the same catalogue\n"), "{plans}");
    let plans: Value = serde_json::from_slice(&run(&["plans", "--json"]).stdout).unwrap();
    assert_eq!(
        plans["plans"]["hobby"]["meters"]["renders"]["limits"],
        json!({"month": 50, "hour": 10})
    );
    assert_eq!(plans["differs"], json!([]));
    // The shipped catalogue on this database: it lacks the meters of the file's services.
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weir.toml");
    let other = command(&weir, &["up"])
        .env("WEIR_CONFIG", "native/tests/process.toml")
        .output()
        .unwrap();
    assert!(!other.status.success());
    let printed = text(&other.stderr);
    assert!(
        printed.contains("the database has no meter") && printed.contains("weir migrate"),
        "{printed}"
    );
    let differs = text(
        &command(&weir, &["plans"])
            .env("WEIR_CONFIG", &shipped)
            .output()
            .unwrap()
            .stdout,
    );
    assert!(
        differs.contains("weir.toml differs") && differs.contains("  plan hobby: removed\n"),
        "{differs}"
    );
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_services_file_without_plans_uses_the_shipped_catalogue() {
    let weir = Weir::new().await;
    let without = weir.another(&[("WEIR_CONFIG", "tests/programs.toml")]);
    assert_eq!(
        without.settings.catalogue, weir.context.settings.catalogue,
        "native/src/config/default_catalogue.toml is not as weir.toml"
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_windows_are_deleted_and_others_kept() {
    let weir = images().await;
    let user = weir.user("hobby").await;
    let client = weir.client().await;
    client
        .execute(
            "SELECT weir_charge($1, 'renders', 2, 'earlier', now() - interval '4 days'), weir_charge($1, 'renders', 3, 'now')",
            &[&user.to_string()],
        )
        .await
        .unwrap();
    weir_ledger::reconciliation::clean_windows(&weir.writer_session().await)
        .await
        .unwrap();
    let rows = client
        .query(
            "SELECT span, sum(used)::bigint FROM quota_balances WHERE user_id = $1 GROUP BY 1 ORDER BY 1",
            &[&user],
        )
        .await
        .unwrap();
    let kept: Vec<(String, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(kept, [("hour".to_owned(), 3), ("month".to_owned(), 5)]);
    weir.is_clean().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_inserted_with_sql_holds_in_a_new_window() {
    let weir = images().await;
    early_in_the_hour().await;
    let (hobby, team) = (weir.user("hobby").await, weir.user("team").await);
    let client = weir.client().await;
    let set = async |hour: &str| {
        let sql = format!(
            "UPDATE plan_limits SET hour = {hour} WHERE event_type = 'tokens' \
             AND plan_id = (SELECT id FROM subscription_plans WHERE tier = 'hobby')"
        );
        client.batch_execute(&sql).await.unwrap();
        let counted = "SELECT array_agg(DISTINCT counted) FROM plan_limits WHERE event_type = 'tokens'";
        client
            .query_one(counted, &[])
            .await
            .unwrap()
            .get::<_, Vec<i16>>(0)
    };
    assert_eq!(set("30").await, [Span::Hour.bit()], "in every plan");
    let caption = async |user: Uuid| {
        let args = json!({"words": "three words only", "max_tokens": 20});
        weir.post("/api/jobs/caption", Who::User(user), &args).await
    };
    for _ in 0..2 {
        assert_eq!(caption(team).await.status, 202);
    }
    assert_eq!(caption(hobby).await.status, 202);
    let refused = caption(hobby).await;
    assert_eq!(refused.status, 429, "{}", refused.body);
    assert_eq!(refused.body["violated-policies"], json!(["tokens-hour"]));
    assert_eq!(set("NULL").await, [0]);
    assert_eq!(caption(hobby).await.status, 202);
    weir.is_clean().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_limits_are_restored() {
    let weir = images().await;
    let user = weir.user("hobby").await;
    let mut client = weir.client().await;
    client
        .batch_execute("DELETE FROM plan_limits WHERE event_type = 'renders'")
        .await
        .unwrap();
    assert_eq!(render(&weir, user).await.status, 503);
    let wanted = &weir.context.settings.catalogue;
    let changes = catalogue::apply(&mut client, wanted).await.unwrap();
    let lacked = changes
        .iter()
        .filter(|change| change.contains("slots for renders none ->"));
    assert_eq!(lacked.count(), 3, "{changes:?}");
    assert_eq!(render(&weir, user).await.status, 202);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_meter_with_manual_usage_cannot_be_removed() {
    let weir = images().await;
    let user = weir.user("hobby").await;
    weir.use_up(user, "exports", 3).await;
    let without = changed(&weir, |catalogue| {
        catalogue.meters.remove("exports");
        for plan in catalogue.plans.values_mut() {
            plan.meters.remove("exports");
        }
    });
    let Err(CatalogueError::InUse(reasons)) = catalogue::apply(&mut weir.client().await, &without).await
    else {
        panic!("it was applied");
    };
    assert!(
        reasons[0].starts_with("meter exports: it is not in weir.toml, but 1 holder(s) have used it"),
        "{reasons:?}"
    );
    assert!(reasons[0].contains(&user.to_string()), "{reasons:?}");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_lists_applied_files_even_if_the_catalogue_is_refused() {
    let weir = images().await;
    let admin = weir.admin().await;
    let old = format!("{}_old", weir.name());
    admin
        .batch_execute(&format!("CREATE DATABASE {old}"))
        .await
        .unwrap();
    let url = weir.url().replace(weir.name(), &old);
    let database = Database::at(&url).unwrap();
    migrate::migrate(&database).await.unwrap();
    let client = database.connect().await.unwrap();
    client
        .batch_execute(
            "INSERT INTO users (id) VALUES ('00000000-0000-0000-0000-000000000001'); \
             INSERT INTO user_subscriptions (user_id, plan_id) SELECT u.id, p.id FROM users u, subscription_plans p \
             WHERE p.tier = 'pro'; \
             UPDATE weir_schema SET files = jsonb_set(files, '{functions/api/weir_submit.sql}', '\"\"')",
        )
        .await
        .unwrap();
    let migrated = command(&weir, &["migrate"])
        .env("DATABASE_URL", &url)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, complained) = (text(&migrated.stdout), text(&migrated.stderr));
    assert!(!migrated.status.success());
    assert!(
        printed.contains("applied functions/api/weir_submit.sql\n"),
        "{printed}{complained}"
    );
    assert!(!printed.contains("changed the catalogue"), "{printed}");
    assert!(
        complained.contains("plan pro: it is not in weir.toml, but 1 subscription(s) use it")
            && complained.contains("keep it until they have another plan"),
        "{complained}"
    );
    drop(client);
    admin
        .batch_execute(&format!("DROP DATABASE {old} WITH (FORCE)"))
        .await
        .unwrap();
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_meter_is_counted_in_every_window_that_some_plan_limits() {
    let weir = images().await;
    let mut client = weir.client().await;
    let counted = async |client: &tokio_postgres::Client, meter: &str| {
        let sql = "SELECT array_agg(DISTINCT counted) FROM plan_limits WHERE event_type = $1::text";
        let row = client.query_one(sql, &[&meter]).await.unwrap();
        row.get::<_, Vec<i16>>(0)
    };
    assert_eq!(
        counted(&client, "renders").await,
        [Span::Hour.bit()],
        "in every plan"
    );
    assert_eq!(
        counted(&client, "previews").await,
        [Span::Hour.bit() | Span::Minute.bit()]
    );
    assert_eq!(counted(&client, "tokens").await, [0]);
    let without = changed(&weir, |catalogue| {
        catalogue.plans.shift_remove("hobby");
        catalogue.plans["team"].is_default = true;
    });
    catalogue::apply(&mut client, &without).await.unwrap();
    assert_eq!(
        counted(&client, "previews").await,
        [0],
        "with its plan the window goes"
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_with_an_override_cannot_be_removed() {
    let weir = images().await;
    let user = weir.user("hobby").await;
    let mut client = weir.client().await;
    client
        .execute(
            "INSERT INTO limit_overrides (user_id, event_type, hour) VALUES ($1, 'renders', 3)",
            &[&user],
        )
        .await
        .unwrap();
    let without = changed(&weir, |catalogue| {
        for plan in catalogue.plans.values_mut() {
            if let Some(limits) = plan.meters.get_mut("renders") {
                limits.limits.remove(&Span::Hour);
                limits.ceilings.remove(&Span::Hour);
            }
        }
    });
    let Err(CatalogueError::InUse(reasons)) = catalogue::apply(&mut client, &without).await else {
        panic!("its own limit would no longer hold");
    };
    assert_eq!(reasons.len(), 1, "{reasons:?}");
    assert!(
        reasons[0].starts_with("meter renders: 1 user(s), such as "),
        "{reasons:?}"
    );
    assert!(reasons[0].contains(&user.to_string()), "{reasons:?}");
    // An expired one blocks nothing.
    client
        .execute("UPDATE limit_overrides SET expires_at = now()", &[])
        .await
        .unwrap();
    catalogue::apply(&mut client, &without).await.unwrap();
    weir.end().await;
}
