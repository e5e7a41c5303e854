//! Shared by the Rust programs: how they receive the jobs to insert, and how they report the jobs that run.

use std::io::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncBufReadExt as _, BufReader};
use uuid::Uuid;

/// Any error ends the program and the measurement.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A number in the environment.
pub fn number(variable: &str) -> usize {
    std::env::var(variable)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or_else(|| panic!("{variable} must be a number"))
}

/// The duration of a job.
pub fn takes() -> Duration {
    Duration::from_millis(number("PEER_JOB_MS") as u64)
}

/// Whether to rescue jobs of killed workers as soon as the peer's settings allow.
pub fn rescues_soon() -> bool {
    std::env::var("PEER_RESCUE").is_ok_and(|how| how == "shortest")
}

/// The URL of the database.
pub fn database_url() -> String {
    std::env::var("DATABASE_URL").expect("DATABASE_URL must be set")
}

fn now() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_micros()
}

/// Prints that a job starts (`+`) or ends (`-`).
pub fn say(what: char, user: Uuid, job: impl std::fmt::Display) {
    let line = format!("{what} {user} {job} {}\n", now());
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// Runs a job.
pub async fn job(user: Uuid, job: impl std::fmt::Display, takes: Duration) {
    say('+', user, &job);
    if !takes.is_zero() {
        tokio::time::sleep(takes).await;
    }
    say('-', user, &job);
}

/// Runs until standard input ends.
pub async fn until_stdin_ends() -> Result<(), Failure> {
    println!("ready");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while lines.next_line().await?.is_some() {}
    Ok(())
}

/// Inserts the jobs that arrive on standard input, one per line, `callers` at once. Prints an empty line when all are
/// inserted.
pub async fn produce<F, G>(callers: usize, insert: F) -> Result<(), Failure>
where
    F: Fn(Uuid, usize) -> G + Clone + Send + 'static,
    G: Future<Output = Result<(), Failure>> + Send,
{
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut jobs = Vec::new();
    while let Some(line) = lines.next_line().await? {
        if let Some((user, slots)) = line.split_once(' ') {
            jobs.push((user.parse::<Uuid>()?, slots.parse::<usize>()?));
            continue;
        }
        let begun = now();
        let all = std::sync::Arc::new(std::mem::take(&mut jobs));
        let next = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..callers.min(all.len()) {
            let (insert, all, next) = (insert.clone(), all.clone(), next.clone());
            tasks.spawn(async move {
                while let Some(&(user, slots)) = all.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    insert(user, slots).await?;
                }
                Ok::<_, Failure>(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        println!("done {begun} {}", now());
    }
    Ok(())
}
