//! Deliveries to webhooks: signed, once by id, and independent of other receivers' behaviour.

use crate::common::programs;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::common::process::command;
use crate::common::receiver::{Answers, Receiver};
use crate::common::{GO_TESTS, Weir, Who};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use uuid::Uuid;
use weir::outbound;
use weir::webhooks::{self, Revealed};
use weir_ledger::control::{self, Deliveries, Replay, Webhook};

const ALLOWED: [(&str, &str); 1] = [("WEBHOOK_PRIVATE_NETWORKS", "true")];

async fn add(weir: &Weir, url: &str, events: &[&str]) -> Revealed {
    let events: Vec<String> = events.iter().map(|event| (*event).to_owned()).collect();
    let (mut client, settings) = (weir.client().await, &weir.context.settings);
    let made = webhooks::add(&mut client, settings, "shell:test", url, &events, &[]).await;
    made.unwrap()
}

async fn webhook(weir: &Weir, id: Uuid) -> Webhook {
    let all = control::webhooks(&weir.client().await).await.unwrap();
    all.into_iter().find(|one| one.id == id).unwrap()
}

async fn deliveries(weir: &Weir, id: Uuid) -> Deliveries {
    webhook(weir, id).await.deliveries.unwrap()
}

/// Sends a test event, and returns its id.
async fn test(weir: &Weir, id: Uuid) -> String {
    let test = control::test_webhook(&mut weir.client().await, "shell:test", id).await;
    test.unwrap().event
}

/// The error of the last attempt, once one has failed.
async fn last_error(weir: &Weir, id: Uuid) -> String {
    weir.until("an attempt to fail", async || {
        deliveries(weir, id).await.last_error
    })
    .await
}

/// Waits until an event's last attempt has failed and its delivery has this state.
async fn failed(weir: &Weir, event: &str, state: &str) {
    let client = weir.client().await;
    weir.until("an attempt to fail", async || {
        let job = "SELECT 1 FROM river_job WHERE args ->> 'event' = $1 AND cardinality(errors) > 0 AND state::text = $2";
        client.query_opt(job, &[&event, &state]).await.unwrap()
    })
    .await;
}

/// Makes the next attempt of an event the last one, and waits for it.
async fn give_up(weir: &Weir, event: &str) {
    failed(weir, event, "retryable").await;
    let last = "UPDATE river_job SET state = 'available', scheduled_at = now(), max_attempts = attempt + 1 \
                WHERE args ->> 'event' = $1";
    weir.client().await.execute(last, &[&event]).await.unwrap();
    failed(weir, event, "discarded").await;
}

