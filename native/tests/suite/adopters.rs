//! The examples of products that add Weir, as newcomers run them.

use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::common::Weir;
use crate::common::fleet::{CLIENTS, Maintenance, row_count};
use crate::common::process::{KilledOnDrop, ask, free_port};
use crate::common::programs::{GoProgram, python};

const FASTAPI: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/fastapi-orders");

#[tokio::test(flavor = "multi_thread")]
async fn the_fastapi_example_submits_and_works_orders() {
    let packages = [
        "fastapi==0.165.0",
        "uvicorn==0.54.0",
        "SQLAlchemy[asyncio]==2.1.9",
        "asyncpg==0.32.0",
        "psycopg[binary]==3.3.9",
    ];
    let made = tokio::task::spawn_blocking(move || python("fastapi-0.165.0", &packages));
    let Some(python) = made.await.unwrap() else { return };
    let services = format!("{FASTAPI}/weir.toml");
    let schemas = [
        ("WEIR_SCHEMA", "weir"),
        ("RIVER_SCHEMA", "river"),
        ("WEIR_CONFIG", services.as_str()),
    ];
    let weir = Weir::with(&schemas).await;
    let maintenance = Maintenance::of(&weir);
    let port = free_port();
    let server = Command::new(python)
        .args(["-m", "uvicorn", "main:app", "--port", &port.to_string()])
        .current_dir(FASTAPI)
        .envs([
            ("DATABASE_URL", weir.url()),
            ("PYTHONPATH", &format!("{CLIENTS}/python")),
            ("PYTHONDONTWRITEBYTECODE", "1"),
        ])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let mut server = KilledOnDrop(server.unwrap());
    weir.until("the server", async || ask(port, "GET", "/docs", &[], "").await)
        .await;
    for (number, pages, status, answer) in [
        (1, 2, 202, json!({ "order": 1, "outcome": "admitted" })),
        (2, 1, 202, json!({ "order": 2, "outcome": "parked" })),
        (3, 100, 429, json!({ "detail": "over_quota" })),
    ] {
        let order = json!({ "customer": "anne", "pages": pages }).to_string();
        let headers = [("content-type", "application/json")];
        let reply = ask(port, "POST", "/orders", &headers, &order).await.unwrap();
        assert_eq!(reply.status, status, "{number}: {}", reply.text);
        assert_eq!(serde_json::from_str::<Value>(&reply.text).unwrap(), answer);
    }
    for order in 1..=2 {
        weir.until("the order's result", async || {
            let reply = ask(port, "GET", &format!("/orders/{order}"), &[], "").await?;
            reply.text.contains(".pdf").then_some(())
        })
        .await;
    }
    weir.all_finished().await;
    kill(Pid::from_raw(server.0.id().cast_signed()), Signal::SIGTERM).unwrap();
    weir.until("the server to end", async || server.0.try_wait().unwrap())
        .await;
    let client = weir.client_as_it_is().await;
    assert_eq!(
        row_count(&client, "orders").await,
        2,
        "the refused order is rolled back"
    );
    maintenance.end().await;
    weir.end().await;
}

const GO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/go-river-goose");

#[tokio::test(flavor = "multi_thread")]
async fn the_go_example_submits_and_works_orders_next_to_goose() {
    let Some(program) = GoProgram::built(GO, ".").await else {
        return;
    };
    let services = format!("{GO}/weir.toml");
    let weir = Weir::with(&[
        ("WEIR_SCHEMA", "weir"),
        ("RIVER_SCHEMA", "public"),
        ("WEIR_CONFIG", &services),
    ])
    .await;
    let maintenance = Maintenance::of(&weir);
    let mut example = tokio::process::Command::new(&program.path);
    example
        .args(["anne", "3", "2", "100"])
        .env("DATABASE_URL", weir.url());
    let output = example.output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "3 pages: admitted\n2 pages: parked\n100 pages: over_quota\nall orders are rendered\n"
    );
    let client = weir.client_as_it_is().await;
    assert_eq!(
        row_count(&client, "orders").await,
        2,
        "the refused order is rolled back"
    );
    maintenance.end().await;
    weir.end().await;
}
