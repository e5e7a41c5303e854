//! Billing that follows a payment provider: paid periods, and events of several subscriptions.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Answer, GO_TESTS, Weir, Who};
use jiff::{Timestamp, ToSpan};
use serde_json::{Value, json};
use uuid::Uuid;
use weir_ledger::control::{self, Scope};

/// A backend that reports the provider's events.
struct Backend<'a> {
    weir: &'a Weir,
    bearer: String,
    events: AtomicU64,
}

impl<'a> Backend<'a> {
    async fn new(weir: &'a Weir) -> Self {
        let key = format!("weir_sk_{}", Uuid::new_v4().simple());
        let mut client = weir.client().await;
        control::create_key(&mut client, "shell:test", &key[8..], &key, &[Scope::Admin], None)
            .await
            .unwrap();
        Self {
            weir,
            bearer: format!("Bearer {key}"),
            events: AtomicU64::new(0),
        }
    }

    async fn put(&self, user: Uuid, body: &Value) -> Answer {
        let path = format!("/admin/holders/{user}/plan");
        self.weir
            .with_key("PUT", &path, &self.bearer, "-", &body.to_string())
            .await
    }

    /// Sends an event with these members. Default: a new id, the plan `pro`, and the current time.
    async fn event(&self, user: Uuid, members: Value) -> Answer {
        let id = format!("evt_{}", self.events.fetch_add(1, Ordering::Relaxed));
        let mut body = json!({ "plan": "pro", "event_id": id, "occurred_at": Timestamp::now() });
        body.as_object_mut()
            .unwrap()
            .extend(members.as_object().unwrap().clone());
        self.put(user, &body).await
    }

    async fn applied(&self, user: Uuid, members: Value) {
        let answer = self.event(user, members).await;
        assert_eq!(answer.body["applied"], true, "{}", answer.body);
        assert!(answer.body.get("reason").is_none(), "{}", answer.body);
    }
}

/// Midnight some days ago.
fn day(days_ago: i64) -> Timestamp {
    let midnight = Timestamp::now().as_second() / 86_400 * 86_400;
    Timestamp::from_second(midnight).unwrap() - (24 * days_ago).hours()
}

