//! Requests that a generator derives from the API's description: no response is an internal error or undocumented.

use crate::common::programs;
use std::process::Command;

use crate::common::process::Process;
use crate::common::{Weir, Who};
use uuid::Uuid;
use weir_ledger::control::{self, Scope};

const SCHEMATHESIS: &str = "4.32.5";

#[tokio::test(flavor = "multi_thread")]
async fn generated_requests_are_answered_as_documented() {
    let name = format!("schemathesis-{SCHEMATHESIS}");
    let package = format!("schemathesis=={SCHEMATHESIS}");
    let installed = tokio::task::spawn_blocking(move || programs::python(&name, &[&package]));
    let Some(python) = installed.await.unwrap() else {
        return;
    };
    let weir = Weir::new().await;
    let mut client = weir.client().await;
    let made = control::create_key(&mut client, "shell:test", "a", "weir_sk_a", &Scope::ALL, None);
    made.await.unwrap();
    let document = weir
        .get("/api/openapi.json", Who::Address("198.51.100.9"))
        .await
        .body;
    // It stores its findings in the current folder.
    let folder = std::env::temp_dir().join(format!("weir-{}", Uuid::new_v4().simple()));
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("openapi.json"), document.to_string()).unwrap();
    let serving = Process::start(&weir, &["serve"], &[]);
    serving.ready().await;
    let mut generator = Command::new(python);
    generator
        .args(["-m", "schemathesis.cli", "run"])
        .arg("openapi.json")
        .current_dir(&folder)
        .args(["--url", &format!("http://127.0.0.1:{}", serving.port())])
        .args(["--header", "Authorization: Bearer weir_sk_a"])
        .args(["--header", "Weir-On-Behalf-Of: anne"])
        .args([
            "--checks",
            "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
        ])
        .args([
            "--phases",
            "coverage,fuzzing",
            "--max-examples",
            "30",
            "--request-timeout",
            "20",
        ])
        // Event streams never end.
        .args([
            "--exclude-path",
            "/api/jobs/events",
            "--exclude-path",
            "/api/lanes/events",
        ])
        .args(["--exclude-path", "/api/jobs/{id}/events", "--no-color"])
        // The same requests in every run. Without it, each run differs.
        .args([
            "--seed",
            &std::env::var("WEIR_SEED").unwrap_or_else(|_| "1".to_owned()),
        ]);
    let output = tokio::task::spawn_blocking(move || generator.output().unwrap())
        .await
        .unwrap();
    let message = String::from_utf8_lossy(&output.stdout).into_owned();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(
        output.status.success(),
        "{message}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        message.contains("/admin/webhooks") || message.contains("Tested:"),
        "{message}"
    );
    assert_eq!(serving.stop().await, Some(0));
    weir.abandon().await;
}
