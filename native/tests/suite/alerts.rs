//! Each alert of `deploy/prometheus/alerts.yml` fires when its condition occurs. A test causes the condition in real
//! processes, scrapes them before and after, and extrapolates the samples with Prometheus' own `promtool test rules`. Each
//! alert must also fire if most of the scrapes failed or could not read the database.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::process::{Process, Scrape, command};
use crate::common::programs::debian;
use crate::common::receiver::{Answers, Receiver};
use crate::common::services_file::service;
use crate::common::{EDGE_SECRET, GO_TESTS, Weir, Who, files, lock_holder};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use serde_json::{Value, json};
use tokio_postgres::IsolationLevel;
use weir::webhooks;
use weir_ledger::control;
use weir_policy::assertion::{self, AssertionKey};
use weir_policy::counts::PATH;

const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/prometheus/alerts.yml");

const PROGRAMS: (&str, &str) = (
    "WEIR_CONFIG",
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs.toml"),
);

/// The minutes of a day.
const DAY: u32 = 24 * 60;

/// An incident's first alert fires within this many minutes.
const INCIDENT_MINUTES: u32 = 2;

/// The interval at which Prometheus scrapes and evaluates the rules. For days, it is as long as possible.
fn step_seconds(minutes: u32) -> u32 {
    if minutes > DAY { 240 } else { 30 }
}

/// `None` if it is not available.
fn promtool() -> Option<PathBuf> {
    debian("prometheus", "usr/bin/promtool")
}

/// The minutes before the end of a longer test for which samples are dropped.
const MINUTES_WITH_GAPS: u32 = 60;

/// The gauges that are NaN in a scrape that could not count. The other gauges, except `weir_build_info`, are NaN only
/// while the database does not answer.
const COUNTED: [&str; 10] = [
    "weir_waiting_deliveries",
    "weir_undelivered_seconds",
    "weir_holder_waiting_jobs",
    "weir_lane_jobs",
    "weir_lent_workers",
    "weir_oldest_wait_seconds",
    "weir_oldest_parked_seconds",
    "weir_slots_in_use",
    "weir_parked_jobs",
    "weir_open_reservations",
];

/// The scrapes that Prometheus stores.
#[derive(Clone, Copy, PartialEq)]
enum Scrapes {
    All,
    /// Only every fourth is complete. One cannot count jobs, one fails, and one cannot reach the database.
    WithGaps,
}

impl Scrapes {
    /// What Prometheus stores as the `n`th sample.
    fn stored(self, n: u32, name: &str, is_counter: bool, value: f64) -> String {
        let is_gauge = !is_counter && name != "weir_build_info";
        match (self, n % 4) {
            (Self::WithGaps, 1) if COUNTED.contains(&name) => f64::NAN.to_string(),
            (Self::WithGaps, 1) if name == "weir_jobs_counted" => "0".to_owned(),
            (Self::WithGaps, 2) => "stale".to_owned(),
            (Self::WithGaps, 3) if name == "weir_database_up" => "0".to_owned(),
            (Self::WithGaps, 3) if is_gauge => f64::NAN.to_string(),
            _ => value.to_string(),
        }
    }
}

/// How gauges continue after the last scrape. Counters always continue as between the scrapes.
#[derive(Clone, Copy, PartialEq)]
enum Gauges {
    Stay,
    Grow,
}

/// A scraped process.
struct Watched<'a> {
    process: &'a Process,
    first: Scrape,
    since: Instant,
}

/// A later scrape. A process caches its gauges for up to 10 s, so the next scrape may have the same values.
struct Last {
    scrape: Scrape,
    /// Seconds since the first scrape.
    passed: f64,
}

impl Last {
    /// Whether a gauge of seconds has grown for more than this part of the time.
    fn has_grown(&self, name: &str, labels: &[(&str, &str)], part: f64) -> bool {
        self.scrape.value(name, labels) > Some(part * self.passed)
    }
}

impl<'a> Watched<'a> {
    async fn start(process: &'a Process) -> Self {
        process.ready().await;
        Self {
            first: process.scrape().await,
            process,
            since: Instant::now(),
        }
    }

    async fn scrape(&self) -> Last {
        let scrape = self.process.scrape().await;
        let passed = self.since.elapsed().as_secs_f64();
        Last { scrape, passed }
    }

    /// A scrape that could count, as on a machine that is not busy. If the database cannot answer, the last one.
    async fn complete_scrape(&self) -> Last {
        let mut last = self.scrape().await;
        for _ in 0..20 {
            let is_up = last.scrape.value("weir_database_up", &[]) == Some(1.0);
            if !is_up || last.scrape.value("weir_jobs_counted", &[]) == Some(1.0) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
            last = self.scrape().await;
        }
        last
    }

