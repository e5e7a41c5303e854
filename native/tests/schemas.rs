//! River's tables in another schema than the first one of the search path.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;
#[path = "common/gate.rs"]
mod gate;

use std::time::Duration;

use common::{GO_TESTS, Weir, Who};
use gate::Gate;
use weir::work::Duty;

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_of_a_client_in_rivers_own_schema_is_heard() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let admin = weir.admin().await;
    weir.client()
        .await
        .batch_execute("CREATE SCHEMA app")
        .await
        .unwrap();
    admin
        .batch_execute(&format!(
            "ALTER DATABASE {} SET search_path = app, public",
            weir.name()
        ))
        .await
        .unwrap();
    let gate = Gate::new();
    let working = gate.work(weir.another(&[]), Duty::Both).await;
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    weir.running(id, who).await;

    // A client that knows of no other schema than public.
    let separator = if weir.url().contains('?') { '&' } else { '?' };
    let url = format!("{}{separator}options=-c%20search_path%3Dpublic", weir.url());
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    let river = riverqueue::Client::builder(pool).build().unwrap();
    river.jobs().cancel(id).await.unwrap();
    // A worker that does not hear of it runs on: the gate stays closed.
    let heard = tokio::time::timeout(Duration::from_secs(20), weir.finished(id, who)).await;
    assert_eq!(heard.unwrap()["status"], "cancelled");
    gate.open();
    working.stop().await;
    weir.end().await;
}
