//! The connection to PostgreSQL breaks at the worst moment, and the caller retries with the same key.

use crate::common::Weir;
use crate::common::proxy::{Cut, Proxy};
use crate::common::submissions::submission;
use weir_ledger::database::Database;
use weir_ledger::reservation::{Answer, Idempotency, Reserver, Submission};

const TIMES: usize = 3;

async fn through(cut: Cut) {
    let weir = Weir::new().await;
    let user = weir.user("pro").await;
    let proxy = Proxy::start(&weir, cut, TIMES).await;
    // The holder is known, so that the reservation's COMMIT is the only one.
    Reserver::start(&weir.context.database)
        .submit(keyed(user, "first"))
        .await
        .unwrap();
    let reserver = Reserver::start(&Database::at(&proxy.url(&weir)).unwrap());
    let mut failures = 0;
    let answer = loop {
        match reserver.submit(keyed(user, "second")).await {
            Ok(answer) => break answer,
            Err(error) => {
                failures += 1;
                assert!(failures <= TIMES, "{error}");
            }
        }
    };
    assert_eq!(failures, TIMES, "only cuts are reported to the caller");
    match (cut, answer) {
        (Cut::BeforeCommit, Answer::Accepted { .. }) => {}
        (Cut::BeforeCommit, other) => panic!("{other:?}"),
        (_, Answer::Repeated { .. }) => {}
        (_, other) => panic!("{other:?}"),
    }
    assert_eq!(proxy.left(), 0);
    let jobs = weir.jobs().await;
    assert_eq!(jobs, 2, "the first, and one for the key");
    weir.end().await;
}

fn keyed(user: uuid::Uuid, key: &str) -> Submission {
    Submission {
        idempotency: Some(Idempotency {
            key: key.to_owned(),
            request_hash: vec![7; 32],
        }),
        ..submission(user, 1)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_before_commit_leaves_nothing_and_the_retry_succeeds() {
    through(Cut::BeforeCommit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_cut_after_commit_is_found_again_by_its_key() {
    through(Cut::AfterCommit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pooler_errors_after_commit_do_not_create_duplicates() {
    through(Cut::PoolerErrorAfterCommit).await;
    through(Cut::ShutdownAfterCommit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_with_an_unknown_outcome_is_never_repeated() {
    for cut in [
        Cut::PoolerErrorAfterCommit,
        Cut::ShutdownAfterCommit,
        Cut::AfterCommit,
    ] {
        let weir = Weir::new().await;
        let mut users = Vec::new();
        for _ in 0..7 {
            users.push(weir.user("pro").await);
        }
        let direct = Reserver::start(&weir.context.database);
        for user in &users {
            direct.submit(submission(*user, 1)).await.unwrap();
        }
        let proxy = Proxy::start(&weir, cut, 1).await;
        let reserver = Reserver::start(&Database::at(&proxy.url(&weir)).unwrap());
        let submitted = users.iter().map(|user| reserver.submit(submission(*user, 1)));
        let answers = futures_util::future::join_all(submitted).await;
        let failed = answers.iter().filter(|answer| answer.is_err()).count();
        assert!(failed > 0, "{cut:?}: {answers:?}");
        let jobs = weir.jobs().await;
        assert_eq!(
            jobs, 14,
            "{cut:?}: one job per submission, regardless of the response"
        );
        weir.end().await;
    }
}
