//! `weir status` while something is under way.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;
#[path = "common/gate.rs"]
mod gate;
#[path = "common/process.rs"]
mod process;

use common::{GO_TESTS, Weir, Who};
use gate::Gate;
use process::command;
use serde_json::{Value, json};
use weir::work::Duty;
use weir_policy::tier::Tier;

fn status(weir: &Weir, more: &[&str]) -> Value {
    let output = command(weir, &[&["status", "--json"], more].concat())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn status_counts_what_runs_what_waits_for_a_worker_and_what_waits_for_a_slot() {
    let weir = Weir::with(&[("ANALYZER_QUEUE_DEFAULT_WORKERS", "1")]).await;
    let submit = async |tier, jobs| {
        let user = weir.user(tier).await;
        for _ in 0..jobs {
            weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
        }
        user
    };
    // One job and two parked behind it, then two that wait for the lane's only worker; and one in another lane.
    let first = submit(Tier::Free, 3).await;
    submit(Tier::Free, 1).await;
    submit(Tier::Free, 1).await;
    submit(Tier::Pro, 1).await;
    let gate = Gate::new();
    let working = gate.work(weir.another(&[]), Duty::Both).await;
    gate.until_running(&weir, 2).await;

    let lanes = status(&weir, &[]);
    let analysis = &lanes["services"]["analysis"];
    let lane = |name: &str| {
        let lane = &analysis[name];
        [&lane["queued"], &lane["running"], &lane["workers"]].map(|number| number.as_i64().unwrap())
    };
    assert_eq!(lane("default"), [2, 1, 1], "{lanes}");
    assert_eq!(lane("priority"), [0, 1, 5], "{lanes}");
    assert_eq!(lane("scheduled"), [0, 0, 2], "{lanes}");
    assert_eq!(
        (&analysis["slots_in_use"], &analysis["parked"]),
        (&json!(4), &json!(2)),
        "{lanes}"
    );
    assert!(
        analysis["default"]["oldest_wait_ms"].as_i64().unwrap() > 0,
        "{lanes}"
    );
    assert_eq!(analysis["priority"]["oldest_wait_ms"], 0, "nobody waits there");
    assert_eq!(lanes["oldest_wait_ms"], analysis["default"]["oldest_wait_ms"]);

    let user = status(&weir, &["--user", &first.to_string()]);
    let share = |event_type: &str| {
        let all = user["event_types"].as_array().unwrap();
        let share = all.iter().find(|one| one["event_type"] == event_type).unwrap();
        [&share["running"], &share["slots_in_use"], &share["parked"]].map(|number| number.as_i64().unwrap())
    };
    assert_eq!(share("analysis"), [1, 1, 2], "{user}");
    assert_eq!(share("specview"), [0, 0, 0], "{user}");

    gate.open();
    weir.all_finished().await;
    working.stop().await;
    weir.end().await;
}
