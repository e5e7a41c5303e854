//! Two implementations of one rule: random submissions and settlements go through the ledger in one database and
//! through the SQL functions in another. Every answer and every row must be equal, except for ids and times.
//!
//! `WEIR_CASES` sets the number of cases, and `WEIR_SEED` repeats a run. A failure prints both.

use crate::common;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{GO_TESTS, Weir, Who};
use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use uuid::Uuid;
use weir::api::{MAX_AHEAD, MAX_BODY, MAX_KEY};
use weir::config::service::MAX_AMOUNT;
use weir::handler::MAX_OUTPUT;
use weir_ledger::attempts::Progress;
use weir_ledger::catalogue::services::{self, RetryPolicy, ServiceAmount, ServiceEntry};
use weir_ledger::holder::{Holder, Holders};
use weir_ledger::meter::Meter;
use weir_ledger::reservation::{Answer, Idempotency, LAST_PRIORITY, Quota, Reserver, Submission};
use weir_ledger::rules::{Rules, SlotLimits};
use weir_ledger::settlement::{Ended, MAX_PROMOTED, Settled, Settler, Success};
use weir_ledger::unique_key;
use weir_policy::span::Span;
use weir_policy::subject::{MAX_BYTES, Subject};

/// The maximum time of a run, on any machine.
const MAX_WAIT: Duration = Duration::from_secs(45);

/// One of the two databases.
struct Side {
    weir: Weir,
    client: Client,
}

/// A submission to a service.
#[derive(Clone, Debug)]
struct Wanted {
    subject: Subject,
    service: usize,
    args: Value,
    amount: i64,
    key: Option<String>,
    run_at: Option<Timestamp>,
    priority: i16,
}

/// Pauses of 2, 8 and 18 seconds.
const SQUARES: RetryPolicy = RetryPolicy {
    base: 2.0,
    factor: 1.0,
    power: 2.0,
    max: 60.0,
};

fn entries() -> [ServiceEntry; 2] {
    let entry = |name: &str, kind: &str, unique_by: &[&str], retry| ServiceEntry {
        name: name.to_owned(),
        meter: Meter::of(name),
        kind: kind.to_owned(),
        max_attempts: 3,
        unique_by: unique_by.iter().map(|member| (*member).to_owned()).collect(),
        amount: ServiceAmount::Caller,
        retry,
        timeout: Duration::from_secs(60),
        expires_in: None,
    };
    [
        entry("analysis", "analysis:analyze", &["repo"], None),
        entry("specview", "specview:generate", &[], Some(SQUARES)),
    ]
}

fn pick<T: Clone>(rng: &mut StdRng, of: &[T]) -> T {
    of[rng.random_range(0..of.len())].clone()
}

/// Values with different encodings as JSON in different libraries.
fn odd_value(rng: &mut StdRng, depth: usize) -> Value {
    match rng.random_range(0..if depth == 0 { 7 } else { 9 }) {
        0 => json!(pick(rng, &[0_i64, 1, -7, i64::MAX, i64::MIN])),
        1 => json!(u64::MAX - rng.random_range(0..3)),
        2 => json!(pick(
            rng,
            &[
                0.5,
                -1.25,
                1e20,
                1e21,
                1.5e-7,
                1e-6,
                123_456_789.125,
                2.5e300,
                1e-300,
                0.1
            ]
        )),
        3 => json!(rng.random_range(-1.0..1.0_f64)),
        4 => json!(pick(
            rng,
            &[
                "",
                "a<b>&c",
                "\u{2028}\u{2029}",
                "Zo\u{eb} 李 \u{1f600}",
                "\"\\/\u{8}\u{c}\n\r\t\u{1}\u{7f}"
            ]
        )),
        5 => pick(rng, &[Value::Null, json!(true), json!(false)]),
        6 => json!(format!("r{}", rng.random_range(0..4))),
        7 => Value::Array(
            (0..rng.random_range(0..3))
                .map(|_| odd_value(rng, depth - 1))
                .collect(),
        ),
        _ => {
            let keys = ["b", "a", "aa", "B", "<", "\u{e9}", "10", "9"];
            let members =
                (0..rng.random_range(0..4)).map(|_| (pick(rng, &keys).to_owned(), odd_value(rng, depth - 1)));
            Value::Object(members.collect())
        }
    }
}

fn of_quota(quota: &Quota) -> Value {
    json!({ "used": quota.used, "reserved": quota.reserved, "limit": quota.limit, "remaining": quota.remaining,
            "ceiling": quota.ceiling, "overage": quota.overage, "reset_at": quota.window.end.to_string() })
}

/// The names of the full windows.
fn names(windows: &Value) -> Vec<String> {
    let windows = windows.as_array().into_iter().flatten();
    windows
        .map(|one| one["window"].as_str().unwrap().to_owned())
        .collect()
}