fn next_month(at: Timestamp) -> Timestamp {
    let at = at.to_zoned(jiff::tz::TimeZone::UTC);
    at.checked_add(1.month()).unwrap().timestamp()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quotas_month_is_the_paid_month() {
    let weir = Weir::new().await;
    let (backend, client) = (Backend::new(&weir).await, weir.client().await);
    let user = weir.user("free").await;
    let who = Who::User(user);
    let anchor = "UPDATE user_subscriptions SET current_period_start = $2 WHERE user_id = $1";
    client.execute(anchor, &[&user, &day(25)]).await.unwrap();
    weir.use_up_at(user, "analysis", 7, day(20)).await;
    weir.use_up_at(user, "analysis", 3, day(5)).await;
    let job = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let quota = async || {
        assert_eq!(weir.complaints().await, Vec::<String>::new());
        let quota = weir.quota(who, "analysis").await;
        (
            quota["used"].as_i64().unwrap(),
            quota["reserved"].as_i64().unwrap(),
            quota["reset_at"].clone(),
        )
    };
    let reset = |start: Timestamp| json!(next_month(start));
    assert_eq!(quota().await, (10, 1, reset(day(25))));

    let paid = json!({ "period_start": day(10), "period_end": next_month(day(10)), "subscription": "sub_1" });
    backend.applied(user, paid.clone()).await;
    assert_eq!(
        quota().await,
        (3, 1, reset(day(10))),
        "usage and reservations since then"
    );
    // The reservation is charged in the same month.
    let working = weir.work().await;
    weir.finished(job, who).await;
    weir.released(who, "analysis").await;
    working.stop().await;
    assert_eq!(quota().await, (4, 0, reset(day(10))));
    let path = format!("/admin/holders/{user}/usage?meter=analysis");
    let months = weir.with_key("GET", &path, &backend.bearer, "-", "").await.body;
    let months: Vec<_> = months["periods"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["used"].clone())
        .collect();
    assert_eq!(months, [4, 7]);

    // A repetition, and an event without a period.
    backend.applied(user, paid).await;
    backend.applied(user, json!({ "plan": "pro_plus" })).await;
    assert_eq!(quota().await, (4, 0, reset(day(10))));
    // Back to a month that contains all of it.
    backend.applied(user, json!({ "period_start": day(25) })).await;
    assert_eq!(quota().await, (11, 0, reset(day(25))));
    // An adjustment stays where it leaves something, and moves with the usage that it corrects otherwise.
    let adjust = async |amount: i64| {
        let body = json!({ "meter": "analysis", "amount": amount, "reason": "a test" }).to_string();
        let path = format!("/admin/holders/{user}/adjustments");
        let answer = weir
            .with_key("POST", &path, &backend.bearer, &amount.to_string(), &body)
            .await;
        assert_eq!(answer.status, 201, "{}", answer.body);
    };
    adjust(-5).await;
    backend.applied(user, json!({ "period_start": day(10) })).await;
    assert_eq!(quota().await, (4, 0, reset(day(10))), "of 7 - 5 and 4");
    backend.applied(user, json!({ "period_start": day(25) })).await;
    assert_eq!(quota().await, (6, 0, reset(day(25))));
    adjust(-4).await;
    backend.applied(user, json!({ "period_start": day(10) })).await;
    assert_eq!(quota().await, (2, 0, reset(day(10))), "7 - 9 cannot stay");
    // A paid year has months, and a later start leaves all usage behind.
    let start = Timestamp::now();
    let year = start
        .to_zoned(jiff::tz::TimeZone::UTC)
        .checked_add(1.year())
        .unwrap();
    backend
        .applied(
            user,
            json!({ "period_start": start, "period_end": year.timestamp() }),
        )
        .await;
    assert_eq!(quota().await.0, 0);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_of_two_merged_months_may_exceed_one_months_limit() {
    let weir = Weir::new().await;
    let (backend, client) = (Backend::new(&weir).await, weir.client().await);
    let user = weir.user("free").await;
    let anchor = "UPDATE user_subscriptions SET current_period_start = $2 WHERE user_id = $1";
    client.execute(anchor, &[&user, &day(5)]).await.unwrap();
    weir.use_up_at(user, "analysis", 40, day(6)).await;
    weir.use_up_at(user, "analysis", 40, day(4)).await;
    // Both months are in the plan's limit of 50.
    assert_eq!(weir.complaints().await, Vec::<String>::new());
    backend
        .applied(user, json!({ "plan": "free", "period_start": day(10) }))
        .await;
    let quota = weir.quota(Who::User(user), "analysis").await;
    assert_eq!((&quota["used"], &quota["remaining"]), (&json!(80), &json!(0)));
    assert_eq!(weir.complaints().await, Vec::<String>::new());
    weir.end().await;
}

/// Periods of every length and anchor: the anchor found has both ends as starts of periods.
#[tokio::test(flavor = "multi_thread")]
async fn every_paid_period_of_whole_months_has_an_anchor() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let sql = "
        SELECT count(*), count(*) FILTER (WHERE NOT (
            (SELECT p.period_start FROM billing_period(x.found, x.s) p) = x.s
            AND (SELECT p.period_start FROM billing_period(x.found, x.e) p) = x.e)
            OR x.found IS NULL)
        FROM (
            SELECT p.s, p.e, paid_anchor(p.s, p.e, known) AS found
            FROM generate_series(timestamp '2027-10-01 08:15', '2028-04-01', '1 day') a,
                 generate_series(0, 13) k, unnest(ARRAY[1, 3, 12]) n,
                 unnest(ARRAY[timestamptz '2000-01-01 00:00:00+00', '2027-01-31 08:15:00+00']) known,
                 LATERAL (SELECT (a + make_interval(months => k)) AT TIME ZONE 'UTC' AS s,
                                 (a + make_interval(months => k + n)) AT TIME ZONE 'UTC' AS e) p
        ) x";
    let row = client.query_one(sql, &[]).await.unwrap();
    assert!(row.get::<_, i64>(0) > 10_000);
    assert_eq!(row.get::<_, i64>(1), 0);
    let row = client
        .query_one(
            "SELECT paid_anchor('2027-02-28Z', NULL, '2026-12-31Z') = '2026-12-31Z', \
                    paid_anchor('2027-02-28Z', '2027-03-31Z', '2026-12-28Z') = '2023-03-31Z', \
                    paid_anchor('2027-02-28Z', '2027-03-28Z', '2026-12-31Z') = '2027-02-28Z'",
            &[],
        )
        .await
        .unwrap();
    assert_eq!([0, 1, 2].map(|column| row.get::<_, bool>(column)), [true; 3]);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_paid_periods_are_refused() {
    let weir = Weir::new().await;
    let backend = Backend::new(&weir).await;
    let user = weir.user("free").await;
    let start = day(3);
    for (members, says) in [
        (json!({ "period_end": start }), "period_end needs period_start"),
        (
            json!({ "period_start": start, "period_end": start + 240.hours() }),
            "a whole number of months",
        ),
        (
            json!({ "period_start": start, "period_end": start - 240.hours() }),
            "a whole number of months",
        ),
        (
            json!({ "period_start": start, "period_end": start }),
            "a whole number of months",
        ),
        (
            json!({ "period_start": "1969-12-31T00:00:00Z" }),
            "period_start must be after 1970",
        ),
        (
            json!({ "period_start": "2062-01-31T00:00:00Z" }),
            "a year in the future",
        ),
        (json!({ "subscription": "" }), "1 to 255 bytes"),
        (json!({ "subscription": "x".repeat(256) }), "1 to 255 bytes"),
    ] {
        let answer = backend.event(user, members).await;
        assert_eq!(answer.status, 422, "{}", answer.body);
        let detail = answer.body["detail"].as_str().unwrap();
        assert!(detail.contains(says), "{detail}");
    }
    let rows = "SELECT count(*) FROM plan_changes";
    let row = weir.client().await.query_one(rows, &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 0);
    weir.end().await;
}

/// Each order of `count` events.
fn orders(count: usize) -> Vec<Vec<usize>> {
    match count {
        0 => vec![Vec::new()],
        _ => orders(count - 1)
            .into_iter()
            .flat_map(|order| {
                (0..count).map(move |at| {
                    let mut order = order.clone();
                    order.insert(at, count - 1);
                    order
                })
            })
            .collect(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_arrival_does_not_change_the_plan() {
    let weir = Weir::new().await;
    let backend = Backend::new(&weir).await;
    type Event = (&'static str, &'static str, i64);
    let cases: [(&[Event], &str); 9] = [
        // Another subscription starts before the first one ends, in the same second, and after it.
        (
            &[
                ("sub_a", "pro", 1),
                ("sub_b", "pro_plus", 3),
                ("sub_a", "free", 5),
            ],
            "pro_plus",
        ),
        (
            &[
                ("sub_a", "pro", 1),
                ("sub_b", "pro_plus", 3),
                ("sub_a", "free", 3),
            ],
            "pro_plus",
        ),
        (
            &[
                ("sub_a", "pro", 1),
                ("sub_b", "pro_plus", 5),
                ("sub_a", "free", 3),
            ],
            "pro_plus",
        ),
        // The end of one subscription is its last event.
        (&[("sub_a", "pro", 1), ("sub_a", "free", 1)], "free"),
        // Both have ended.
        (
            &[
                ("sub_a", "pro", 1),
                ("sub_b", "pro", 2),
                ("sub_b", "free", 4),
                ("sub_a", "free", 4),
            ],
            "free",
        ),
        // The later one ends, and the earlier one is still paid.
        (
            &[
                ("sub_a", "pro", 1),
                ("sub_b", "enterprise", 3),
                ("sub_b", "free", 5),
            ],
            "pro",
        ),
        // The plan comes from the last event of the newest other one.
        (
            &[
                ("sub_a", "pro_plus", 2),
                ("sub_b", "pro", 1),
                ("sub_c", "enterprise", 3),
                ("sub_c", "free", 4),
            ],
            "pro_plus",
        ),
        (
            &[
                ("sub_a", "pro", 1),
                ("sub_a", "pro_plus", 2),
                ("sub_b", "enterprise", 3),
                ("sub_b", "free", 4),
            ],
            "pro_plus",
        ),
        // It has ended already.
        (
            &[
                ("sub_a", "pro", 1),
                ("sub_b", "enterprise", 2),
                ("sub_a", "free", 3),
                ("sub_b", "free", 4),
            ],
            "free",
        ),
    ];
    for (events, plan) in cases {
        for order in orders(events.len()) {
            let user = weir.user("free").await;
            let mut last = Value::Null;
            for at in &order {
                let (subscription, plan, second) = events[*at];
                let occurred_at = Timestamp::from_second(1_800_000_000 + second).unwrap();
                let members =
                    json!({ "plan": plan, "subscription": subscription, "occurred_at": occurred_at });
                let answer = backend.event(user, members).await;
                assert_eq!(answer.status, 200, "{}", answer.body);
                let (applied, reason) = (&answer.body["applied"], answer.body.get("reason"));
                assert_eq!(*applied == false, reason.is_some(), "{}", answer.body);
                last = answer.body;
            }
            assert_eq!(last["plan"], plan, "{events:?} in the order {order:?}");
        }
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_subscription_ends_the_plan_and_the_month_come_from_another() {
    let weir = Weir::new().await;
    let backend = Backend::new(&weir).await;
    let user = weir.user("free").await;
    let (first, second) = (day(20), day(10));
    let event = |plan: &str, subscription: &str, at: Timestamp| json!({ "plan": plan, "subscription": subscription, "occurred_at": at });
    let paid = |mut members: Value| {
        members["period_start"] = members["occurred_at"].clone();
        members
    };
    let period = async || {
        let usage = weir.get("/api/usage", Who::User(user)).await.body;
        usage["period"]["start"]
            .as_str()
            .unwrap()
            .parse::<Timestamp>()
            .unwrap()
    };
    backend.applied(user, paid(event("pro", "sub_a", first))).await;
    backend
        .applied(user, paid(event("enterprise", "sub_b", second)))
        .await;
    assert_eq!(period().await, second);
    let end = event("free", "sub_b", day(5));
    let answer = backend.event(user, end).await.body;
    assert_eq!(
        (&answer["applied"], &answer["plan"]),
        (&json!(true), &json!("pro")),
        "{answer}"
    );
    assert_eq!(period().await, first, "its paid month");
    // One that ends at the period's end.
    backend.applied(user, event("enterprise", "sub_c", day(4))).await;
    let mut end = event("free", "sub_c", day(3));
    end["effective"] = json!("period_end");
    let answer = backend.event(user, end).await.body;
    assert_eq!(
        (&answer["plan"], &answer["next_plan"]["plan"]),
        (&json!("enterprise"), &json!("pro")),
        "{answer}"
    );
    // An end without a subscription ends all earlier ones.
    backend
        .applied(user, json!({ "plan": "free", "occurred_at": day(2) }))
        .await;
    backend.applied(user, event("enterprise", "sub_d", day(1))).await;
    let answer = backend.event(user, event("free", "sub_d", day(0))).await.body;
    assert_eq!(
        (&answer["applied"], &answer["plan"]),
        (&json!(true), &json!("free")),
        "{answer}"
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_scheduled_end_the_plan_and_the_month_come_from_another() {
    let weir = Weir::new().await;
    let backend = Backend::new(&weir).await;
    let (client, writer) = (weir.client().await, weir.writer_session().await);
    let event = |plan: &str, subscription: &str, at: Timestamp| json!({ "plan": plan, "subscription": subscription, "occurred_at": at });
    let paid = |mut members: Value| {
        members["period_start"] = members["occurred_at"].clone();
        members
    };
    let at_end = |mut members: Value| {
        members["effective"] = json!("period_end");
        members
    };
    // All scheduled times pass before maintenance runs. The first subscription goes on, or ends after the second one.
    for (first_month, ends_both, plan) in [(day(20), false, "pro"), (day(5), true, "free")] {
        let user = weir.user("free").await;
        let mut first = event("pro", "sub_a", day(20));
        first["period_start"] = json!(first_month);
        backend.applied(user, first).await;
        backend
            .applied(user, paid(event("enterprise", "sub_b", day(10))))
            .await;
        weir.use_up_at(user, "analysis", 3, day(15)).await;
        weir.use_up_at(user, "analysis", 4, day(5)).await;
        if ends_both {
            backend.event(user, at_end(event("free", "sub_a", day(4)))).await;
        }
        backend
            .applied(user, at_end(event("free", "sub_b", day(3))))
            .await;
        let status = control::plan_status(&client, user).await.unwrap();
        assert_eq!(
            (status.plan.as_str(), status.next.as_deref()),
            ("enterprise", Some("pro"))
        );
        let all_pass = format!(
            "UPDATE plan_changes SET due_at = due_at - interval '40 days' WHERE user_id = '{user}';
             UPDATE user_subscriptions SET next_plan_at = next_plan_at - interval '40 days' WHERE user_id = '{user}'"
        );
        client.batch_execute(&all_pass).await.unwrap();
        assert_eq!(control::apply_scheduled(&writer).await.unwrap(), 1);
        let status = control::plan_status(&client, user).await.unwrap();
        assert_eq!((status.plan.as_str(), status.next), (plan, None));
        if !ends_both {
            let usage = weir.get("/api/usage", Who::User(user)).await.body;
            assert_eq!(usage["period"]["start"], json!(first_month), "{usage}");
            assert_eq!(weir.quota(Who::User(user), "analysis").await["used"], 7);
        }
        assert_eq!(weir.complaints().await, Vec::<String>::new());
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_change_keeps_its_time_when_its_subscription_returns() {
    let weir = Weir::new().await;
    let backend = Backend::new(&weir).await;
    for (scheduled, with_second) in [("free", true), ("pro_plus", true), ("free", false)] {
        let user = weir.user("free").await;
        let event = |plan: &str, subscription: &str, at: Timestamp| json!({ "plan": plan, "subscription": subscription, "occurred_at": at });
        let mut first = event("pro", "sub_a", day(20));
        first["period_start"] = json!(day(20));
        backend.applied(user, first).await;
        let mut at_end = event(scheduled, "sub_a", day(15));
        at_end["effective"] = json!("period_end");
        if with_second {
            // The scheduled change comes before or after the other subscription.
            for change in [&at_end, &event("enterprise", "sub_b", day(12))] {
                backend.applied(user, change.clone()).await;
            }
        } else {
            backend.applied(user, event("enterprise", "sub_b", day(18))).await;
            let answer = backend.event(user, at_end).await.body;
            assert_eq!(answer["reason"], "superseded", "{answer}");
        }
        let mut renewed = event("enterprise", "sub_b", day(10));
        renewed["period_start"] = json!(day(10));
        backend.applied(user, renewed).await;
        let answer = backend.event(user, event("free", "sub_b", day(5))).await.body;
        assert_eq!(
            (&answer["applied"], &answer["plan"]),
            (&json!(true), &json!("pro")),
            "{answer}"
        );
        let next = &answer["next_plan"];
        assert_eq!(next["plan"], scheduled, "{answer}");
        let usage = weir.get("/api/usage", Who::User(user)).await.body;
        assert_eq!(next["at"], usage["period"]["end"], "{usage}");
        assert_eq!(usage["period"]["start"], json!(day(20)), "{usage}");
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_subscription_is_not_the_scheduled_plan_of_another() {
    let weir = Weir::new().await;
    let backend = Backend::new(&weir).await;
    let user = weir.user("free").await;
    let event = |plan: &str, subscription: &str, at: Timestamp| json!({ "plan": plan, "subscription": subscription, "occurred_at": at });
    let paid = |plan: &str, subscription: &str, at: Timestamp| {
        let mut members = event(plan, subscription, at);
        members["period_start"] = json!(at);
        members
    };
    let at_end = |plan: &str, subscription: &str, at: Timestamp| {
        let mut members = event(plan, subscription, at);
        members["effective"] = json!("period_end");
        members
    };
    // The first one ends before the second.
    backend.applied(user, paid("pro", "sub_a", day(20))).await;
    backend.applied(user, paid("enterprise", "sub_b", day(6))).await;
    let answer = backend.event(user, at_end("free", "sub_a", day(5))).await.body;
    assert_eq!(answer["reason"], "superseded", "{answer}");
    let answer = backend.event(user, at_end("free", "sub_b", day(4))).await.body;
    let usage = weir.get("/api/usage", Who::User(user)).await.body;
    assert_eq!(usage["period"]["start"], json!(day(6)), "{usage}");
    let next = json!({ "plan": "free", "at": usage["period"]["end"] });
    assert_eq!(
        (&answer["plan"], &answer["next_plan"]),
        (&json!("enterprise"), &next),
        "{answer}"
    );
    // The first one ends after the second.
    let user = weir.user("free").await;
    let mut first = paid("pro", "sub_a", day(12));
    first["period_start"] = json!(day(5));
    backend.applied(user, first).await;
    backend.applied(user, paid("enterprise", "sub_b", day(10))).await;
    backend.event(user, at_end("free", "sub_a", day(4))).await;
    backend.applied(user, at_end("free", "sub_b", day(3))).await;
    let (client, writer) = (weir.client().await, weir.writer_session().await);
    let mut plans = Vec::new();
    for _ in 0..3 {
        let status = control::plan_status(&client, user).await.unwrap();
        plans.push((status.plan, status.next));
        let until_the_next = format!(
            "UPDATE plan_changes c SET due_at = c.due_at - (s.next_plan_at - now())
             FROM user_subscriptions s WHERE s.user_id = c.user_id AND c.user_id = '{user}' AND s.next_plan_at > now();
             UPDATE user_subscriptions SET next_plan_at = now() WHERE user_id = '{user}' AND next_plan_at > now()"
        );
        client.batch_execute(&until_the_next).await.unwrap();
        control::apply_scheduled(&writer).await.unwrap();
    }
    let expected = [("enterprise", Some("pro")), ("pro", Some("free")), ("free", None)];
    assert_eq!(
        plans,
        expected.map(|(now, next)| (now.to_owned(), next.map(str::to_owned)))
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_change_keeps_its_time_when_the_periods_move() {
    let weir = Weir::new().await;
    let backend = Backend::new(&weir).await;
    let user = weir.user("free").await;
    let event = |plan: &str, subscription: &str, at: Timestamp| json!({ "plan": plan, "subscription": subscription, "occurred_at": at });
    backend.applied(user, event("pro", "sub_a", day(9))).await;
    let mut at_end = event("free", "sub_a", day(8));
    at_end["effective"] = json!("period_end");
    let answer = backend.event(user, at_end).await.body;
    let scheduled = answer["next_plan"].clone();
    assert_eq!(scheduled["plan"], "free", "{answer}");
    let mut second = event("enterprise", "sub_b", day(7));
    // The months start on another day than the scheduled change.
    let is_first = day(6).to_string()[8..10] == *"01";
    second["period_start"] = json!(day(if is_first { 5 } else { 6 }));
    backend.applied(user, second).await;
    let answer = backend.event(user, event("free", "sub_b", day(1))).await.body;
    assert_eq!(
        (&answer["plan"], &answer["next_plan"]),
        (&json!("pro"), &scheduled),
        "{answer}"
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_superseded_subscription_is_not_applied() {
    let weir = Weir::new().await;
    let backend = Backend::new(&weir).await;
    let user = weir.user("free").await;
    backend.applied(user, json!({ "subscription": "sub_a" })).await;
    backend
        .applied(user, json!({ "plan": "pro_plus", "subscription": "sub_b" }))
        .await;
    for effective in ["now", "period_end"] {
        let event = json!({ "plan": "free", "event_id": effective, "occurred_at": Timestamp::now(),
                            "subscription": "sub_a", "effective": effective });
        for repeated in [false, true] {
            let answer = backend.put(user, &event).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            assert_eq!(
                [
                    &answer.body["applied"],
                    &answer.body["reason"],
                    &answer.body["repeated"],
                    &answer.body["plan"]
                ],
                [
                    &json!(false),
                    &json!("superseded"),
                    &json!(repeated),
                    &json!("pro_plus")
                ]
            );
            assert_eq!(answer.body["next_plan"], Value::Null);
        }
    }
    let long_ago = json!({ "subscription": "sub_c", "occurred_at": "2020-01-01T00:00:00Z" });
    let answer = backend.event(user, long_ago).await;
    assert_eq!(answer.body["reason"], "older");
    // An end that names no subscription ends any.
    backend.applied(user, json!({ "plan": "free" })).await;
    weir.end().await;
}
