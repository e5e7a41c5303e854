//! The connection to PostgreSQL breaks at the worst moment, and the caller comes back with the same key.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::Weir;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use weir_ledger::database::Database;
use weir_ledger::event_type::EventType;
use weir_ledger::holder::Holders;
use weir_ledger::reservation::{Answer, Idempotency, Reserver, Submission};
use weir_policy::tier::Tier;

/// When to break a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cut {
    /// The COMMIT never arrives.
    BeforeCommit,
    /// The COMMIT arrives, its answer does not.
    AfterCommit,
}

/// A proxy that breaks each of its first connections that sends a COMMIT.
struct Scissors {
    address: SocketAddr,
    left: Arc<AtomicUsize>,
}

impl Scissors {
    async fn new(target: SocketAddr, cut: Cut, times: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let left = Arc::new(AtomicUsize::new(times));
        let counter = Arc::clone(&left);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let counter = Arc::clone(&counter);
                tokio::spawn(async move {
                    let server = TcpStream::connect(target).await.unwrap();
                    carry(client, server, cut, &counter).await;
                });
            }
        });
        Self { address, left }
    }
}

async fn carry(mut client: TcpStream, mut server: TcpStream, cut: Cut, left: &AtomicUsize) {
    let (mut up, mut down) = (vec![0; 256 * 1024], vec![0; 256 * 1024]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let Ok(read @ 1..) = read else { return };
                let commits = up[..read].windows(7).any(|bytes| bytes == b"COMMIT\0");
                let cuts = commits && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
                if cuts && cut == Cut::BeforeCommit {
                    return;
                }
                if server.write_all(&up[..read]).await.is_err() {
                    return;
                }
                if cuts {
                    // Until PostgreSQL has answered, so that it has committed; the answer goes nowhere.
                    while !matches!(server.read(&mut down).await, Ok(read) if down[..read].windows(6).any(|bytes| bytes == b"COMMIT")) {}
                    return;
                }
            }
            read = server.read(&mut down) => {
                let Ok(read @ 1..) = read else { return };
                if client.write_all(&down[..read]).await.is_err() {
                    return;
                }
            }
        }
    }
}

const TIMES: usize = 3;

async fn through(cut: Cut) {
    let weir = Weir::new().await;
    let user = weir.user(Tier::Pro).await;
    let config: tokio_postgres::Config = weir.url().parse().unwrap();
    let target = SocketAddr::from(([127, 0, 0, 1], config.get_ports()[0]));
    let scissors = Scissors::new(target, cut, TIMES).await;
    let authority = weir
        .url()
        .split('@')
        .nth(1)
        .unwrap()
        .split('/')
        .next()
        .unwrap()
        .to_owned();
    let url = weir.url().replace(&authority, &scissors.address.to_string());
    // The holder is known, so that the only COMMIT is that of the reservation.
    Reserver::start(&weir.context.database, Arc::clone(&weir.context.rules))
        .submit(submission(user, "first"))
        .await
        .unwrap();
    let reserver = Reserver::start(&Database::at(&url).unwrap(), Arc::clone(&weir.context.rules));
    let mut failures = 0;
    let answer = loop {
        match reserver.submit(submission(user, "second")).await {
            Ok(answer) => break answer,
            Err(error) => {
                failures += 1;
                assert!(failures <= TIMES, "{error}");
            }
        }
    };
    assert_eq!(
        failures, TIMES,
        "every cut is told to the caller, and nothing else is"
    );
    match (cut, answer) {
        (Cut::BeforeCommit, Answer::Accepted { .. }) | (Cut::AfterCommit, Answer::Repeated { .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(scissors.left.load(Ordering::SeqCst), 0);
    let jobs: i64 = weir
        .client()
        .await
        .query_one("SELECT count(*) FROM river_job", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(jobs, 2, "the first, and one for the key");
    weir.end().await;
}

fn submission(user: uuid::Uuid, key: &str) -> Submission {
    Submission {
        holder: Holders::user(user),
        service: "analysis".to_owned(),
        event_type: EventType::Analysis,
        kind: "analysis:analyze".to_owned(),
        max_attempts: 3,
        args: json!({ "user_id": user }),
        metadata: json!({}),
        amount: 1,
        idempotency: Some(Idempotency {
            key: key.to_owned(),
            request_hash: vec![7; 32],
        }),
        unique_key: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_cut_before_commit_leaves_nothing_and_the_retry_gets_its_job() {
    through(Cut::BeforeCommit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_cut_after_commit_is_found_again_by_its_key() {
    through(Cut::AfterCommit).await;
}
