//! Attempts that end badly: too late, in a panic, or with too much output.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::common::services_file::service;
use crate::common::{Weir, Who};
use async_trait::async_trait;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use weir::handler::{Attempt, Handler, HandlerError, Outcome, Refusal, Worked};
use weir::work::{Role, Working};
use weir_ledger::holder::Holder;

async fn programs() -> Weir {
    Weir::with(&[("WEIR_CONFIG", "tests/programs.toml")]).await
}

async fn submit(weir: &Weir, who: Who, service: &str, args: Value) -> i64 {
    let answer = weir.post(&format!("/api/jobs/{service}"), who, &args).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    answer.body["job"]["id"].as_i64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_past_its_timeout_is_killed_with_its_children() {
    let weir = programs().await;
    let who = Who::User(weir.user("free").await);
    // The file of the program's child if it survives. The name contains the test process's id.
    let file = std::env::temp_dir().join(format!("weir-late-{}", std::process::id()));
    // Left by an earlier process with that number, after a failed test.
    let _ = std::fs::remove_file(&file);
    let late = submit(&weir, who, "hasty", json!({})).await;
    let next = submit(&weir, who, "greedy", json!({ "pages": 4 })).await;
    assert_eq!(
        weir.get(&format!("/api/jobs/{next}"), who).await.body["waiting_for"],
        "slot"
    );
    let working = weir.work().await;
    weir.running(late, who).await;
    let started = Instant::now();
    let job = weir.finished(late, who).await;
    assert_eq!(
        (&job["status"], &job["attempt"], &job["charged"]),
        (&json!("failed"), &json!(1), &json!(0)),
        "{job}"
    );
    assert_eq!(job["error"]["message"], "it exceeded its time limit of 1s");
    assert_eq!(weir.finished(next, who).await["status"], "completed");
    weir.released(who, "specview").await;
    assert_eq!(
        weir.quota(who, "specview").await["used"],
        4,
        "only the other job was charged"
    );
    tokio::time::sleep(Duration::from_secs(4).saturating_sub(started.elapsed())).await;
    assert!(!file.exists(), "a child of the program lived on");
    working.stop().await;
    weir.end().await;
}

/// Panics if its arguments ask for it.
struct Fragile;

#[async_trait]
impl Handler for Fragile {
    async fn reserve(&self, _holder: Holder, _args: &Map<String, Value>) -> Result<i64, Refusal> {
        Ok(5)
    }

    async fn work(&self, attempt: Attempt) -> Result<Worked, HandlerError> {
        assert!(attempt.args["sound"] == true, "as the test wants it");
        Ok(Outcome {
            output: json!({}),
            used: Some(2),
        }
        .into())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panicking_handler_frees_its_slot_quota_and_worker() {
    let weir = programs().await;
    let who = Who::User(weir.user("free").await);
    // More than the lane's workers, so that the last job finds none if a panic loses one.
    let mut panicking = Vec::new();
    for _ in 0..5 {
        panicking.push(submit(&weir, who, "broken", json!({ "sound": false })).await);
    }
    let sound = submit(&weir, who, "broken", json!({ "sound": true })).await;
    let context = weir.another(&[]).with_handler("test:broken", Arc::new(Fragile));
    let working = Working::start(&context, Role::Both, &context.settings.services)
        .await
        .unwrap();
    for id in panicking {
        let job = weir.finished(id, who).await;
        assert_eq!(
            (&job["status"], &job["attempt"], &job["charged"]),
            (&json!("failed"), &json!(1), &json!(0)),
            "{job}"
        );
        assert_eq!(job["error"]["message"], "the handler panicked");
    }
    assert_eq!(weir.finished(sound, who).await["status"], "completed");
    weir.released(who, "specview").await;
    assert_eq!(weir.quota(who, "specview").await["used"], 2);
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oversized_output_fails_permanently_and_names_the_limit() {
    let weir = programs().await;
    let who = Who::User(weir.user("free").await);
    let working = weir.work().await;
    let id = submit(&weir, who, "verbose", json!({})).await;
    let job = weir.finished(id, who).await;
    assert_eq!(
        (&job["status"], &job["attempt"], &job["max_attempts"]),
        (&json!("failed"), &json!(1), &json!(3)),
        "{job}"
    );
    assert_eq!(job["error"]["message"], "the output is larger than 4194304 bytes");
    weir.released(who, "specview").await;
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_long_standard_error_is_kept() {
    let weir = programs().await;
    let who = Who::User(weir.user("free").await);
    let working = weir.work().await;
    let id = submit(&weir, who, "complaining", json!({})).await;
    let job = weir.finished(id, who).await;
    let message = job["error"]["message"].as_str().unwrap();
    let end = message
        .strip_prefix("exit status: 7: ")
        .unwrap_or_else(|| panic!("{message}"));
    assert!(end.ends_with("at last"), "{end}");
    assert_eq!(end.chars().count(), 2_000);
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_lines_are_not_part_of_the_error() {
    let weir = programs().await;
    let who = Who::User(weir.user("free").await);
    let working = weir.work().await;
    let file = std::env::temp_dir().join(format!("weir-patient-{}", uuid::Uuid::new_v4()));
    let id = submit(&weir, who, "patient", json!({ "file": file })).await;
    weir.until("its progress", async || {
        let job = weir.get(&format!("/api/jobs/{id}"), who).await.body;
        (job["progress"] == json!({ "fraction": 0.4, "message": "page 2 of 5" })).then_some(())
    })
    .await;
    std::fs::write(&file, "").unwrap();
    let job = weir.finished(id, who).await;
    std::fs::remove_file(&file).unwrap();
    assert_eq!(
        (&job["error"]["message"], &job["progress"]),
        (&json!("exit status: 1: out of paper"), &Value::Null),
        "{job}"
    );
    working.stop().await;
    weir.end().await;
}

/// Fails with the text of its arguments, and a character that PostgreSQL cannot store.
struct Unprintable;

#[async_trait]
impl Handler for Unprintable {
    async fn reserve(&self, _holder: Holder, _args: &Map<String, Value>) -> Result<i64, Refusal> {
        Ok(5)
    }

    async fn work(&self, attempt: Attempt) -> Result<Worked, HandlerError> {
        let message = "out of\0 paper".to_owned();
        Err(match attempt.args["how"].as_str() {
            Some("permanently") => HandlerError::Permanent(message),
            Some("for a while") => HandlerError::RetryAfter {
                message,
                after: Duration::from_millis(10),
            },
            _ => HandlerError::Failed(message),
        })
    }
}

/// River writes the ends of many jobs in one statement, and repeats it until it succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn an_unstorable_failure_ends_its_own_job_only() {
    let weir = programs().await;
    let who = Who::User(weir.user("enterprise").await);
    let mut jobs = Vec::new();
    for how in ["permanently", "for a while", "as ever"] {
        jobs.push(submit(&weir, who, "broken", json!({ "how": how })).await);
    }
    let other = Who::User(weir.user("free").await);
    let others = submit(&weir, other, "complaining", json!({})).await;
    let context = weir
        .another(&[])
        .with_handler("test:broken", Arc::new(Unprintable));
    let working = Working::start(&context, Role::Both, &context.settings.services)
        .await
        .unwrap();
    for id in jobs {
        let job = weir.finished(id, who).await;
        assert_eq!(
            (&job["status"], &job["error"]["message"]),
            (&json!("failed"), &json!("out of paper")),
            "{job}"
        );
    }
    assert_eq!(weir.finished(others, other).await["status"], "failed");
    weir.released(who, "specview").await;
    working.stop().await;
    weir.end().await;
}

/// Fails until it is fixed, and then waits until it may continue.
#[derive(Default)]
struct Mended(OnceLock<()>, Notify);

#[async_trait]
impl Handler for Mended {
    async fn reserve(&self, _holder: Holder, _args: &Map<String, Value>) -> Result<i64, Refusal> {
        Ok(5)
    }

    async fn work(&self, _attempt: Attempt) -> Result<Worked, HandlerError> {
        if self.0.get().is_none() {
            return Err(HandlerError::Failed("out of paper".to_owned()));
        }
        self.1.notified().await;
        self.1.notify_one();
        Ok(Outcome {
            output: json!({}),
            used: Some(2),
        }
        .into())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_jobs_retried_together_are_all_charged() {
    let weir = programs().await;
    let who = Who::User(weir.user("free").await);
    let mended = Arc::new(Mended::default());
    let context = weir
        .another(&[])
        .with_handler("test:broken", Arc::clone(&mended) as Arc<dyn Handler>);
    let mut working = Working::start(&context, Role::Both, &context.settings.services)
        .await
        .unwrap();
    let mut jobs = Vec::new();
    for _ in 0..5 {
        jobs.push(submit(&weir, who, "broken", json!({})).await);
    }
    for id in &jobs {
        assert_eq!(weir.finished(*id, who).await["status"], "failed");
    }
    weir.released(who, "specview").await;
    working.stop().await;
    let pool = weir.context.database.river_pool(1).unwrap();
    let client = riverqueue::Client::builder(pool).build().unwrap();
    mended.0.set(()).unwrap();
    // As River UI does.
    for id in &jobs {
        client.jobs().retry(*id).await.unwrap();
    }
    working = Working::start(&context, Role::Both, &context.settings.services)
        .await
        .unwrap();
    let observer = weir.client().await;
    weir.until("the jobs of one claim to request the only slot", async || {
        let parked = "SELECT 1 FROM quota_reservations WHERE admitted_at IS NULL";
        observer.query(parked, &[]).await.unwrap().pop()
    })
    .await;
    mended.1.notify_one();
    for id in &jobs {
        let job = weir
            .until("the second run", async || {
                let job = weir.get(&format!("/api/jobs/{id}"), who).await.body;
                assert!(job["status"] != "failed" || job["attempt"] == 1, "{job}");
                (job["status"] == "completed").then_some(job)
            })
            .await;
        assert_eq!(job["charged"], 2, "{job}");
    }
    weir.released(who, "specview").await;
    assert_eq!(weir.quota(who, "specview").await["used"], 10);
    working.stop().await;
    weir.end().await;
}

/// Two services with programs that report progress once they handle SIGTERM. `tidy` cleans up: it creates the file that
/// its arguments name. `stubborn` ignores the signal.
fn trapping_services() -> String {
    let handler = |timeout: &str, script: &str| {
        format!(
            "timeout = '{timeout}'\nmax_attempts = 1\n\
             handler = {{ type = 'exec', command = ['sh', '-c', '''{script}'''], amount = 5 }}"
        )
    };
    let tidy = r#"
file=$(sed 's/.*"file":"\([^"]*\)".*/\1/')
trap 'sleep 0.5; touch "$file"; exit 1' TERM
echo weir:progress 0.5 >&2
while :; do sleep 0.1; done
"#;
    let stubborn = "trap '' TERM; echo weir:progress 0.5 >&2; sleep 60";
    // Long enough to start a shell on a busy machine.
    let services = [("tidy", "10s", tidy), ("stubborn", "5s", stubborn)];
    services
        .map(|(name, timeout, script)| service(name, "specview", &handler(timeout, script)))
        .concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_gets_sigterm_and_is_killed_ten_seconds_later() {
    let weir = Weir::serving(&trapping_services(), &[]).await;
    let who = Who::User(weir.user("enterprise").await);
    let working = weir.work().await;
    let file = |name: &str| std::env::temp_dir().join(format!("weir-tidy-{name}-{}", uuid::Uuid::new_v4()));
    let tidy = async |file: &std::path::Path| submit(&weir, who, "tidy", json!({ "file": file })).await;
    // The program must reach its trap.
    let trapped = async |id: i64| {
        weir.until("its progress", async || {
            let job = weir.get(&format!("/api/jobs/{id}"), who).await.body;
            (job["progress"]["fraction"] == 0.5).then_some(())
        })
        .await;
    };

    let stubborn = submit(&weir, who, "stubborn", json!({})).await;
    let files = ["timeout", "cancel", "stop"].map(file);
    let late = tidy(&files[0]).await;
    let cancelled = tidy(&files[1]).await;
    trapped(cancelled).await;
    weir.call("DELETE", &format!("/api/jobs/{cancelled}"), who, &[], Vec::new())
        .await;
    assert_eq!(weir.finished(cancelled, who).await["status"], "cancelled");
    let job = weir.finished(late, who).await;
    assert_eq!(
        (&job["status"], &job["error"]["message"]),
        (&json!("failed"), &json!("it exceeded its time limit of 10s"))
    );
    let job = weir.finished(stubborn, who).await;
    assert_eq!(
        job["error"]["message"], "it exceeded its time limit of 5s",
        "{job}"
    );
    let at = |member: &str| job[member].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let took = at("finished_at").duration_since(at("started_at")).as_secs_f64();
    assert!((15.0..20.0).contains(&took), "{took}");

    let stopped = tidy(&files[2]).await;
    trapped(stopped).await;
    working.stop().await;
    for file in &files {
        weir.until("the program to have cleaned up", async || {
            file.exists().then_some(())
        })
        .await;
        std::fs::remove_file(file).unwrap();
    }
    weir.abandon().await;
}