/// Emits this many test events at once.
async fn flood(weir: &Weir, id: Uuid, events: i32) {
    let deliver = "SELECT deliver(array_agg($1::uuid), array_agg(NULL::uuid), array_agg('evt_' || n), \
                    array_agg(jsonb_build_object('id', 'evt_' || n, 'type', 'webhook.test', 'data', '{}'::jsonb)::text)) \
                FROM generate_series(1, $2::int) AS n";
    weir.client()
        .await
        .execute(deliver, &[&id, &events])
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_receiver_gets_every_event_id() {
    let weir = Weir::with(&ALLOWED).await;
    let mut receiver = Receiver::new();
    let made = add(&weir, &receiver.url(), &["job.completed"]).await;
    let working = weir.work().await;
    let submit = async |users: usize| {
        let mut jobs = BTreeSet::new();
        for _ in 0..users {
            let who = Who::User(weir.user("free").await);
            jobs.insert(weir.analyse(who, "a_test.go", GO_TESTS).await);
        }
        jobs
    };
    let mut jobs = submit(4).await;
    weir.until("the first events", async || {
        (receiver.by_id().len() == 4).then_some(())
    })
    .await;
    receiver.kill();
    jobs.extend(submit(8).await);
    let error = last_error(&weir, made.webhook.id).await;
    assert!(error.contains("refused"), "{error}");
    assert!(!error.contains("127.0.0.1"), "{error}");
    receiver.start_again().await;
    weir.until("all events", async || {
        (receiver.by_id().len() == jobs.len()).then_some(())
    })
    .await;
    let delivered: BTreeSet<i64> = receiver
        .by_id()
        .values()
        .map(|one| one.event["data"]["job_id"].as_i64().unwrap())
        .collect();
    assert_eq!(delivered, jobs, "each job by one id");
    for one in receiver.received() {
        assert!(one.is_signed_by(&made.secret), "{one:?}");
        assert_eq!(one.event["id"], json!(one.id));
        let sent: i64 = one.timestamp.parse().unwrap();
        assert!((Timestamp::now().as_second() - sent).abs() < 120);
    }
    weir.until("nothing to wait", async || {
        let state = deliveries(&weir, made.webhook.id).await;
        (state.waiting == 0 && state.failed == 0 && state.last_error.is_none()).then_some(())
    })
    .await;
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn during_rotation_both_secrets_sign_and_neither_is_logged() {
    let weir = Weir::with(&ALLOWED).await;
    let receiver = Receiver::new();
    let made = add(&weir, &receiver.url(), &[]).await;
    let id = made.webhook.id;
    let working = weir.work().await;
    let delivered = async |event: String| {
        weir.until("a delivery", async || receiver.by_id().remove(&event))
            .await
    };
    let mut client = weir.client().await;
    let rotated = webhooks::rotate(&mut client, "shell:test", id).await.unwrap();
    // A worker takes a second to notice. Until then, the old one signs.
    let until_signed = async |by_both: bool| {
        weir.until("the secrets to be noticed", async || {
            let one = delivered(test(&weir, id).await).await;
            let (by_new, by_old) = (one.is_signed_by(&rotated.secret), one.is_signed_by(&made.secret));
            assert!(by_new || by_old, "{one:?}");
            (by_new && by_old == by_both).then_some(one)
        })
        .await
    };
    assert_eq!(until_signed(true).await.kind(), "webhook.test");
    assert_ne!(rotated.secret, made.secret);
    client
        .execute("UPDATE webhooks SET previous_until = now()", &[])
        .await
        .unwrap();
    until_signed(false).await;
    control::remove_webhook(&mut client, "shell:test", id)
        .await
        .unwrap();
    let kept =
        "SELECT (SELECT json_agg(l)::text FROM admin_log l) || (SELECT json_agg(w)::text FROM webhooks w)";
    let kept: String = client.query_one(kept, &[]).await.unwrap().get(0);
    assert!(!kept.contains("whsec_"), "{kept}");
    for action in ["add", "rotate", "test", "remove"] {
        assert!(kept.contains(&format!("webhook.{action}")), "{kept}");
    }
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn private_networks_are_refused_even_behind_a_name() {
    let weir = Weir::new().await;
    let receiver = Receiver::new();
    let (mut client, settings) = (weir.client().await, &weir.context.settings);
    for (url, expected) in [
        (receiver.url().as_str(), "WEBHOOK_PRIVATE_NETWORKS"),
        ("https://[::ffff:10.0.0.1]/hook", "private network"),
        ("https:/example", "private network"),
        ("htps://example.com/hook", "https://"),
        ("example.com/hook", "https://example.com/weir"),
        ("https://anne:secret@example.com/hook", "password"),
        ("https://example.com/hook#here", "fragment"),
    ] {
        let Err(error) = webhooks::add(&mut client, settings, "shell:test", url, &[], &[]).await else {
            // Not an address: a name for the resolver.
            assert_eq!(url, "https:/example");
            continue;
        };
        assert!(error.to_string().contains(expected), "{url}: {error}");
    }
    let named = add(&weir, &format!("http://localhost:{}/hook", receiver.port), &[]).await;
    let working = weir.work().await;
    test(&weir, named.webhook.id).await;
    let error = last_error(&weir, named.webhook.id).await;
    assert!(error.contains("private network"), "{error}");
    assert!(receiver.received().is_empty());
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_are_refused_and_an_endless_answer_is_cut() {
    let weir = Weir::with(&ALLOWED).await;
    let (receiver, target) = (Receiver::new(), Receiver::new());
    let made = add(&weir, &receiver.url(), &[]).await;
    let id = made.webhook.id;
    let working = weir.work().await;
    receiver.answer(Answers::Redirect(target.port));
    test(&weir, id).await;
    let error = last_error(&weir, id).await;
    assert!(error.contains("307"), "{error}");
    assert!(target.received().is_empty());
    receiver.answer(Answers::Endless);
    let event = test(&weir, id).await;
    let error = weir
        .until("the endless answer to be enough", async || {
            deliveries(&weir, id)
                .await
                .last_error
                .filter(|error| error.contains("500"))
        })
        .await;
    assert!(
        error.ends_with("xxx") && error.len() < 600,
        "{} bytes",
        error.len()
    );

    // The receiver wants no more. Its events wait until it is enabled again.
    let watching = Receiver::new();
    add(&weir, &watching.url(), &["webhook.disabled"]).await;
    receiver.answer(Answers::Status(410));
    let mut client = weir.client().await;
    let all = Replay::UndeliveredSince(Timestamp::now() - SignedDuration::from_hours(1));
    let replayed = control::replay_webhook(&mut client, "shell:test", id, &all)
        .await
        .unwrap();
    // They may be due by themselves just now.
    assert!(replayed <= 2, "{replayed}");
    weir.until("it to be disabled", async || {
        webhook(&weir, id).await.disabled_because
    })
    .await;
    let disabled = weir
        .until("the event", async || watching.received().into_iter().next())
        .await;
    let body: Value = serde_json::from_slice(&disabled.body).unwrap();
    assert_eq!(
        (&body["type"], &body["data"]["webhook"]),
        (&json!("webhook.disabled"), &json!(id))
    );
    let user = weir.user("free").await;
    let job = weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    weir.finished(job, Who::User(user)).await;
    let kept = weir
        .until("the deliveries to wait", async || {
            let kept = "SELECT count(*), count(*) FILTER (WHERE state = 'scheduled') FROM river_job \
                        WHERE queue = webhook_queue($1) AND state <> 'completed'";
            let row = client.query_one(kept, &[&id]).await.unwrap();
            let [all, waiting]: [i64; 2] = [row.get(0), row.get(1)];
            (all == waiting).then_some(all)
        })
        .await;
    assert!(kept >= 2, "{kept}");
    assert!(
        control::test_webhook(&mut client, "shell:test", id)
            .await
            .is_err()
    );
    assert!(
        control::replay_webhook(&mut client, "shell:test", id, &all)
            .await
            .is_err()
    );

    // After it is enabled again, the discarded events are delivered under their ids.
    receiver.answer(Answers::Status(200));
    assert!(
        control::enable_webhook(&mut client, "shell:test", id)
            .await
            .unwrap()
    );
    let before = receiver.received().len();
    let one = Replay::Event(event.clone());
    assert_eq!(
        control::replay_webhook(&mut client, "shell:test", id, &one)
            .await
            .unwrap(),
        1
    );
    let again = weir
        .until("the replay", async || receiver.received().into_iter().nth(before))
        .await;
    assert_eq!(again.id, event);
    let none = Replay::Event("evt_0".to_owned());
    let error = control::replay_webhook(&mut client, "shell:test", id, &none)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("evt_0"), "{error}");
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_fails_for_days_is_disabled_and_catches_up() {
    let weir = Weir::with(&ALLOWED).await;
    let (down, partly) = (Receiver::new(), Receiver::new());
    let failing = add(&weir, &down.url(), &[]).await.webhook.id;
    let other = add(&weir, &partly.url(), &["job.failed"]).await.webhook.id;
    let working = weir.work().await;
    test(&weir, other).await;
    weir.until("a delivery", async || partly.received().into_iter().next())
        .await;
    for receiver in [&down, &partly] {
        receiver.answer(Answers::Status(500));
    }
    let tried = test(&weir, failing).await;
    failed(&weir, &tried, "retryable").await;
    give_up(&weir, &test(&weir, other).await).await;
    let given_up = test(&weir, failing).await;
    // Another event fails while this one is tried.
    let client = weir.client().await;
    let again = "UPDATE river_job SET state = 'available', scheduled_at = now() WHERE args ->> 'event' = $1";
    client.execute(again, &[&tried]).await.unwrap();
    weir.until("another failure", async || {
        let failures = "SELECT FROM river_job WHERE args ->> 'event' = $1 AND cardinality(errors) > 1";
        client.query_opt(failures, &[&tried]).await.unwrap().map(drop)
    })
    .await;
    give_up(&weir, &given_up).await;
    assert_eq!(webhook(&weir, other).await.disabled_because, None);
    let because = weir
        .until("the end of the webhook", async || {
            webhook(&weir, failing).await.disabled_because
        })
        .await;
    assert!(because.contains("three days"), "{because}");

    down.answer(Answers::Status(200));
    let before = down.received().len();
    let mut enable = command(&weir, &["webhook", "enable", &failing.to_string()]);
    let output = tokio::task::spawn_blocking(move || enable.output().unwrap())
        .await
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    weir.until("the events", async || {
        let received = down.received();
        received[before..].iter().find(|one| one.id == tried).map(|_| ())
    })
    .await;
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_poison_event_does_not_disable_a_quiet_webhook() {
    let weir = Weir::with(&ALLOWED).await;
    let receiver = Receiver::new();
    let id = add(&weir, &receiver.url(), &[]).await.webhook.id;
    let working = weir.work().await;
    let client = weir.client().await;
    test(&weir, id).await;
    weir.until("a delivery to be noted", async || {
        let noted = "SELECT 1 FROM webhooks WHERE delivered_at IS NOT NULL";
        client.query_opt(noted, &[]).await.unwrap()
    })
    .await;
    receiver.answer(Answers::Status(500));
    give_up(&weir, &test(&weir, id).await).await;
    assert_eq!(
        webhook(&weir, id).await.disabled_because,
        None,
        "nothing else was tried"
    );
    // Two of them, and one event that was delivered in between.
    let (one, another) = (test(&weir, id).await, test(&weir, id).await);
    // The first one fails only once, and not again after the delivery.
    weir.until("an attempt to fail", async || {
        let delay = "UPDATE river_job SET scheduled_at = now() + interval '1 hour' \
                     WHERE args ->> 'event' = $1 AND cardinality(errors) > 0 AND state = 'retryable'";
        (client.execute(delay, &[&one]).await.unwrap() == 1).then_some(())
    })
    .await;
    let delivered = "UPDATE webhooks SET delivered_at = clock_timestamp()";
    client.batch_execute(delivered).await.unwrap();
    give_up(&weir, &another).await;
    assert_eq!(webhook(&weir, id).await.disabled_because, None);
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn enabling_a_webhook_again_replays_its_events() {
    let weir = Weir::with(&ALLOWED).await;
    let id = add(&weir, "http://127.0.0.1:9/hook", &[]).await.webhook.id;
    test(&weir, id).await;
    let mut client = weir.client().await;
    control::disable_webhook(&mut client, id, "410").await.unwrap();
    let key = format!("weir_sk_{}", Uuid::new_v4().simple());
    control::create_key(
        &mut client,
        "shell:test",
        "key",
        &key,
        &[control::Scope::Admin],
        None,
    )
    .await
    .unwrap();
    // The process was killed before it replayed the events.
    control::enable_webhook(&mut client, "shell:test", id)
        .await
        .unwrap();
    for through_http in [false, true] {
        let given_up =
            "UPDATE river_job SET state = 'discarded', finalized_at = now() WHERE kind = 'weir:webhook'";
        client.batch_execute(given_up).await.unwrap();
        if through_http {
            let path = format!("/admin/webhooks/{id}/enable");
            let answer = weir
                .with_key("POST", &path, &format!("Bearer {key}"), "-", "")
                .await;
            assert_eq!(answer.status, 204, "{}", answer.body);
        } else {
            let mut enable = command(&weir, &["webhook", "enable", &id.to_string()]);
            let output = tokio::task::spawn_blocking(move || enable.output().unwrap())
                .await
                .unwrap();
            let message = String::from_utf8(output.stdout).unwrap();
            assert!(message.contains("replaying 1 delivery"), "{message}");
        }
        assert_eq!(deliveries(&weir, id).await.waiting, 1, "{through_http}");
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_or_unreachable_receivers_do_not_delay_others() {
    let weir = Weir::with(&[ALLOWED[0], ("WEBHOOK_WORKERS", "4")]).await;
    let (slow, fast, mut away) = (Receiver::new(), Receiver::new(), Receiver::new());
    slow.answer(Answers::After(Duration::from_secs(60)));
    let events = ["job.completed"];
    let (slow_id, fast_id, away_id) = (
        add(&weir, &slow.url(), &events).await.webhook.id,
        add(&weir, &fast.url(), &events).await.webhook.id,
        add(&weir, &away.url(), &events).await.webhook.id,
    );
    away.kill();
    flood(&weir, away_id, 10_000).await;
    flood(&weir, slow_id, 100).await;
    let working = weir.work().await;
    weir.until("the slow one to be asked", async || {
        (slow.received().len() >= 4).then_some(())
    })
    .await;
    let who = Who::User(weir.user("pro").await);
    for _ in 0..20 {
        weir.analyse(who, "a_test.go", GO_TESTS).await;
    }
    weir.until("all events", async || (fast.by_id().len() == 20).then_some(()))
        .await;
    // A worker writes that its attempt failed before it starts the next one. On a busy machine, the first ones have
    // failed by now.
    let asked = slow.received().len();
    let failures =
        "SELECT coalesce(sum(cardinality(errors)), 0) FROM river_job WHERE args ->> 'webhook' = $1";
    let row = weir.client().await;
    let row = row.query_one(failures, &[&slow_id.to_string()]).await.unwrap();
    let failed = usize::try_from(row.get::<_, i64>(0)).unwrap();
    assert!(asked <= 4 + failed, "{asked} at once, and {failed} failed");
    weir.until("the slow one to be given up on", async || {
        let error = deliveries(&weir, slow_id).await.last_error?;
        assert!(error.contains("15 s"), "{error}");
        Some(())
    })
    .await;
    assert_eq!(deliveries(&weir, fast_id).await.waiting, 0);
    // 10 000 failed deliveries and 20 newer ones: none is lost.
    let waiting = deliveries(&weir, away_id).await.waiting;
    assert_eq!(waiting, 10_020);
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_adds_tests_rotates_and_removes_from_a_shell() {
    let weir = Weir::with(&ALLOWED).await;
    let mut receiver = Receiver::new();
    let run = async |arguments: &[&str]| {
        let mut command = command(&weir, &[&["webhook"], arguments].concat());
        let output = tokio::task::spawn_blocking(move || command.output().unwrap())
            .await
            .unwrap();
        let message = String::from_utf8([output.stderr, output.stdout].concat()).unwrap();
        (output.status.success(), message)
    };
    let (well, message) = run(&["add", &receiver.url(), "--events", "job.completed,plan.changed"]).await;
    assert!(well, "{message}");
    let secret = message.lines().last().unwrap().to_owned();
    assert!(secret.starts_with("whsec_"), "{message}");
    for (wrong, expected) in [
        (
            &["add", "https://example.com", "--events", "job.done"][..],
            "job.cancelled",
        ),
        (&["add", &receiver.url()], "already"),
        (&["add", "nowhere"], "https://example.com/weir"),
        (&["add", "https://example.com", "--thresholds", "0"], "1 to 1000"),
        (&["remove", &Uuid::new_v4().to_string()], "weir webhook list"),
    ] {
        let (well, message) = run(wrong).await;
        assert!(!well && message.contains(expected), "{wrong:?}: {message}");
    }
    let (_, listed) = run(&["list", "--json"]).await;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[0]["events"], json!(["job.completed", "plan.changed"]));
    assert!(listed[0].get("secret").is_none());
    let id = listed[0]["id"].as_str().unwrap();

    let working = weir.work().await;
    let (well, message) = run(&["test", id]).await;
    assert!(well && message.contains("204"), "{message}");
    assert!(receiver.received()[0].is_signed_by(&secret));
    let event = receiver.received()[0].id.clone();
    let (well, message) = run(&["replay", id, "--event", &event]).await;
    assert!(well && message.starts_with("1 delivery"), "{message}");
    weir.until("the same again", async || {
        (receiver.received().len() == 2).then_some(())
    })
    .await;
    assert_eq!(receiver.by_id().len(), 1);
    receiver.answer(Answers::Status(410));
    let (well, message) = run(&["test", id]).await;
    assert!(!well && message.contains("410 Gone"), "{message}");
    assert!(message.contains("weir webhook enable"), "{message}");
    receiver.kill();
    let (well, message) = run(&["enable", id]).await;
    assert!(well, "{message}");
    let (well, message) = run(&["test", id]).await;
    assert!(!well && message.contains("refused"), "{message}");
    let (_, listed) = run(&["list"]).await;
    assert!(listed.contains("refused") && listed.contains(id), "{listed}");
    let (well, message) = run(&["rotate", id]).await;
    assert!(
        well && message.lines().last().unwrap().starts_with("whsec_"),
        "{message}"
    );
    let (well, message) = run(&["remove", id]).await;
    assert!(well && message.contains("2 deliveries"), "{message}");
    let (_, listed) = run(&["list"]).await;
    assert!(listed.contains("weir webhook add"), "{listed}");
    working.stop().await;
    weir.end().await;
}

/// The page's code for receivers, in a program that prints whether it accepts each case of a file.
const LANGUAGES: [(&str, &str, &[&str], &str); 3] = [
    (
        "js",
        "verify.mjs",
        &["node"],
        "import { readFileSync } from \"node:fs\";\n\
         const cases = JSON.parse(readFileSync(process.argv[2]));\n\
         console.log(JSON.stringify(cases.map((one) => verify(one.secret, one.headers, one.body))));\n",
    ),
    (
        "python",
        "verify.py",
        &["python3"],
        "import json, sys\n\
         cases = json.load(open(sys.argv[1]))\n\
         print(json.dumps([verify(one['secret'], one['headers'], one['body'].encode()) for one in cases]))\n",
    ),
    (
        "go",
        "verify.go",
        &["go", "run"],
        "func main() {\n\
         file, _ := os.ReadFile(os.Args[1])\n\
         var cases []struct { Secret, Body string; Headers map[string]string }\n\
         if err := json.Unmarshal(file, &cases); err != nil { panic(err) }\n\
         results := []bool{}\n\
         for _, one := range cases {\n\
         header := http.Header{}\n\
         for name, value := range one.Headers { header.Set(name, value) }\n\
         results = append(results, verify(one.Secret, header, []byte(one.Body)))\n\
         }\n\
         json.NewEncoder(os.Stdout).Encode(results)\n\
         }\n",
    ),
];

/// Headers that anybody can send: each is missing, or has a hostile value.
fn hostile_headers(delivered: &Value) -> Vec<Value> {
    let long = "9".repeat(10_000);
    let values = [
        (
            "webhook-signature",
            vec!["", " ", "v1", "\u{e9}", "v1,\u{20ac}", &long],
        ),
        (
            "webhook-timestamp",
            vec!["", "x", "NaN", "Infinity", "-1", "1e999", "\u{661}\u{662}", &long],
        ),
        ("webhook-id", vec!["", "\u{e9}", "evt_1\n", &long]),
    ];
    let mut all = vec![json!({})];
    for (name, values) in values {
        let mut missing = delivered.clone();
        missing.as_object_mut().unwrap().remove(name);
        all.push(missing);
        for value in values {
            let mut headers = delivered.clone();
            headers[name] = json!(value);
            all.push(headers);
        }
    }
    // As many letters as a signature has, and more bytes.
    let mut letters = delivered.clone();
    letters["webhook-signature"] = json!(format!("v1,{}", "\u{e9}".repeat(44)));
    all.push(letters);
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_verifier_accepts_only_deliveries() {
    let weir = Weir::with(&ALLOWED).await;
    let receiver = Receiver::new();
    let made = add(&weir, &receiver.url(), &[]).await;
    let rotated = webhooks::rotate(&mut weir.client().await, "shell:test", made.webhook.id)
        .await
        .unwrap();
    let working = weir.work().await;
    test(&weir, made.webhook.id).await;
    let delivery = weir.until("a delivery", async || receiver.received().pop()).await;
    working.stop().await;
    let case = |secret: &str, headers: &Value, body: &str| json!({ "secret": secret, "headers": headers, "body": body });
    let body = String::from_utf8(delivery.body).unwrap();
    let delivered = json!({
        "webhook-id": delivery.id,
        "webhook-timestamp": delivery.timestamp,
        "webhook-signature": delivery.signatures.join(" "),
    });
    let (changed, unsigned) = (body.replace("test", "best"), {
        let mut headers = delivered.clone();
        headers["webhook-signature"] = json!("v1,");
        headers
    });
    let ten_minutes_ago = Timestamp::now() - SignedDuration::from_mins(10);
    let old = outbound::headers(
        &[made.secret.parse().unwrap()],
        "evt_1",
        ten_minutes_ago,
        body.as_bytes(),
    );
    let old: Value = json!(old.into_iter().collect::<BTreeMap<_, _>>());
    let mut cases = vec![
        case(&made.secret, &delivered, &body),
        case(&rotated.secret, &delivered, &body),
        case(
            "whsec_c29tZWJvZHkgZWxzZSdzIHNlY3JldCBvZiAyNCBieXRlcw==",
            &delivered,
            &body,
        ),
        case(&made.secret, &delivered, &changed),
        case(&made.secret, &unsigned, &body),
        case(&made.secret, &old, &body),
    ];
    cases.extend(
        hostile_headers(&delivered)
            .iter()
            .map(|headers| case(&made.secret, headers, &body)),
    );
    let expected: Vec<bool> = (0..cases.len()).map(|at| at < 2).collect();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/how-to/webhooks.md");
    let page = std::fs::read_to_string(page).unwrap();
    let folder = std::env::temp_dir().join(format!("weir-verify-{}", Uuid::new_v4().simple()));
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("cases.json"), json!(cases).to_string()).unwrap();
    for (language, file, program, around) in LANGUAGES {
        if std::process::Command::new(program[0])
            .arg(if language == "go" { "version" } else { "--version" })
            .output()
            .is_err()
        {
            programs::missing(&format!("{} is not installed", program[0]));
            continue;
        }
        let code = page
            .split(&format!("```{language}\n"))
            .nth(1)
            .unwrap()
            .split("```")
            .next()
            .unwrap();
        let code = match language {
            "go" => format!(
                "package main\n{}\n{around}",
                code.replace("import (", "import (\"encoding/json\"; \"os\"; ")
            ),
            _ => format!("{code}\n{around}"),
        };
        std::fs::write(folder.join(file), code).unwrap();
        let mut run = std::process::Command::new(program[0]);
        run.args(&program[1..])
            .arg(file)
            .arg("cases.json")
            .current_dir(&folder);
        let output = tokio::task::spawn_blocking(move || run.output().unwrap())
            .await
            .unwrap();
        assert!(
            output.status.success(),
            "{language}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let message: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(message, json!(expected), "{language}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_with_a_lost_claim_is_taken_over() {
    let weir = Weir::with(&ALLOWED).await;
    let receiver = Receiver::new();
    let made = add(&weir, &receiver.url(), &[]).await;
    let working = weir.work().await;
    let mut client = weir.client().await;
    let transaction = client.transaction().await.unwrap();
    let event = json!({ "id": "evt_lost", "type": "webhook.test", "data": {} });
    transaction
        .execute(
            "SELECT deliver(ARRAY[$1::uuid], ARRAY[NULL::uuid], ARRAY['evt_lost'], ARRAY[$2::text])",
            &[&made.webhook.id, &event.to_string()],
        )
        .await
        .unwrap();
    // River's claim has taken effect, but its answer was lost with the connection.
    let claimed = transaction
        .execute(
            "UPDATE river_job SET state = 'running', attempt = 1, attempted_at = clock_timestamp(), attempted_by = ARRAY[$1] \
             WHERE kind = 'weir:webhook'",
            &[&working.id()],
        )
        .await
        .unwrap();
    assert_eq!(claimed, 1);
    transaction.commit().await.unwrap();
    weir.until("the delivery", async || receiver.by_id().remove("evt_lost"))
        .await;
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_prevented_by_an_outage_is_not_abandoned() {
    let weir = Weir::with(&ALLOWED).await;
    let receiver = Receiver::new();
    let id = add(&weir, &receiver.url(), &[]).await.webhook.id;
    let working = weir.work().await;
    let mut client = weir.client().await;
    weir.until("its queue to be worked", async || {
        let worked = "SELECT 1 FROM river_queue WHERE name = webhook_queue($1)";
        client.query_opt(worked, &[&id]).await.unwrap()
    })
    .await;
    let transaction = client.transaction().await.unwrap();
    transaction.batch_execute("LOCK TABLE webhooks").await.unwrap();
    let observer = weir.client().await;
    let event =
        json!({ "webhook": id, "event": "evt_last", "body": json!({ "id": "evt_last" }).to_string() });
    observer
        .execute(
            "INSERT INTO river_job (kind, queue, args, max_attempts) VALUES ('weir:webhook', webhook_queue($1), $2, 1)",
            &[&id, &event],
        )
        .await
        .unwrap();
    weir.until("an attempt that ends", async || {
        let ended = "SELECT 1 FROM river_job WHERE metadata ? 'snoozes' OR state = 'discarded'";
        observer.query_opt(ended, &[]).await.unwrap()
    })
    .await;
    transaction.rollback().await.unwrap();
    weir.until("the delivery", async || receiver.by_id().remove("evt_last"))
        .await;
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_rotated_twice_in_a_day_still_signs() {
    let weir = Weir::with(&ALLOWED).await;
    let receiver = Receiver::new();
    let made = add(&weir, &receiver.url(), &[]).await;
    let id = made.webhook.id;
    let mut client = weir.client().await;
    // As if the answer to the first one was lost.
    let first = webhooks::rotate(&mut client, "shell:test", id).await.unwrap();
    let second = webhooks::rotate(&mut client, "shell:test", id).await.unwrap();
    let working = weir.work().await;
    let event = test(&weir, id).await;
    let one = weir
        .until("a delivery", async || receiver.by_id().remove(&event))
        .await;
    for (secret, which) in [
        (&second.secret, "the newest"),
        (&first.secret, "the one before"),
        (&made.secret, "the one that the receiver has"),
    ] {
        assert!(one.is_signed_by(secret), "{which}: {one:?}");
    }
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_with_a_huge_backlog_can_be_managed() {
    let weir = Weir::with(&ALLOWED).await;
    let made = add(&weir, "http://127.0.0.1:9/hook", &[]).await;
    let id = made.webhook.id;
    let mut client = weir.client().await;
    // Readers of River's table wait for this lock.
    let mut other = weir.client().await;
    let held = other.transaction().await.unwrap();
    held.batch_execute("LOCK TABLE river_job").await.unwrap();
    client.batch_execute("SET lock_timeout = '1s'").await.unwrap();
    webhooks::rotate(&mut client, "shell:test", id).await.unwrap();
    control::disable_webhook(&mut client, id, "the receiver returned 410 Gone")
        .await
        .unwrap();
    assert!(
        control::enable_webhook(&mut client, "shell:test", id)
            .await
            .unwrap()
    );
    held.rollback().await.unwrap();
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_replay_skips_locked_deliveries() {
    let weir = Weir::with(&ALLOWED).await;
    let receiver = Receiver::new();
    let id = add(&weir, &receiver.url(), &[]).await.webhook.id;
    flood(&weir, id, 2500).await;
    let mut operator = weir.client().await;
    let given_up =
        "UPDATE river_job SET state = 'cancelled', finalized_at = now() WHERE kind = 'weir:webhook'";
    assert_eq!(operator.execute(given_up, &[]).await.unwrap(), 2500);
    let open = operator.transaction().await.unwrap();
    let lock = "SELECT id FROM river_job WHERE kind = 'weir:webhook' ORDER BY id LIMIT 1 FOR UPDATE";
    open.execute(lock, &[]).await.unwrap();
    let mut client = weir.client().await;
    let all = Replay::UndeliveredSince(Timestamp::now() - SignedDuration::from_hours(1));
    let replay = control::replay_webhook(&mut client, "shell:test", id, &all);
    let replayed = tokio::time::timeout(Duration::from_secs(60), replay).await;
    assert_eq!(replayed.expect("it waits for the lock").unwrap(), 2499);
    open.rollback().await.unwrap();
    let again = control::replay_webhook(&mut client, "shell:test", id, &all).await;
    assert_eq!(again.unwrap(), 1, "the one that was locked");
    weir.end().await;
}