    /// Every series of the process, extrapolated for this many minutes. The first `skipped` minutes are left out.
    fn series(
        &self,
        last: &Last,
        instance: usize,
        gauges: Gauges,
        scrapes: Scrapes,
        skipped: u32,
        minutes: u32,
    ) -> Vec<Value> {
        let step_seconds = step_seconds(minutes - skipped);
        let first = skipped * 60 / step_seconds;
        let count = minutes * 60 / step_seconds - first;
        let series = |(name, labels, value): (&str, Vec<&str>, &str)| {
            let own: Vec<(&str, &str)> = labels
                .iter()
                .map(|label| label.split_once('=').unwrap())
                .map(|(name, value)| (name, value.trim_matches('"')))
                .collect();
            let before = self.first.value(name, &own).unwrap_or(0.0);
            let now: f64 = value.parse().unwrap();
            let is_counter = ["_total", "_bucket", "_sum", "_count"]
                .iter()
                .any(|end| name.ends_with(end));
            let step = match is_counter || gauges == Gauges::Grow {
                true => (now - before) / last.passed * f64::from(step_seconds),
                false => 0.0,
            };
            let values = (0..=count).map(|n| {
                let value = now + step * f64::from(first + n);
                scrapes.stored(n, name, is_counter, value)
            });
            let values = values.collect::<Vec<_>>().join(" ");
            let labels = [&labels[..], &["job=\"weir\""]].concat().join(",");
            json!({"series": format!("{name}{{{labels},instance=\"{instance}\"}}"), "values": values})
        };
        last.scrape.samples().map(series).collect()
    }
}

/// The alerts that fire within this many minutes if Prometheus scrapes these series.
fn fired(promtool: &PathBuf, series: &[Value], minutes: u32) -> BTreeSet<String> {
    let rules = std::fs::read_to_string(RULES).unwrap();
    let rules: Value = serde_yaml_ng::from_str(&rules).unwrap();
    let alerts = rules["groups"][0]["rules"].as_array().unwrap();
    // Expects no alert to fire. promtool then reports those that do.
    let expected: Vec<Value> = alerts
        .iter()
        .map(|rule| {
            let name = rule["alert"].as_str().unwrap();
            json!({
                "expr": format!(
                    "group by (alertname) (max_over_time(ALERTS{{alertname=\"{name}\",alertstate=\"firing\"}}[{minutes}m]))"
                ),
                "eval_time": format!("{minutes}m"),
                "exp_samples": [],
            })
        })
        .collect();
    let step = format!("{}s", step_seconds(minutes));
    let test = json!({
        "rule_files": [RULES],
        "evaluation_interval": step,
        "tests": [{
            "interval": step,
            "input_series": series,
            "promql_expr_test": expected,
        }],
    });
    let file = std::env::temp_dir().join(format!("weir-alerts-{}.json", uuid::Uuid::new_v4()));
    std::fs::write(&file, test.to_string()).unwrap();
    let output = Command::new(promtool)
        .args(["test", "rules"])
        .arg(&file)
        .output()
        .unwrap();
    std::fs::remove_file(&file).unwrap();
    let printed = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let names: BTreeSet<String> = printed
        .lines()
        .filter(|line| line.trim_start().starts_with("got:") && !line.contains("got:nil"))
        .flat_map(|line| line.split("alertname=\"").skip(1))
        .filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()))
        .collect();
    assert_eq!(output.status.success(), names.is_empty(), "{printed}");
    names
}