type Outcome = (&'static str, Option<i64>, Value, Vec<String>);

async fn through_the_ledger(reserver: &Reserver, holder: Holder, wanted: &Wanted) -> Outcome {
    let entry = &entries()[wanted.service];
    let mut args = wanted.args.as_object().unwrap().clone();
    args.insert("user_id".to_owned(), wanted.subject.as_str().into());
    let idempotency = wanted.key.clone().map(|key| Idempotency {
        key,
        request_hash: Sha256::digest(format!(
            "{}{}{}{:?}{}",
            entry.name,
            json!(args),
            wanted.amount,
            wanted.run_at,
            wanted.priority
        ))
        .to_vec(),
    });
    let submission = Submission {
        holder,
        subject: Some(wanted.subject.clone()),
        service: entry.name.clone(),
        meter: entry.meter,
        kind: entry.kind.clone(),
        max_attempts: entry.max_attempts,
        unique_key: unique_key::key(holder.id, &entry.kind, &args, &entry.unique_by).unwrap(),
        args: Value::Object(args),
        metadata: json!({}),
        amount: wanted.amount,
        idempotency,
        run_at: wanted.run_at,
        priority: wanted.priority,
    };
    let month = |quota: Option<weir_ledger::reservation::Quotas>| of_quota(&quota.unwrap().month);
    match reserver.submit(submission).await.unwrap() {
        Answer::Accepted { job, quota } => {
            let outcome = if job.has_slot { "admitted" } else { "parked" };
            (outcome, Some(job.id), month(quota), Vec::new())
        }
        Answer::Repeated { job_id, quota } => ("repeated", Some(job_id), month(quota), Vec::new()),
        Answer::Folded { job_id, quota } => ("folded", Some(job_id), month(quota), Vec::new()),
        Answer::KeyReused => ("key_reused", None, Value::Null, Vec::new()),
        Answer::TooLarge { quota } => ("too_large", None, month(quota), Vec::new()),
        Answer::TooManyWaiting { quota, .. } => ("too_many_waiting", None, month(quota), Vec::new()),
        Answer::OverQuota { quota, full } => {
            let full = full.iter().map(|quota| quota.window.span.as_str().to_owned());
            ("over_quota", None, of_quota(&quota.month), full.collect())
        }
    }
}

async fn through_sql(client: &Client, wanted: &Wanted) -> Outcome {
    let mut options = json!({ "priority": wanted.priority });
    if let Some(key) = &wanted.key {
        options["idempotency_key"] = json!(key);
    }
    if let Some(run_at) = wanted.run_at {
        options["run_at"] = json!(run_at.to_string());
    }
    let row = client
        .query_one(
            "SELECT outcome, job_id, quota FROM weir_submit($1, $2, $3, $4, $5)",
            &[
                &wanted.subject.as_str(),
                &entries()[wanted.service].name,
                &wanted.args,
                &wanted.amount,
                &options,
            ],
        )
        .await
        .unwrap();
    let outcomes = [
        "admitted",
        "parked",
        "repeated",
        "folded",
        "over_quota",
        "key_reused",
        "too_large",
        "too_many_waiting",
    ];
    let outcome = outcomes
        .into_iter()
        .find(|one| *one == row.get::<_, &str>("outcome"))
        .unwrap();
    let mut quota: Value = row.get::<_, Option<Value>>("quota").unwrap_or_default();
    let full = quota.as_object_mut().and_then(|quota| quota.remove("windows"));
    (
        outcome,
        row.get("job_id"),
        quota,
        names(&full.unwrap_or_default()),
    )
}

/// The result of a dry run, with the names of the full windows.
async fn dry_run(client: &Client, wanted: &Wanted) -> (String, Value, Vec<String>) {
    let row = client
        .query_one(
            "SELECT outcome, quota FROM weir_quota($1, $2, $3)",
            &[
                &wanted.subject.as_str(),
                &entries()[wanted.service].name,
                &wanted.amount,
            ],
        )
        .await
        .unwrap();
    let mut quota: Value = row.get("quota");
    let full = quota.as_object_mut().and_then(|quota| quota.remove("windows"));
    (row.get("outcome"), quota, names(&full.unwrap_or_default()))
}

/// The columns of Weir's tables and of `river_job`, without random and numbered ones.
const COLUMNS: &str = "
    SELECT c.relname::text AS table_name,
           array_agg(a.attname::text) FILTER (WHERE coalesce(pg_get_expr(d.adbin, d.adrelid), '') !~ 'gen_random_uuid|nextval|xact'
                                              AND a.attidentity = '') AS columns,
           array_agg(a.attname::text) AS all_columns
    FROM pg_class c
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
      AND (c.relname = 'river_job' OR c.relname NOT LIKE 'river\\_%')
      AND c.relname NOT IN ('weir_schema', 'weir_settings')
    GROUP BY 1 ORDER BY 1";

/// Replaces times that depend on the clock, which differ between the sides. These are now, the expiry of a reservation
/// with this time to live, and the end of a new subscription's first period.
fn of_clock(value: &mut Value, now: Timestamp, ttl: i64) {
    match value {
        Value::Object(members) => members.values_mut().for_each(|one| of_clock(one, now, ttl)),
        Value::Array(items) => items.iter_mut().for_each(|one| of_clock(one, now, ttl)),
        Value::String(text) => {
            let Ok(time) = text.parse::<Timestamp>() else {
                return;
            };
            let seconds = time.as_second() - now.as_second();
            let names = [
                ("now", 0),
                ("now + time to live", ttl),
                ("now + 30 days", 30 * 86_400),
            ];
            for (name, from_now) in names {
                if (seconds - from_now).abs() < 300 {
                    name.clone_into(text);
                    return;
                }
            }
        }
        _ => {}
    }
}

impl Side {
    async fn new() -> Self {
        let weir = Weir::new().await;
        let client = weir.client().await;
        let same = "UPDATE weir_settings SET address_namespace = '6ba7b810-9dad-11d1-80b4-00c04fd430c8'";
        client.batch_execute(same).await.unwrap();
        Self { weir, client }
    }

    /// Every row of these holders and their jobs, and every row without a holder. Replaces job ids by their indexes in
    /// `jobs`, and plans by their names.
    async fn rows(&self, holders: &[Uuid], jobs: &[i64], now: Timestamp, ttl: Duration) -> Vec<String> {
        let plans = "SELECT id::text, tier::text FROM subscription_plans";
        let plans = self.client.query(plans, &[]).await.unwrap();
        let plans: BTreeMap<String, String> = plans.iter().map(|row| (row.get(0), row.get(1))).collect();
        let mut rows = Vec::new();
        for table in self.client.query(COLUMNS, &[]).await.unwrap() {
            let name: &str = table.get("table_name");
            let (columns, all): (Vec<&str>, Vec<&str>) = (table.get("columns"), table.get("all_columns"));
            let has = |column: &str| all.contains(&column);
            let chosen = match name {
                "river_job" => "t.id = ANY ($2)",
                "grant_draws" | "job_outputs" => "t.job_id = ANY ($2)",
                "users" => "t.id = ANY ($1)",
                _ if has("holder") => "t.holder = ANY ($1)",
                _ if has("user_id") => "t.user_id = ANY ($1)",
                _ => "true",
            };
            let sql = format!(
                "SELECT to_jsonb(t) FROM {name} t WHERE {chosen} AND ($1::uuid[], $2::bigint[]) IS NOT NULL"
            );
            for row in self.client.query(&sql, &[&holders, &jobs]).await.unwrap() {
                let mut row: Value = row.get(0);
                let members = row.as_object_mut().unwrap();
                members.retain(|column, _| {
                    columns.contains(&column.as_str())
                        || (name == "river_job" && column == "id")
                        || name == "grants"
                });
                for column in ["job_id", "id", "parked_from"] {
                    if let Some(id) = members.get(column).and_then(Value::as_i64) {
                        members[column] = json!(jobs.iter().position(|job| *job == id));
                    }
                }
                for column in ["id", "plan_id", "next_plan_id"] {
                    if let Some(plan) = members
                        .get(column)
                        .and_then(Value::as_str)
                        .and_then(|id| plans.get(id))
                    {
                        members[column] = json!(plan);
                    }
                }
                // Each side hashes its own form of the request.
                if let Some(hash) = members.get_mut("request_hash") {
                    *hash = json!(!hash.is_null());
                }
                of_clock(&mut row, now, ttl.as_secs().cast_signed());
                rows.push(format!("{name}: {row}"));
            }
        }
        rows.sort();
        rows
    }

    async fn minute(&self) -> i64 {
        let minute = "SELECT floor(extract(epoch FROM clock_timestamp()) / 60)::bigint";
        self.client.query_one(minute, &[]).await.unwrap().get(0)
    }
}

/// Limits of all plans, the same for both databases.
fn limits(rng: &mut StdRng) -> String {
    let mut sql = String::new();
    for plan in common::PLANS {
        let waiting = pick(rng, &["NULL", "NULL", "1", "3"]);
        sql += &format!("UPDATE subscription_plans SET max_waiting = {waiting} WHERE tier = '{plan}'; ");
        for meter in ["analysis", "specview"] {
            let mut window = |most: i64, often: f64| match rng.random_bool(often) {
                true => rng.random_range(0..most).to_string(),
                false => "NULL".to_owned(),
            };
            let (month, day, hour, minute) =
                (window(60, 0.8), window(40, 0.3), window(30, 0.3), window(20, 0.3));
            let mut ceiling = || match rng.random_bool(0.6) {
                true => rng.random_range(10..120).to_string(),
                false => "NULL".to_owned(),
            };
            let (month_ceiling, day_ceiling, hour_ceiling) = (ceiling(), ceiling(), ceiling());
            let slots = rng.random_range(1..4);
            sql += &format!(
                "UPDATE plan_limits l SET month = {month}, day = {day}, hour = {hour}, minute = {minute}, slots = {slots}, \
                 month_ceiling = {month_ceiling}, day_ceiling = {day_ceiling}, hour_ceiling = {hour_ceiling} \
                 FROM subscription_plans p WHERE p.id = l.plan_id AND p.tier = '{plan}' AND l.event_type = '{meter}'; "
            );
        }
    }
    sql
}

/// A user's additions to the plan: grants, overrides, and a scheduled plan that is in force already.
fn beyond_the_plan(rng: &mut StdRng, user: Uuid, meter: &str) -> String {
    let mut sql = String::new();
    for n in 0..pick(rng, &[0, 0, 1, 2, 3]) {
        let grant = Uuid::from_u128(rng.random());
        let (amount, end) = (
            rng.random_range(1..12),
            pick(rng, &["NULL", "'2100-01-01'", "'2100-01-02'", "'2020-01-01'"]),
        );
        sql += &format!(
            "INSERT INTO holders (holder, event_type, user_id, has_grants) VALUES ('{user}', '{meter}', '{user}', true) \
                 ON CONFLICT DO NOTHING; \
             INSERT INTO grants (id, user_id, event_type, amount, expires_at, reason, created_at) \
                 VALUES ('{grant}', '{user}', '{meter}', {amount}, {end}, 'test', '2026-01-0{}'); ",
            1 + n % 2
        );
    }
    if rng.random_bool(0.3) {
        let (month, slots) = (
            pick(rng, &["NULL", "-1", "5", "25"]),
            pick(rng, &["NULL", "1", "4"]),
        );
        let (hour, end) = (
            pick(rng, &["NULL", "-1", "9"]),
            pick(rng, &["NULL", "'2100-01-01'", "'2020-01-01'"]),
        );
        sql += &format!(
            "INSERT INTO limit_overrides (user_id, event_type, month, hour, slots, expires_at) \
                 VALUES ('{user}', '{meter}', {month}, {hour}, {slots}, {end}); "
        );
    }
    if rng.random_bool(0.2) {
        let (plan, at) = (
            pick(rng, &common::PLANS),
            pick(rng, &["2020-01-01", "2100-01-01"]),
        );
        sql += &format!(
            "UPDATE user_subscriptions SET next_plan_at = '{at}', \
                 next_plan_id = (SELECT id FROM subscription_plans WHERE tier = '{plan}') WHERE user_id = '{user}'; "
        );
    }
    sql
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_and_rust_have_the_same_windows() {
    let weir = Weir::new().await;
    let rows = weir
        .client()
        .await
        .query(
            "SELECT span, mask, extract(epoch FROM length)::bigint FROM short_windows() ORDER BY mask",
            &[],
        )
        .await
        .unwrap();
    let found: Vec<(String, i32, i64)> = rows
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect();
    let known = Span::CLOCK_SPANS.map(|span| {
        (
            span.as_str().to_owned(),
            i32::from(span.bit()),
            span.seconds().unwrap(),
        )
    });
    assert_eq!(found, known);
    weir.abandon().await;
}

/// Lifting a limit promotes a bounded number of jobs, in Rust and in SQL.
#[tokio::test(flavor = "multi_thread")]
async fn sql_and_rust_promote_the_same_number_of_jobs_at_once() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let client = weir.writer_session().await;
    let parked = MAX_PROMOTED + 1;
    client
        .batch_execute(&format!(
            "INSERT INTO holders (holder, event_type, user_id) VALUES ('{user}', 'analysis', '{user}') ON CONFLICT DO NOTHING; \
             WITH jobs AS (INSERT INTO river_job (args, kind, max_attempts, state, queue) \
                 SELECT '{{}}', 'analysis:analyze', 3, 'pending', 'analysis_default' FROM generate_series(1, {parked}) RETURNING id) \
             INSERT INTO quota_reservations (user_id, holder, event_type, reserved_amount, job_id, admitted_at, parked_at) \
                 SELECT '{user}', '{user}', 'analysis', 0, id, NULL, now() FROM jobs; \
             UPDATE holders SET parked = {parked}, slots_in_use = 0 WHERE holder = '{user}'; \
             UPDATE weir_settings SET counts_slots = false; \
             SELECT settle_many('{{}}', false, '{{}}', '{{{user}}}', '{{analysis}}')"
        ))
        .await
        .unwrap();
    let promoted = "SELECT count(*) FROM river_job WHERE state = 'available'";
    let promoted: i64 = client.query_one(promoted, &[]).await.unwrap().get(0);
    assert_eq!(promoted, MAX_PROMOTED as i64);
    weir.abandon().await;
}

fn rules(rng: &mut StdRng) -> Rules {
    let mut of_plans = BTreeMap::new();
    if rng.random_bool(0.3) {
        of_plans.insert("free".to_owned(), rng.random_range(1..4));
    }
    Rules {
        slot_limits: (!rng.random_bool(0.1)).then_some(SlotLimits {
            of_plans,
            anonymous: 1,
        }),
        ttl: Duration::from_secs(rng.random_range(60..7200)),
    }
}

fn random_subjects(rng: &mut StdRng) -> Vec<Subject> {
    (0..rng.random_range(1..4))
        .map(|_| {
            let id = uuid::Builder::from_random_bytes(rng.random()).into_uuid();
            let text = format!("{}{id}", pick(rng, &["user_", "auth0|", "Zo\u{eb} "]));
            if rng.random_bool(0.5) {
                id.into()
            } else {
                text.parse().unwrap()
            }
        })
        .collect()
}

/// SQL that creates a user on some plan, with usage.
fn user_with_usage(rng: &mut StdRng, subject: &Subject, id: Uuid) -> String {
    let plan = pick(rng, &common::PLANS);
    let kept = if subject.uuid().is_some() {
        "NULL".to_owned()
    } else {
        format!("'{subject}'")
    };
    let anchor = format!("now() - interval '{} days'", rng.random_range(0..400));
    format!(
        "INSERT INTO users (id, subject) VALUES ('{id}', {kept}); \
         INSERT INTO user_subscriptions (user_id, plan_id, current_period_start) \
             SELECT '{id}', id, date_trunc('day', {anchor}) FROM subscription_plans WHERE tier = '{plan}'; \
         INSERT INTO usage_events (user_id, event_type, quota_amount, period_start) \
         VALUES ('{id}', 'analysis', {}, period_start_of('{id}', now())); ",
        match rng.random_bool(0.9) {
            true => rng.random_range(0..40),
            false => i64::MAX - rng.random_range(0..40),
        }
    )
}

fn random_wanted(rng: &mut StdRng, subject: &Subject, step: usize) -> Wanted {
    let soon = Timestamp::from_second(Timestamp::now().as_second() + 3600).unwrap();
    let wanted = Wanted {
        subject: subject.clone(),
        service: rng.random_range(0..2),
        args: json!({ "repo": odd_value(rng, 2), "n": step }),
        amount: pick(rng, &[0, 1, 1, 1, 2, 3, 8, 30]),
        key: rng
            .random_bool(0.3)
            .then(|| format!("key-{}", rng.random_range(0..3))),
        run_at: rng.random_bool(0.1).then_some(soon),
        priority: rng.random_range(1..5),
    };
    match (&wanted.key, rng.random_bool(0.5)) {
        // A repeated submission with the same key.
        (Some(_), true) => Wanted {
            args: json!({ "repo": "same" }),
            amount: 1,
            service: 1,
            run_at: None,
            priority: pick(rng, &[1, 1, 1, 2]),
            ..wanted
        },
        _ => wanted,
    }
}

/// Where a job is in a list, which is the same number on both sides.
fn position(jobs: &[(i64, i64)], is_it: impl Fn(&(i64, i64)) -> bool) -> Option<i64> {
    jobs.iter().position(is_it).map(|n| n as i64)
}

/// Runs one case. Returns the number of compared steps, or `None` if the clock has entered another window.
async fn case(rng: &mut StdRng, ours: &mut Side, theirs: &mut Side) -> Option<usize> {
    let minute = ours.minute().await;
    let limits = limits(rng);
    let rules = Arc::new(rules(rng));
    let anchored = rng.random_bool(0.7);
    let subjects = random_subjects(rng);
    let namer = Holders::load(&ours.client).await.unwrap();
    let holders: Vec<Holder> = subjects.iter().map(|subject| namer.subject(subject)).collect();
    let ids: Vec<Uuid> = holders.iter().map(|holder| holder.id).collect();
    let mut setup = limits;
    for (subject, holder) in subjects.iter().zip(&holders).filter(|_| anchored) {
        setup += &user_with_usage(rng, subject, holder.id);
        for meter in ["analysis", "specview"] {
            setup += &beyond_the_plan(rng, holder.id, meter);
        }
    }
    for side in [&*ours, &*theirs] {
        side.client.batch_execute(&setup).await.unwrap();
        side.weir.recount().await;
        services::apply(&mut side.weir.client().await, &entries(), &rules)
            .await
            .unwrap();
    }
    let database = &ours.weir.context.database;
    let (reserver, settler) = (Reserver::start(database), Settler::start(database));
    // The jobs in both databases, pairwise.
    let mut jobs: Vec<(i64, i64)> = Vec::new();
    let steps = rng.random_range(8..30);
    for step in 0..steps {
        if !jobs.is_empty() && rng.random_bool(0.3) {
            settle(rng, ours, theirs, &settler, &jobs).await;
            continue;
        }
        let who = rng.random_range(0..subjects.len());
        let wanted = random_wanted(rng, &subjects[who], step);
        let mut checked = dry_run(&theirs.client, &wanted).await;
        let mut ledger = through_the_ledger(&reserver, holders[who], &wanted).await;
        let mut sql = through_sql(&theirs.client, &wanted).await;
        if let (Some(one), Some(other)) = (ledger.1, sql.1)
            && !jobs.iter().any(|job| job.0 == one || job.1 == other)
        {
            jobs.push((one, other));
        }
        ledger.1 = ledger.1.and_then(|id| position(&jobs, |job| job.0 == id));
        sql.1 = sql.1.and_then(|id| position(&jobs, |job| job.1 == id));
        // The periods of a new user start with the first submission.
        for result in [&mut ledger.2, &mut sql.2, &mut checked.1] {
            if !anchored && let Some(quota) = result.as_object_mut() {
                quota.remove("reset_at");
            }
        }
        if ours.minute().await != minute {
            return None;
        }
        assert_eq!(ledger, sql, "step {step}: {wanted:?}, {rules:?}");
        agrees(&checked, &sql, &wanted);
    }
    let now = Timestamp::now();
    let (our_jobs, their_jobs): (Vec<i64>, Vec<i64>) = jobs.into_iter().unzip();
    let ledger = ours.rows(&ids, &our_jobs, now, rules.ttl).await;
    let sql = theirs.rows(&ids, &their_jobs, now, rules.ttl).await;
    if ours.minute().await != minute {
        return None;
    }
    let only = |these: &[String], those: &[String]| -> Vec<String> {
        let missing = these.iter().filter(|row| !those.contains(row));
        missing.cloned().collect()
    };
    let (of_ledger, of_sql) = (only(&ledger, &sql), only(&sql, &ledger));
    assert!(
        ledger == sql,
        "only the ledger wrote {of_ledger:#?}, and only SQL {of_sql:#?}"
    );
    Some(steps)
}

/// Compares a dry run to the submission right after it. A dry run is of a job without a time, a key or an equal job.
fn agrees(checked: &(String, Value, Vec<String>), submitted: &Outcome, wanted: &Wanted) {
    let (outcome, _, quota, full) = submitted;
    let is_accepted = ["admitted", "parked"].contains(outcome);
    if ["repeated", "folded", "key_reused"].contains(outcome)
        || wanted.run_at.is_some() && (is_accepted || *outcome == "too_many_waiting")
    {
        return;
    }
    let mut expected = ((*outcome).to_owned(), quota.clone(), full.clone());
    if is_accepted {
        // A dry run reserves nothing.
        for member in ["used", "limit", "ceiling", "reset_at"] {
            assert_eq!(checked.1[member], quota[member], "{member}: {wanted:?}");
        }
        let reserved = checked.1["reserved"].as_i64().unwrap();
        assert_eq!(quota["reserved"], reserved + wanted.amount, "{wanted:?}");
        expected.1 = checked.1.clone();
    }
    assert_eq!(*checked, expected, "{wanted:?}");
}

/// Completes a job on both sides, sometimes by an attempt that is not the current one.
async fn settle(rng: &mut StdRng, ours: &Side, theirs: &Side, settler: &Settler, jobs: &[(i64, i64)]) {
    let (one, other) = pick(rng, jobs);
    let start = "UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now(), attempted_by = '{elsewhere}' \
                 WHERE id = $1 AND state = 'available'";
    for (side, id) in [(ours, one), (theirs, other)] {
        side.client.execute(start, &[&id]).await.unwrap();
    }
    let attempt: i16 = pick(rng, &[1, 1, 1, 2]);
    let used: Option<i64> = pick(rng, &[None, Some(0), Some(1), Some(2), Some(100)]);
    let outputs = [
        Value::Null,
        json!({ "a": 1 }),
        json!(vec![1; 1200]),
        json!("x".repeat(4093)),
        json!("x".repeat(4094)),
        json!("x".repeat(4095)),
        json!({ "long": "x".repeat(5000) }),
    ];
    let output = pick(rng, &outputs);
    let success = Some(Success {
        attempt,
        job_created_at: None,
        output: output.clone(),
        used,
    });
    let ended = Ended {
        job_id: one,
        holder: None,
        success,
    };
    let ledger = match settler.settle(ended).await.unwrap() {
        Settled::Done { charged } => ("done".to_owned(), charged),
        Settled::FencedOut => ("fenced_out".to_owned(), 0),
    };
    let row = theirs
        .client
        .query_one(
            "SELECT outcome, charged FROM weir_complete($1, $2, $3, $4)",
            &[&other, &i32::from(attempt), &output, &used],
        )
        .await
        .unwrap();
    let sql: (String, i64) = (row.get("outcome"), row.get("charged"));
    assert_eq!(ledger, sql, "attempt {attempt}, used {used:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ledger_and_sql_decide_and_write_the_same() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("WEIR_SEED").unwrap_or_else(rand::random);
    let cases = number("WEIR_CASES");
    eprintln!("WEIR_SEED={seed}");
    let (mut ours, mut theirs) = (Side::new().await, Side::new().await);
    let mut rng = StdRng::seed_from_u64(seed);
    let (started, mut steps, mut compared) = (Instant::now(), 0, 0);
    while compared < cases.unwrap_or(150) && (cases.is_some() || started.elapsed() < MAX_WAIT) {
        if let Some(more) = case(&mut rng, &mut ours, &mut theirs).await {
            (steps, compared) = (steps + more, compared + 1);
        }
    }
    eprintln!("{steps} steps of {compared} cases in {:?}", started.elapsed());
    assert!(compared >= 10, "only {compared} cases were compared");
    for side in [ours, theirs] {
        let beyond = "SELECT (SELECT count(*) FROM quota_reservations WHERE overage > 0), \
                             (SELECT count(*) FROM usage_events WHERE overage > 0)";
        let beyond = side.client.query_one(beyond, &[]).await.unwrap();
        let (reserved, charged): (i64, i64) = (beyond.get(0), beyond.get(1));
        eprintln!("overage: {reserved} reserved, {charged} charged");
        assert!(reserved > 0 || compared < 100, "no ceiling was ever of use");
        drop(side.client);
        // Limits changed under waiting and running jobs. The totals must still be correct.
        let complaints = side.weir.complaints().await;
        let totals: Vec<_> = complaints
            .iter()
            .filter(|one| one.starts_with("I3") || one.starts_with("I6"))
            .collect();
        assert!(totals.is_empty(), "{totals:#?}");
        side.weir.abandon().await;
    }
}

/// The totals of a user's account of a meter, with the total of each grant over all its draws.
const TOTALS: &str = "
    SELECT 'balance' AS what, to_jsonb(x)::text AS row FROM (
        SELECT b.span, b.used, b.reserved, b.granted_limit, b.from_grants FROM quota_balances b
        WHERE b.user_id = $1 AND (b.used, b.reserved) <> (0, 0)) x
    UNION ALL SELECT 'grant', to_jsonb(g)::text FROM grants g WHERE g.user_id = $1
    UNION ALL SELECT 'draws', to_jsonb(x)::text FROM (
        SELECT d.grant_id, sum(d.amount) FILTER (WHERE d.charged IS NULL) AS open, sum(d.charged) AS charged
        FROM grant_draws d JOIN grants g ON g.id = d.grant_id WHERE g.user_id = $1 GROUP BY 1) x
    UNION ALL SELECT 'reservation', to_jsonb(x)::text FROM (
        SELECT r.reserved_amount, r.from_grants, r.overage, r.windows FROM quota_reservations r WHERE r.user_id = $1
        ORDER BY r.job_id) x
    UNION ALL SELECT 'usage', to_jsonb(x)::text FROM (
        SELECT u.quota_amount, u.from_grants, u.overage FROM usage_events u WHERE u.user_id = $1) x
    ORDER BY 1, 2";

async fn totals(side: &Side, user: Uuid) -> Vec<String> {
    let rows = side.client.query(TOTALS, &[&user]).await.unwrap();
    rows.iter()
        .map(|row| format!("{}: {}", row.get::<_, &str>("what"), row.get::<_, &str>("row")))
        .collect()
}

/// Starts an attempt at a job.
const START: &str = "UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now(), \
                     attempted_by = '{elsewhere}' WHERE id = $1";

/// Extends a job in steps, until one is refused. Returns the last outcome and its quota.
async fn extend(client: &Client, job_id: i64, more: &[i64]) -> (String, Value) {
    let mut extended = ("extended".to_owned(), Value::Null);
    for more in more {
        let row = client
            .query_one(
                "SELECT outcome, quota FROM weir_extend($1, 1, $2)",
                &[&job_id, more],
            )
            .await
            .unwrap();
        extended = (row.get("outcome"), row.get("quota"));
        if extended.0 != "extended" {
            break;
        }
    }
    extended
}

/// Runs one extension; `None` if there was nothing to compare.
async fn extension(rng: &mut StdRng, ours: &Side, theirs: &Side) -> Option<&'static str> {
    let minute = ours.minute().await;
    let rules = Arc::new(rules(rng));
    let id = uuid::Builder::from_random_bytes(rng.random()).into_uuid();
    let subject = Subject::from(id);
    let holder = Holders::load(&ours.client).await.unwrap().subject(&subject);
    let mut setup = limits(rng);
    setup += &format!(
        "INSERT INTO users (id) VALUES ('{id}'); \
         INSERT INTO user_subscriptions (user_id, plan_id, current_period_start) \
             SELECT '{id}', id, date_trunc('day', now()) FROM subscription_plans WHERE tier = '{}'; \
         INSERT INTO usage_events (user_id, event_type, quota_amount, period_start) \
         VALUES ('{id}', 'specview', {}, period_start_of('{id}', now())); ",
        pick(rng, &common::PLANS),
        rng.random_range(0..40)
    );
    setup += &beyond_the_plan(rng, id, "specview");
    for side in [ours, theirs] {
        side.client.batch_execute(&setup).await.unwrap();
        side.weir.recount().await;
        services::apply(&mut side.weir.client().await, &entries(), &rules)
            .await
            .unwrap();
    }
    let database = &ours.weir.context.database;
    let reserver = Reserver::start(database);
    let settler = Settler::start(database);
    let amount = rng.random_range(0..15);
    let more: Vec<i64> = (0..rng.random_range(1..4))
        .map(|_| rng.random_range(1..15))
        .collect();
    let whole = Wanted {
        subject,
        service: 1,
        args: json!({}),
        amount: amount + more.iter().sum::<i64>(),
        key: None,
        run_at: None,
        priority: 1,
    };
    let begun = through_sql(
        &theirs.client,
        &Wanted {
            amount,
            ..whole.clone()
        },
    )
    .await;
    let other = begun.1.filter(|_| begun.0 == "admitted")?;
    theirs.client.execute(START, &[&other]).await.unwrap();
    let extended = extend(&theirs.client, other, &more).await;
    let before = totals(ours, id).await;
    let ledger = through_the_ledger(&reserver, holder, &whole).await;
    if ours.minute().await != minute {
        return None;
    }
    if ledger.0 == "over_quota" {
        assert_eq!(extended.0, "over_quota", "{whole:?}, {more:?}");
        assert_eq!(totals(ours, id).await, before);
        return Some("over_quota");
    }
    assert_eq!(
        (extended.0.as_str(), &extended.1),
        ("extended", &ledger.2),
        "{whole:?}, {more:?}"
    );
    assert_eq!(
        totals(ours, id).await,
        totals(theirs, id).await,
        "{whole:?}, {more:?}"
    );
    ours.client.execute(START, &[&ledger.1]).await.unwrap();
    let used = rng.random_range(0..=whole.amount + 1);
    let ended = Ended {
        job_id: ledger.1?,
        holder: None,
        success: Some(Success {
            attempt: 1,
            job_created_at: None,
            output: Value::Null,
            used: Some(used),
        }),
    };
    settler.settle(ended).await.unwrap();
    let complete = "SELECT weir_complete($1, 1, NULL, $2)";
    theirs.client.execute(complete, &[&other, &used]).await.unwrap();
    let (ours_then, theirs_then) = (totals(ours, id).await, totals(theirs, id).await);
    if ours.minute().await != minute {
        return None;
    }
    assert_eq!(ours_then, theirs_then, "{whole:?}, {more:?}, used {used}");
    Some("extended")
}

#[tokio::test(flavor = "multi_thread")]
async fn extending_in_steps_equals_submitting_at_once() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("WEIR_SEED").unwrap_or_else(rand::random);
    let cases = number("WEIR_CASES");
    eprintln!("WEIR_SEED={seed}");
    let (ours, theirs) = (Side::new().await, Side::new().await);
    let mut rng = StdRng::seed_from_u64(seed);
    let started = Instant::now();
    let mut outcomes = BTreeMap::<&str, u64>::new();
    while outcomes.values().sum::<u64>() < cases.unwrap_or(150)
        && (cases.is_some() || started.elapsed() < MAX_WAIT)
    {
        if let Some(outcome) = extension(&mut rng, &ours, &theirs).await {
            *outcomes.entry(outcome).or_default() += 1;
        }
    }
    eprintln!("{outcomes:?} in {:?}", started.elapsed());
    assert!(outcomes.len() == 2, "{outcomes:?}");
    for side in [ours, theirs] {
        drop(side.client);
        let complaints = side.weir.complaints().await;
        let totals: Vec<_> = complaints
            .iter()
            .filter(|one| ["I3", "I6", "I7"].iter().any(|sum| one.starts_with(sum)))
            .collect();
        assert!(totals.is_empty(), "{totals:#?}");
        side.weir.abandon().await;
    }
}

