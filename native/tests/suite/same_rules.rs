//! Rules that stand in two places, which must agree.
//!
//! `WEIR_CASES` sets the number of random extensions, and `WEIR_SEED` repeats a run. A failure prints both.

use crate::common;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::common::{GO_TESTS, Weir, Who};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use uuid::Uuid;
use weir::api::{MAX_AHEAD, MAX_BODY, MAX_KEY};
use weir::config::service::MAX_AMOUNT;
use weir::handler::MAX_OUTPUT;
use weir_ledger::attempts::Progress;
use weir_ledger::catalogue::services::{self, ServiceAmount, ServiceEntry};
use weir_ledger::meter::Meter;
use weir_ledger::reservation::LAST_PRIORITY;
use weir_ledger::rules::{Rules, SlotLimits};
use weir_ledger::settlement::MAX_PROMOTED;
use weir_ledger::unique_key;
use weir_policy::span::Span;
use weir_policy::subject::MAX_BYTES;

/// The maximum time of a run, on any machine.
const MAX_WAIT: Duration = Duration::from_secs(45);

/// One of two databases.
struct Side {
    weir: Weir,
    client: Client,
}

impl Side {
    async fn new() -> Self {
        let weir = Weir::new().await;
        let client = weir.client().await;
        Self { weir, client }
    }

    async fn minute(&self) -> i64 {
        let minute = "SELECT floor(extract(epoch FROM clock_timestamp()) / 60)::bigint";
        self.client.query_one(minute, &[]).await.unwrap().get(0)
    }
}

fn entry() -> ServiceEntry {
    ServiceEntry {
        name: "specview".to_owned(),
        meter: Meter::of("specview"),
        kind: "specview:generate".to_owned(),
        max_attempts: 3,
        unique_by: Vec::new(),
        amount: ServiceAmount::Caller,
        retry: None,
        timeout: Duration::from_secs(60),
        expires_in: None,
    }
}

/// The outcome of a submission, its job, and the quota without the full windows.
async fn submit_amount(client: &Client, user: Uuid, amount: i64) -> (String, Option<i64>, Value) {
    let submit = "SELECT outcome, job_id, quota FROM weir_submit($1, 'specview', '{}', $2)";
    let row = client
        .query_one(submit, &[&user.to_string(), &amount])
        .await
        .unwrap();
    let mut quota: Value = row.get::<_, Option<Value>>("quota").unwrap_or_default();
    if let Some(quota) = quota.as_object_mut() {
        quota.remove("windows");
    }
    (row.get("outcome"), row.get("job_id"), quota)
}

fn pick<T: Clone>(rng: &mut StdRng, of: &[T]) -> T {
    of[rng.random_range(0..of.len())].clone()
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
    let rules = rules(rng);
    let id = uuid::Builder::from_random_bytes(rng.random()).into_uuid();
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
        services::apply(&mut side.weir.client().await, &[entry()], &rules)
            .await
            .unwrap();
    }
    let amount = rng.random_range(0..15);
    let more: Vec<i64> = (0..rng.random_range(1..4))
        .map(|_| rng.random_range(1..15))
        .collect();
    let whole = amount + more.iter().sum::<i64>();
    let (outcome, submitted, _) = submit_amount(&theirs.client, id, amount).await;
    let other = submitted.filter(|_| outcome == "admitted")?;
    theirs.client.execute(START, &[&other]).await.unwrap();
    let extended = extend(&theirs.client, other, &more).await;
    let before = totals(ours, id).await;
    let at_once = submit_amount(&ours.client, id, whole).await;
    if ours.minute().await != minute {
        return None;
    }
    if at_once.0 == "over_quota" {
        assert_eq!(extended.0, "over_quota", "{amount}, {more:?}");
        assert_eq!(totals(ours, id).await, before);
        return Some("over_quota");
    }
    assert_eq!(
        (extended.0.as_str(), &extended.1),
        ("extended", &at_once.2),
        "{amount}, {more:?}"
    );
    assert_eq!(
        totals(ours, id).await,
        totals(theirs, id).await,
        "{amount}, {more:?}"
    );
    let job = at_once.1?;
    ours.client.execute(START, &[&job]).await.unwrap();
    let used = rng.random_range(0..=whole + 1);
    let complete = "SELECT weir_complete($1, 1, NULL, $2)";
    for (side, job) in [(ours, job), (theirs, other)] {
        side.client.execute(complete, &[&job, &used]).await.unwrap();
    }
    let (ours_then, theirs_then) = (totals(ours, id).await, totals(theirs, id).await);
    if ours.minute().await != minute {
        return None;
    }
    assert_eq!(ours_then, theirs_then, "{amount}, {more:?}, used {used}");
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
