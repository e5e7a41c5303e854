//! River UI itself next to Weir: an operator's actions there take effect, and the audit stays clean.

use crate::common::process;
use crate::common::programs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::process::{KilledOnDrop, Process, Reply, free_port};
use crate::common::{Weir, Who};
use serde_json::{Value, json};

/// As `native/tests/riverui/go.mod` pins it.
const VERSION: &str = "0.12.2";

/// River UI, built if it is missing.
fn program() -> Option<PathBuf> {
    let place = programs::cache()
        .unwrap()
        .join(format!("riverui-{VERSION}"))
        .join("riverui");
    if place.exists() {
        return Some(place);
    }
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    let unfinished = place.with_extension(uuid::Uuid::new_v4().simple().to_string());
    let module = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/riverui");
    let built = programs::go_build(module, "riverqueue.com/riverui/cmd/riverui", unfinished)?;
    // Another process may have finished first. Its result is just as good.
    std::fs::rename(&built, &place).unwrap();
    Some(place)
}

/// A running River UI; killed when dropped.
struct RiverUi {
    _child: KilledOnDrop,
    port: u16,
}

impl RiverUi {
    fn start(program: PathBuf, weir: &Weir) -> Self {
        let port = free_port();
        let child = Command::new(program)
            .env("DATABASE_URL", weir.url())
            .env("RIVER_HOST", "127.0.0.1")
            .env("PORT", port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            _child: KilledOnDrop(child),
            port,
        }
    }

    /// The response of its API, or of its page; `None` while it does not listen yet.
    async fn ask(&self, method: &str, path: &str, body: &Value) -> Option<Reply> {
        let headers = [
            ("accept", "text/html, application/json"),
            ("content-type", "application/json"),
        ];
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        process::ask(self.port, method, path, &headers, &body).await
    }

    /// Sends the request that River UI sends for a click.
    async fn click(&self, method: &str, path: &str, body: Value) {
        let reply = self.ask(method, path, &body).await.unwrap();
        assert_eq!(reply.status, 200, "{method} {path}: {}", reply.text);
    }

    async fn shows(&self, path: &str) -> Value {
        let reply = self.ask("GET", path, &Value::Null).await.unwrap();
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        serde_json::from_str(&reply.text).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn actions_in_river_ui_settle_and_charge_once() {
    let Some(program) = tokio::task::spawn_blocking(program).await.unwrap() else {
        return;
    };
    let weir = Weir::with(&[("WEIR_CONFIG", "tests/crash.toml")]).await;
    let up = Process::start(&weir, &["up"], &[("WEIR_CONFIG", "native/tests/crash.toml")]);
    up.ready().await;
    let ui = RiverUi::start(program, &weir);
    weir.until("River UI to answer", async || {
        ui.ask("GET", "/", &Value::Null)
            .await
            .filter(|reply| reply.status == 200 && reply.text.contains("River"))
    })
    .await;

    let user = Who::User(weir.user("free").await);
    let submit = async |service: &str| {
        let answer = weir.post(&format!("/api/jobs/{service}"), user, &json!({})).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        answer.body["job"]["id"].as_i64().unwrap()
    };
    let reserved = async |amount: i64| {
        weir.until(&format!("{amount} to be reserved"), async || {
            (weir.quota(user, "analysis").await["reserved"] == amount).then_some(())
        })
        .await;
    };
    let [first, second, third] = [
        submit("lasting").await,
        submit("lasting").await,
        submit("lasting").await,
    ];
    weir.running(first, user).await;
    // Parked jobs are River's pending ones, and are shown as such.
    let pending = ui.shows("/api/jobs?state=pending").await;
    assert_eq!(pending["data"].as_array().unwrap().len(), 2, "{pending}");
    let shown = ui.shows(&format!("/api/jobs/{second}")).await;
    assert_eq!(
        (&shown["state"], &shown["kind"]),
        (&json!("pending"), &json!("test:lasting"))
    );

    ui.click("POST", "/api/jobs/delete", json!({ "ids": [third.to_string()] }))
        .await;
    reserved(2).await;
    ui.click("POST", "/api/jobs/cancel", json!({ "ids": [first.to_string()] }))
        .await;
    assert_eq!(weir.finished(first, user).await["status"], "cancelled");
    weir.running(second, user).await;
    ui.click("POST", "/api/jobs/cancel", json!({ "ids": [second.to_string()] }))
        .await;
    assert_eq!(weir.finished(second, user).await["status"], "cancelled");
    reserved(0).await;
    assert_eq!(weir.quota(user, "analysis").await["used"], 0);

    ui.click("PUT", "/api/queues/nap_default/pause", Value::Null)
        .await;
    let paused = submit("nap").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let job = weir.get(&format!("/api/jobs/{paused}"), user).await.body;
    assert_eq!(job["status"], "queued", "{job}");
    assert_eq!(
        weir.get("/api/lanes", user).await.body["services"]["nap"]["default"]["paused"],
        true
    );
    ui.click("PUT", "/api/queues/nap_default/resume", Value::Null)
        .await;
    assert_eq!(weir.finished(paused, user).await["charged"], 1);

    // Ended long ago. A job that is retried immediately may still be ended on behalf of the previous attempt.
    tokio::time::sleep(Duration::from_secs(1)).await;
    ui.click("POST", "/api/jobs/retry", json!({ "ids": [paused.to_string()] }))
        .await;
    weir.until("the second run", async || {
        let job = weir.get(&format!("/api/jobs/{paused}"), user).await.body;
        (job["attempt"] == 2 && job["status"] == "completed").then_some(())
    })
    .await;
    reserved(0).await;
    assert_eq!(
        weir.quota(user, "analysis").await["used"],
        1,
        "it is charged once"
    );
    assert_eq!(up.stop().await, Some(0));
    weir.end().await;
}