/// Whether a statement succeeds. Rolls it back. Panics on any other error than 22023.
async fn is_accepted(client: &Client, sql: &str) -> bool {
    client.batch_execute("BEGIN").await.unwrap();
    let done = client.batch_execute(sql).await;
    client.batch_execute("ROLLBACK").await.unwrap();
    match done {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(
                error.code(),
                Some(&SqlState::INVALID_PARAMETER_VALUE),
                "{error:?}"
            );
            false
        }
    }
}

/// A statement that contains a number.
type Statement = Box<dyn Fn(i64) -> String>;

fn submit(args: &str, amount: i64, options: &str) -> String {
    format!("SELECT weir_submit('anne', 'analysis', {args}, {amount}, {options})")
}

fn bytes(count: i64) -> String {
    format!("repeat('x', {count})")
}

/// The name of each limit, its constant in Rust, and a statement that SQL accepts up to there. `job` runs its first
/// attempt.
fn same_limits(job: i64) -> [(&'static str, i64, Statement); 11] {
    [
        (
            "amount of a submission",
            MAX_AMOUNT,
            Box::new(|amount| submit("'{}'", amount, "'{}'")),
        ),
        (
            "bytes of an idempotency key",
            MAX_KEY as i64,
            Box::new(|count| {
                submit(
                    "'{}'",
                    1,
                    &format!("jsonb_build_object('idempotency_key', {})", bytes(count)),
                )
            }),
        ),
        (
            "bytes of arguments",
            MAX_BODY as i64,
            Box::new(|count| {
                submit(
                    &format!(
                        "jsonb_build_object('a', {})",
                        bytes(count - r#"{"a": ""}"#.len() as i64)
                    ),
                    1,
                    "'{}'",
                )
            }),
        ),
        (
            "seconds until a job runs",
            MAX_AHEAD.as_secs(),
            Box::new(|seconds| {
                let at = format!(
                    "jsonb_build_object('run_at', clock_timestamp() + make_interval(secs => {seconds}))"
                );
                submit("'{}'", 1, &at)
            }),
        ),
        (
            "seconds until a retry",
            MAX_AHEAD.as_secs(),
            Box::new(move |seconds| {
                format!(
                    "SELECT weir_fail({job}, 1, 'x', clock_timestamp() + make_interval(secs => {seconds}))"
                )
            }),
        ),
        (
            "amount of an extension",
            MAX_AMOUNT,
            Box::new(move |more| format!("SELECT weir_extend({job}, 1, {more})")),
        ),
        (
            "bytes of an output",
            MAX_OUTPUT as i64,
            Box::new(move |count| format!("SELECT weir_complete({job}, 1, to_jsonb({}))", bytes(count - 2))),
        ),
        (
            "bytes of a progress message",
            Progress::MAX_MESSAGE as i64,
            Box::new(move |count| format!("SELECT weir_progress({job}, 1, 0.5, {})", bytes(count))),
        ),
        (
            "bytes of a subject",
            MAX_BYTES as i64,
            Box::new(|count| format!("SELECT weir_holder({})", bytes(count))),
        ),
        (
            "priority of a job",
            i64::from(LAST_PRIORITY),
            Box::new(|priority| submit("'{}'", 1, &format!("'{{\"priority\": {priority}}}'"))),
        ),
        (
            "levels of a unique_by member",
            unique_key::MAX_DEPTH as i64,
            Box::new(|levels| {
                let member = format!("(repeat('[', {levels}) || repeat(']', {levels}))::jsonb");
                format!(
                    "SELECT unique_key_of(gen_random_uuid(), 'x', jsonb_build_object('a', {member}), '{{a}}')"
                )
            }),
        ),
    ]
}

/// Each limit is a constant in Rust and a number in SQL.
#[tokio::test(flavor = "multi_thread")]
async fn sql_and_rust_have_the_same_limits() {
    let weir = Weir::new().await;
    let (job, client) = (
        weir.analyse(Who::User(weir.user("enterprise").await), "a_test.go", GO_TESTS)
            .await,
        weir.client().await,
    );
    weir.start_elsewhere(job).await;
    for (limit, value, statement) in same_limits(job) {
        // A statement starts some time before it reads the clock.
        let beyond = if limit.starts_with("seconds") {
            value + 60
        } else {
            value + 1
        };
        assert!(is_accepted(&client, &statement(value)).await, "{limit}: {value}");
        assert!(
            !is_accepted(&client, &statement(beyond)).await,
            "{limit}: {beyond}"
        );
    }
    weir.abandon().await;
}