/// Checks the alerts that fire if these processes continue like this.
async fn fire(watched: &[&Watched<'_>], gauges: Gauges, minutes: u32, names: &[&str]) {
    let mut scraped = Vec::new();
    for one in watched {
        scraped.push((*one, one.complete_scrape().await));
    }
    fire_after(&scraped, gauges, minutes, names);
}

/// Checks the alerts that fire if these processes continue like this from these scrapes on.
fn fire_after(scraped: &[(&Watched<'_>, Last)], gauges: Gauges, minutes: u32, names: &[&str]) {
    let Some(promtool) = promtool() else { return };
    for scrapes in [Scrapes::All, Scrapes::WithGaps] {
        // A day's test scrapes too rarely for gaps.
        let skipped = match scrapes {
            Scrapes::WithGaps if minutes > DAY => minutes - MINUTES_WITH_GAPS,
            _ => 0,
        };
        let mut series = Vec::new();
        for (instance, (one, last)) in scraped.iter().enumerate() {
            series.extend(one.series(last, instance, gauges, scrapes, skipped, minutes));
        }
        assert_fired(&promtool, series, minutes - skipped, names);
    }
}

/// Checks the alerts that fire if Prometheus scrapes these series for this many minutes.
fn assert_fired(promtool: &PathBuf, mut series: Vec<Value>, minutes: u32, names: &[&str]) {
    if minutes > DAY {
        // promtool has no room for samples of all series over this time, and accepts at most 10,000 per series.
        series.retain(|one| {
            ["weir_build_info{", "weir_wraparound", "weir_replication"]
                .iter()
                .any(|name| one["series"].as_str().unwrap().starts_with(name))
        });
    }
    let fired = fired(promtool, &series, minutes);
    eprintln!("fired: {fired:?}");
    for name in names {
        assert!(fired.contains(*name), "{name} is not among {fired:?}");
    }
}

/// Runs a command and returns its output.
fn run(weir: &Weir, arguments: &[&str]) -> String {
    let output = command(weir, arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_alert_is_fired_by_a_test_of_this_file() {
    let rules = std::fs::read_to_string(RULES).unwrap();
    let tests = include_str!("alerts.rs");
    let names = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let missing: Vec<_> = names
        .filter(|name| !tests.contains(&format!("\"{name}\"")))
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn promtool_accepts_the_rules() {
    let Some(promtool) = promtool() else { return };
    let output = Command::new(promtool)
        .args(["check", "rules", RULES])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn alerts_fire_without_any_process() {
    let Some(promtool) = promtool() else { return };
    let series = [json!({"series": "up{job=\"weir\"}", "values": "0x40"})];
    let fired = fired(&promtool, &series, INCIDENT_MINUTES);
    assert_eq!(
        fired,
        BTreeSet::from(["WeirDown", "WeirNoOrigin"].map(str::to_owned))
    );
}

#[test]
fn no_alert_fires_after_one_failed_request() {
    let Some(promtool) = promtool() else { return };
    let once = |name: &str, labels: &str| json!({"series": format!("{name}{{job=\"weir\",{labels}}}"), "values": "0 1+0x40"});
    let series = [
        json!({"series": "weir_build_info{job=\"weir\",process=\"serve\"}", "values": "1+0x40"}),
        once("weir_http_requests_total", "status=\"503\""),
        once("weir_edge_requests_total", "outcome=\"unverifiable\""),
        once("weir_edge_requests_total", "outcome=\"user\""),
        once("weir_edge_events_total", "event=\"limiter_unavailable\""),
        once("weir_edge_events_total", "event=\"origin_unreachable\""),
    ];
    assert_eq!(fired(&promtool, &series, 15), BTreeSet::new());
}

/// Whether a histogram has a sample above this limit, which must be one of its buckets.
fn has_sample_above(scrape: &Scrape, histogram: &str, limit: &str) -> bool {
    let within = scrape.value(&format!("{histogram}_bucket"), &[("le", limit)]);
    let all = scrape.value(&format!("{histogram}_count"), &[]);
    within.unwrap() < all.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_do_not_fire_under_ordinary_work() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["up"], &[]);
    let watched = Watched::start(&process).await;
    weir.maintenance_started().await;
    let mut jobs = Vec::new();
    for _ in 0..10 {
        let who = Who::User(weir.user("free").await);
        let body = files(&[("a_test.go", GO_TESTS)]).to_string();
        for request in ["one", "two", "three"] {
            let reply = process
                .call("POST", "/api/jobs/analysis", who, request, &body)
                .await;
            assert_eq!(reply.status, 202, "{}", reply.text);
            let answer: Value = serde_json::from_str(&reply.text).unwrap();
            jobs.push((answer["job"]["id"].as_i64().unwrap(), who));
        }
    }
    for (id, who) in jobs {
        weir.finished(id, who).await;
    }
    weir.until("the settlement of all of them", async || {
        (weir.count("quota_reservations").await == 0).then_some(())
    })
    .await;
    weir.until("a leader and maintenance", async || {
        let scrape = process.scrape().await;
        let known = ["weir_leader_known", "weir_maintenance_known"];
        known
            .iter()
            .all(|name| scrape.value(name, &[]) == Some(1.0))
            .then_some(())
    })
    .await;
    if let Some(promtool) = promtool() {
        let last = watched.complete_scrape().await;
        for scrapes in [Scrapes::All, Scrapes::WithGaps] {
            let series = watched.series(&last, 0, Gauges::Stay, scrapes, 0, 30);
            let mut fired = fired(&promtool, &series, 30);
            // A busy machine has slow transactions, and these alerts are right about them.
            for (name, histogram, limit) in [
                ("WeirSlowCommit", "weir_commit_seconds", "0.5"),
                ("WeirSlowSettlement", "weir_settlement_duration_seconds", "1"),
            ] {
                if has_sample_above(&last.scrape, histogram, limit) {
                    fired.remove(name);
                }
            }
            assert_eq!(fired, BTreeSet::new());
        }
    }
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_fire_without_a_scheduler_or_an_origin() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["serve"], &[]);
    let watched = Watched::start(&process).await;
    fire(
        &[&watched],
        Gauges::Stay,
        INCIDENT_MINUTES,
        &["WeirNoLeader", "WeirNoMaintenance"],
    )
    .await;
    // The command of the runbook.
    let scheduler = Process::start(&weir, &["schedule"], &[]);
    weir.until("a leader", async || {
        (process.scrape().await.value("weir_leader_known", &[])? == 1.0).then_some(())
    })
    .await;
    scheduler.stop().await;
    process.stop().await;
    let process = Process::start(&weir, &["schedule"], &[]);
    let watched = Watched::start(&process).await;
    fire(&[&watched], Gauges::Stay, INCIDENT_MINUTES, &["WeirNoOrigin"]).await;
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alert_fires_without_the_database() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["serve"], &[]);
    let watched = Watched::start(&process).await;
    let (admin, name) = (weir.admin().await, weir.name());
    let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'");
    let close = format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false; {end}");
    admin.batch_execute(&close).await.unwrap();
    weir.until("the outage to be measured", async || {
        (process.scrape().await.value("weir_database_up", &[]) == Some(0.0)).then_some(())
    })
    .await;
    fire(
        &[&watched],
        Gauges::Stay,
        INCIDENT_MINUTES,
        &["WeirDatabaseUnreachable"],
    )
    .await;
    let open = format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true");
    admin.batch_execute(&open).await.unwrap();
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alert_fires_while_jobs_cannot_be_counted() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["serve"], &[]);
    let watched = Watched::start(&process).await;
    let mut operator = weir.client().await;
    let open = operator.transaction().await.unwrap();
    open.batch_execute("LOCK TABLE quota_reservations").await.unwrap();
    weir.until("a scrape that could not count", async || {
        (process.scrape().await.value("weir_jobs_counted", &[]) == Some(0.0)).then_some(())
    })
    .await;
    fire(&[&watched], Gauges::Stay, 10, &["WeirJobsNotCounted"]).await;
    open.rollback().await.unwrap();
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_fire_while_users_submit_more_than_runs() {
    let weir = Weir::new().await;
    let mut users = Vec::new();
    for _ in 0..8 {
        users.push(Who::User(weir.user("free").await));
    }
    let process = Process::start(&weir, &["schedule"], &[]);
    let watched = Watched::start(&process).await;
    for who in users {
        for _ in 0..4 {
            weir.analyse(who, "a_test.go", GO_TESTS).await;
        }
    }
    // The test extrapolates by the growth since the first scrape, so the jobs must have waited for half of that time.
    let last = weir
        .until("the waits in a scrape", async || {
            let last = watched.scrape().await;
            let of_lane = [("service", "analysis"), ("lane", "default"), ("plan", "free")];
            let waits = ["weir_oldest_parked_seconds", "weir_oldest_wait_seconds"];
            waits
                .iter()
                .all(|name| last.has_grown(name, &of_lane, 0.5))
                .then_some(last)
        })
        .await;
    // The scheduled lanes wait by design. The lane of these jobs has no workers either.
    let names = [
        "WeirBacklogGrows",
        "WeirParkedWait",
        "WeirLaneWait",
        "WeirLaneWithoutWorkers",
    ];
    fire_after(&[(&watched, last)], Gauges::Grow, 40, &names);
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_fire_while_a_handler_always_fails() {
    let weir = Weir::with(&[PROGRAMS]).await;
    let process = Process::start(&weir, &["up"], &[]);
    let watched = Watched::start(&process).await;
    let who = Who::User(weir.user("pro").await);
    let mut jobs = Vec::new();
    for _ in 0..20 {
        let answer = weir.post("/api/jobs/broken", who, &json!({})).await;
        jobs.push(answer.body["job"]["id"].as_i64().unwrap());
    }
    let last = jobs[19];
    for job in jobs {
        assert_eq!(weir.finished(job, who).await["status"], "failed");
    }
    weir.until("their settlement", async || {
        (weir.count("quota_reservations").await == 0).then_some(())
    })
    .await;
    let names = ["WeirJobsFail", "WeirAttemptsFail"];
    fire(&[&watched], Gauges::Stay, INCIDENT_MINUTES, &names).await;
    // The commands of the runbook.
    assert!(
        run(&weir, &["status"]).contains("out of paper"),
        "the status has the reason"
    );
    assert!(run(&weir, &["job", "show", &last.to_string()]).contains("out of paper"));
    let again = ["job", "retry", "--error", "out of paper", "--dry-run"];
    assert_eq!(run(&weir, &again), "20 jobs would change\n");
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_fire_while_a_transaction_keeps_a_holders_lock() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    let process = Process::start(&weir, &["serve"], &[]);
    let watched = Watched::start(&process).await;
    let mut operator = weir.client().await;
    let open = lock_holder(&mut operator, user).await;
    let body = files(&[("a_test.go", GO_TESTS)]).to_string();
    let submit = process.call("POST", "/api/jobs/analysis", Who::User(user), "blocked", &body);
    assert_eq!(submit.await.status, 503);
    let names = ["WeirUnavailable", "WeirLaneWithoutWorkers"];
    fire(&[&watched], Gauges::Stay, INCIDENT_MINUTES, &names).await;
    fire(&[&watched], Gauges::Stay, 15, &["WeirBlockedHolders"]).await;
    open.rollback().await.unwrap();
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_fire_after_counters_and_jobs_were_changed_by_hand() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["schedule"], &[]);
    let watched = Watched::start(&process).await;
    weir.maintenance_started().await;
    let who = Who::User(weir.user("pro").await);
    for _ in 0..20 {
        weir.analyse(who, "a_test.go", GO_TESTS).await;
    }
    weir.client()
        .await
        .batch_execute("UPDATE holders SET slots_in_use = 0; DELETE FROM river_job")
        .await
        .unwrap();
    weir.until("both to be counted", async || {
        let scrape = process.scrape().await;
        let orphans = scrape.value("weir_orphans_total", &[])?;
        let repairs = scrape.value("weir_counter_repairs_total", &[])?;
        (orphans >= 20.0 && repairs >= 1.0).then_some(())
    })
    .await;
    let names = ["WeirOrphans", "WeirCounterRepaired"];
    fire(&[&watched], Gauges::Stay, 20, &names).await;
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alert_fires_when_service_keys_are_refused() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["serve"], &[]);
    let watched = Watched::start(&process).await;
    let wrong = [("Authorization", "Bearer weir_sk_unknown")];
    for _ in 0..3 {
        let reply = process.ask("GET", "/api/usage", &wrong, "").await.unwrap();
        assert_eq!(reply.status, 401, "{}", reply.text);
    }
    fire(&[&watched], Gauges::Stay, 20, &["WeirServiceKeysRefused"]).await;
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alert_fires_while_no_process_delivers_to_a_webhook() {
    let weir = Weir::new().await;
    let settings = &weir.context.settings;
    let url = "https://example.com/weir";
    webhooks::add(&mut weir.client().await, settings, "shell:test", url, &[], &[])
        .await
        .unwrap();
    let process = Process::start(&weir, &["schedule"], &[]);
    let watched = Watched::start(&process).await;
    weir.maintenance_started().await;
    fire(
        &[&watched],
        Gauges::Stay,
        INCIDENT_MINUTES,
        &["WeirWebhooksNotDelivered"],
    )
    .await;
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alert_fires_when_a_receiver_is_gone() {
    let allowed = ("WEBHOOK_PRIVATE_NETWORKS", "true");
    let weir = Weir::with(&[allowed]).await;
    let process = Process::start(&weir, &["work"], &[allowed]);
    let watched = Watched::start(&process).await;
    let receiver = Receiver::new();
    receiver.answer(Answers::Status(410));
    let mut client = weir.client().await;
    let events = ["job.completed".to_owned()];
    let settings = &weir.context.settings;
    let made = webhooks::add(&mut client, settings, "shell:test", &receiver.url(), &events, &[]).await;
    let id = made.unwrap().webhook.id;
    control::test_webhook(&mut client, "shell:test", id)
        .await
        .unwrap();
    let gone = [("outcome", "gone")];
    weir.until("the delivery", async || {
        let scrape = process.scrape().await;
        (scrape.value("weir_webhook_deliveries_total", &gone)? > 0.0).then_some(())
    })
    .await;
    weir.until("the gauge", async || {
        let disabled = process.scrape().await.value("weir_disabled_webhooks", &[])?;
        (disabled > 0.0).then_some(())
    })
    .await;
    let names = ["WeirWebhooksGivenUp", "WeirWebhookDisabled"];
    fire(&[&watched], Gauges::Stay, 70, &names).await;
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_fire_while_a_receiver_fails() {
    let allowed = ("WEBHOOK_PRIVATE_NETWORKS", "true");
    let weir = Weir::with(&[allowed]).await;
    let process = Process::start(&weir, &["work"], &[allowed]);
    let watched = Watched::start(&process).await;
    let receiver = Receiver::new();
    receiver.answer(Answers::Status(503));
    let mut client = weir.client().await;
    let settings = &weir.context.settings;
    let made = webhooks::add(&mut client, settings, "shell:test", &receiver.url(), &[], &[]).await;
    let id = made.unwrap().webhook.id;
    control::test_webhook(&mut client, "shell:test", id)
        .await
        .unwrap();
    // The test extrapolates by the growth since the first scrape. The alert needs growth for half of that time.
    let last = weir
        .until("a failed delivery", async || {
            let last = watched.scrape().await;
            let failed = [("outcome", "failed")];
            let failed = last.scrape.value("weir_webhook_deliveries_total", &failed)?;
            (failed > 0.0 && last.has_grown("weir_undelivered_seconds", &[], 0.6)).then_some(last)
        })
        .await;
    let names = ["WeirWebhookStalled"];
    fire_after(&[(&watched, last)], Gauges::Grow, INCIDENT_MINUTES, &names);

    // As many events wait after a longer outage.
    client
        .batch_execute(
            "INSERT INTO river_job (args, kind, max_attempts, queue, state, scheduled_at) \
             SELECT j.args, j.kind, j.max_attempts, j.queue, 'retryable', now() + interval '1 hour' \
             FROM river_job j, generate_series(1, 1100) WHERE j.kind = 'weir:webhook'",
        )
        .await
        .unwrap();
    weir.until("their count", async || {
        (process.scrape().await.value("weir_waiting_deliveries", &[])? > 1000.0).then_some(())
    })
    .await;
    fire(
        &[&watched],
        Gauges::Stay,
        INCIDENT_MINUTES,
        &["WeirDeliveriesWait"],
    )
    .await;

    receiver.answer(Answers::Status(200));
    assert!(
        run(&weir, &["status"]).contains("deliveries   11"),
        "they are in the status"
    );
    run(
        &weir,
        &[
            "webhook",
            "replay",
            &id.to_string(),
            "--undelivered-since",
            "2020-01-01T00:00:00Z",
        ],
    );
    weir.until("the delivery of all", async || {
        let scrape = process.scrape().await;
        let waiting = scrape.value("weir_waiting_deliveries", &[])?;
        (waiting == 0.0 && scrape.value("weir_undelivered_seconds", &[])? == 0.0).then_some(())
    })
    .await;
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alert_fires_while_jobs_wait_in_a_paused_lane() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["up"], &[]);
    let watched = Watched::start(&process).await;
    let queue = "analysis_default";
    weir.until("the lane to be known to River", async || {
        let client = weir.client().await;
        let known = "SELECT EXISTS (SELECT FROM river_queue WHERE name = $1)";
        let row = client.query_one(known, &[&queue]).await.unwrap();
        row.get::<_, bool>(0).then_some(())
    })
    .await;
    run(&weir, &["lane", "pause", queue]);
    let who = Who::User(weir.user("free").await);
    let job = weir.analyse(who, "a_test.go", GO_TESTS).await;
    weir.until("the pause in a scrape", async || {
        let scrape = process.scrape().await;
        let lane = [("service", "analysis"), ("lane", "default"), ("queue", queue)];
        let paused = scrape.value("weir_lane_paused", &lane)?;
        let queued = [
            ("service", "analysis"),
            ("lane", "default"),
            ("plan", "free"),
            ("state", "queued"),
        ];
        (paused == 1.0 && scrape.value("weir_lane_jobs", &queued)? == 1.0).then_some(())
    })
    .await;
    fire(&[&watched], Gauges::Stay, INCIDENT_MINUTES, &["WeirLanePaused"]).await;
    // The command in the alert's summary.
    run(&weir, &["lane", "resume", queue]);
    assert_eq!(weir.finished(job, who).await["status"], "completed");
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alert_names_a_user_with_very_many_waiting_jobs() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["schedule"], &[]);
    let watched = Watched::start(&process).await;
    weir.maintenance_started().await;
    let client = weir.client().await;
    let flood = "SELECT count(*) FROM generate_series(1, 1100) n \
                 CROSS JOIN LATERAL weir_submit('ann \"the flood\"', 'analysis', jsonb_build_object('n', n), 0) s \
                 WHERE s.outcome IN ('admitted', 'parked')";
    let submitted: i64 = client.query_one(flood, &[]).await.unwrap().get(0);
    assert_eq!(submitted, 1100);
    weir.until("the user in a scrape", async || {
        let text = process.scrape().await.text;
        text.contains(r#"weir_holder_waiting_jobs{holder="ann \"the flood\""} 1100"#)
            .then_some(())
    })
    .await;
    fire(&[&watched], Gauges::Stay, INCIDENT_MINUTES, &["WeirHolderFloods"]).await;
    assert!(
        run(&weir, &["status"]).contains("1100 ann \"the flood\""),
        "the status names the user"
    );
    // The command of the runbook.
    run(&weir, &["job", "cancel", "--user", "ann \"the flood\""]);
    weir.until("the end of the flood", async || {
        let text = process.scrape().await.text;
        text.contains(r#"weir_holder_waiting_jobs{holder=""} 0"#)
            .then_some(())
    })
    .await;
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alert_fires_while_a_step_of_reconciliation_fails() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["schedule"], &[]);
    let watched = Watched::start(&process).await;
    weir.maintenance_started().await;
    let client = weir.client().await;
    client
        .batch_execute("ALTER TABLE outstanding_attempts RENAME TO renamed_by_hand")
        .await
        .unwrap();
    weir.until("a failure to be counted", async || {
        let scrape = process.scrape().await;
        let failures: f64 = scrape
            .samples()
            .filter(|(name, ..)| *name == "weir_reconciliation_failures_total")
            .map(|(.., value)| value.parse::<f64>().unwrap())
            .sum();
        (failures > 0.0).then_some(())
    })
    .await;
    fire(&[&watched], Gauges::Stay, 20, &["WeirReconciliationFails"]).await;
    client
        .batch_execute("ALTER TABLE renamed_by_hand RENAME TO outstanding_attempts")
        .await
        .unwrap();
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alert_fires_after_a_worker_was_killed() {
    let weir = Weir::with(&[PROGRAMS]).await;
    let who = Who::User(weir.user("free").await);
    let scheduler = Process::start(&weir, &["schedule"], &[]);
    let watched = Watched::start(&scheduler).await;
    let worker = Process::start(&weir, &["work"], &[]);
    let answer = weir.post("/api/jobs/loyal", who, &json!({})).await;
    weir.running(answer.body["job"]["id"].as_i64().unwrap(), who)
        .await;
    drop(worker);
    let client = weir.client().await;
    client
        .batch_execute(
            "UPDATE processes SET beat_at = beat_at - interval '1 minute'; \
             UPDATE river_job SET attempted_at = attempted_at - interval '1 minute'",
        )
        .await
        .unwrap();
    weir.until("the job to be taken over", async || {
        (scheduler.scrape().await.value("weir_reclaimed_total", &[])? > 0.0).then_some(())
    })
    .await;
    fire(&[&watched], Gauges::Stay, 20, &["WeirJobsReclaimed"]).await;
    scheduler.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alert_fires_while_settlements_are_slow() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let client = weir.client().await;
    client
        .batch_execute(
            "CREATE FUNCTION slow_disk() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN PERFORM pg_sleep(1.5); RETURN NULL; END'; \
             CREATE CONSTRAINT TRIGGER slow_disk AFTER INSERT ON usage_events DEFERRABLE INITIALLY DEFERRED \
             FOR EACH ROW EXECUTE FUNCTION slow_disk()",
        )
        .await
        .unwrap();
    let process = Process::start(&weir, &["up"], &[]);
    let watched = Watched::start(&process).await;
    let job = weir.analyse(who, "a_test.go", GO_TESTS).await;
    assert_eq!(weir.finished(job, who).await["status"], "completed");
    let names = ["WeirSlowSettlement", "WeirSlowCommit"];
    fire(&[&watched], Gauges::Stay, 20, &names).await;
    process.stop().await;
    weir.end().await;
}

/// The edge's tests show that it reports these outcomes and events. This test shows that a report reaches Prometheus.
#[tokio::test(flavor = "multi_thread")]
async fn alerts_fire_on_reports_of_the_edge() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["serve"], &[]);
    let watched = Watched::start(&process).await;
    let report = json!({
        "requests": {"user": 20, "failed": 1, "unverifiable": 2},
        "events": {"counter_unavailable": 3, "limiter_unavailable": 1, "counter_full": 2, "origin_unreachable": 2},
    });
    let key = AssertionKey::new(EDGE_SECRET.as_bytes()).unwrap();
    let now = jiff::Timestamp::now().as_second().unsigned_abs();
    let signed = assertion::sign_own(&key, "POST", PATH, "report", now).unwrap();
    let headers = [(assertion::HEADER, signed.as_str())];
    let reply = process
        .ask("POST", PATH, &headers, &report.to_string())
        .await
        .unwrap();
    assert_eq!(reply.status, 204, "{}", reply.text);
    let names = [
        "WeirBroken",
        "WeirEdgeFallback",
        "WeirEdgeCounterFull",
        "WeirEdgeCannotCount",
        "WeirEdgeCannotVerify",
        "WeirEdgeCannotReachOrigin",
    ];
    fire(&[&watched], Gauges::Stay, 20, &names).await;
    process.stop().await;
    weir.end().await;
}

/// The steps of the runbook for failing attempts and failed jobs.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_run_again_after_an_outage_of_their_endpoint_and_a_poison_job_is_cancelled() {
    let is_down = Arc::new(AtomicBool::new(true));
    let answer = {
        let is_down = Arc::clone(&is_down);
        async move || match is_down.load(Ordering::Relaxed) {
            true => (StatusCode::SERVICE_UNAVAILABLE, "out for lunch"),
            false => (StatusCode::OK, "{}"),
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = listener.local_addr().unwrap();
    let router = Router::new().route("/work", post(answer));
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let handler = |attempts: u8| {
        format!(
            "timeout = '10s'\nmax_attempts = {attempts}\n\
             handler = {{ type = 'http', url = 'http://{endpoint}/work', private = true, amount = 1 }}"
        )
    };
    let services = service("once", "analysis", &handler(1)) + &service("often", "analysis", &handler(20));
    let weir = Weir::serving(&services, &[]).await;
    let working = weir.work().await;
    let scheduler = Process::start(&weir, &["schedule"], &[]);
    let who = Who::User(weir.user("pro").await);
    let submit = async |service: &str| {
        let answer = weir.post(&format!("/api/jobs/{service}"), who, &json!({})).await;
        answer.body["job"]["id"].as_i64().unwrap()
    };
    let (failed, poison) = (submit("once").await, submit("often").await);
    assert_eq!(weir.finished(failed, who).await["status"], "failed");
    // The second attempt, because the pause after the first is too short for the next command.
    weir.until("two failed attempts", async || {
        let shown = run(&weir, &["job", "show", &poison.to_string()]);
        let waits = shown.contains("waits for its next attempt") && shown.contains("attempt      2 of 20");
        (waits && shown.contains("503")).then_some(())
    })
    .await;
    assert_eq!(
        run(&weir, &["job", "cancel", &poison.to_string()]),
        "cancelled: 1 job\n"
    );
    assert_eq!(weir.finished(poison, who).await["status"], "cancelled");

    // No new job loses its attempts while the endpoint is down.
    run(&weir, &["lane", "pause", "once_priority"]);
    let held = submit("once").await;
    is_down.store(false, Ordering::Relaxed);
    run(&weir, &["lane", "resume", "once_priority"]);
    assert_eq!(weir.finished(held, who).await["status"], "completed");
    assert_eq!(
        run(&weir, &["job", "retry", "--error", "503"]),
        "retried: 1 job\n"
    );
    assert_eq!(weir.finished(failed, who).await["status"], "completed");
    weir.until("the release of the cancelled job", async || {
        (weir.count("quota_reservations").await == 0).then_some(())
    })
    .await;
    scheduler.stop().await;
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alert_fires_while_a_transaction_keeps_a_snapshot() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["schedule"], &[]);
    let watched = Watched::start(&process).await;
    let mut report = weir.client().await;
    let snapshot = report
        .build_transaction()
        .isolation_level(IsolationLevel::RepeatableRead);
    let open = snapshot.start().await.unwrap();
    open.query_one("SELECT 1", &[]).await.unwrap();
    let of_sessions = [("holder", "session")];
    // Another test may have held an older snapshot at the first scrape.
    let before = watched.first.value("weir_oldest_snapshot_seconds", &of_sessions);
    let last = weir
        .until("the snapshot to age", async || {
            let last = watched.scrape().await;
            let age = last.scrape.value("weir_oldest_snapshot_seconds", &of_sessions)?;
            (last.passed > 2.0 && age - before.unwrap_or(0.0) > 0.6 * last.passed).then_some(last)
        })
        .await;
    fire_after(&[(&watched, last)], Gauges::Grow, 150, &["WeirOldSnapshot"]);
    // The commands of the runbook.
    let mine: i32 = open
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .unwrap()
        .get(0);
    let pid = weir
        .until("its holder in the status", async || {
            let status: Value = serde_json::from_str(&run(&weir, &["status", "--json"])).unwrap();
            let snapshots = status["vacuum"]["snapshots"].as_array().unwrap().clone();
            let pid = snapshots.iter().find_map(|of| of["pid"].as_i64())?;
            // Another test may hold an older one for a moment.
            (pid == i64::from(mine)).then_some(mine)
        })
        .await;
    let end = "SELECT pg_terminate_backend($1)";
    weir.client().await.execute(end, &[&pid]).await.unwrap();
    weir.until("a younger snapshot", async || {
        let scrape = process.scrape().await;
        (scrape.value("weir_oldest_snapshot_seconds", &of_sessions)? < 2.0).then_some(())
    })
    .await;
    drop(open);
    process.stop().await;
    weir.end().await;
}

/// Weeks of many transactions. The test runs the first seconds.
#[tokio::test(flavor = "multi_thread")]
async fn alerts_fire_when_ids_run_out_and_a_slot_keeps_wal() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let slot = format!("weir_alert_{}", weir.name());
    let process = Process::start(&weir, &["schedule"], &[]);
    let watched = Watched::start(&process).await;
    // Dropped with its session.
    let create = "SELECT pg_create_physical_replication_slot($1, true, true)";
    client.execute(create, &[&slot]).await.unwrap();
    client
        .batch_execute(
            "SET synchronous_commit = off; \
             CREATE TABLE busy (n int); \
             CREATE PROCEDURE burn() LANGUAGE plpgsql AS \
             'BEGIN FOR n IN 1..50000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END'",
        )
        .await
        .unwrap();
    client.batch_execute("CALL burn()").await.unwrap();
    client
        .batch_execute("INSERT INTO busy SELECT generate_series(1, 200000)")
        .await
        .unwrap();
    let grown =
        |scrape: &Scrape, name: &str| Some(scrape.value(name, &[])? - watched.first.value(name, &[])?);
    weir.until("both in a scrape", async || {
        let scrape = process.scrape().await;
        let used = grown(&scrape, "weir_wraparound_transactions")?;
        let kept = grown(&scrape, "weir_replication_retained_bytes")?;
        (used > 40_000.0 && kept > 1e6).then_some(())
    })
    .await;
    let names = ["WeirWraparound", "WeirReplicationBehind"];
    fire(&[&watched], Gauges::Grow, DAY * 20, &names).await;
    process.stop().await;
    weir.end().await;
}
