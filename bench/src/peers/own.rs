//! Weir itself as one of the measured programs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use serde_json::{Map, Value};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines, Stdin};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use weir_ledger::holder::Holder;
use weir_ledger::migrate;
use weir_ledger::reservation::Reserver;

use super::super::report::BenchError;
use super::super::stage::{KIND, submission};
use super::program::{CALLERS, JOB_MS, WORKERS};
use weir::config::Settings;
use weir::context::Context;
use weir::handler::{Attempt, Handler, HandlerError, Outcome, Refusal, Worked};
use weir::telemetry::metrics;
use weir::work::{Role, Working, reconcile};

/// Migrates, and subscribes the users: those with three slots to Pro, all in one lane, without reaching a quota.
pub(super) async fn setup(settings: &Settings) -> Result<(), BenchError> {
    let database = settings.database()?;
    migrate::migrate(&database).await?;
    database
        .connect()
        .await?
        .batch_execute(
            "UPDATE plan_limits SET month = 2000000000 WHERE event_type = 'analysis'; \
             UPDATE subscription_plans SET lane = 'default'; \
             INSERT INTO users (id) SELECT id FROM bench_users; \
             INSERT INTO user_subscriptions (user_id, plan_id) \
             SELECT u.id, p.id FROM bench_users u \
             JOIN subscription_plans p ON p.tier = CASE u.slots WHEN 1 THEN 'free' ELSE 'pro' END",
        )
        .await?;
    Ok(())
}

/// Submits one job per input line. Answers an empty line when all submissions are committed.
pub(super) async fn produce(settings: &Settings) -> Result<(), BenchError> {
    let reserver = Reserver::start(&settings.database()?);
    let callers = number(CALLERS)?;
    let mut lines = input_lines();
    let mut users = Vec::new();
    while let Some(line) = lines.next_line().await? {
        if let Some((user, _)) = line.split_once(' ') {
            users.push(user.parse::<Uuid>().map_err(std::io::Error::other)?);
            continue;
        }
        let begun = now();
        stream::iter(users.drain(..))
            .map(|user| reserver.submit(submission(user)))
            .buffer_unordered(callers)
            .try_for_each(async |_| Ok(()))
            .await?;
        print_line(&format!("done {begun} {}", now()));
    }
    Ok(())
}

/// Works until its input asks it to stop, as `weir up` does.
pub(super) async fn work(mut settings: Settings) -> Result<(), BenchError> {
    let _metrics = metrics::start(&settings).map_err(std::io::Error::other)?;
    let workers = number(WORKERS)?;
    settings.services.retain(|service| service.kind == KIND);
    for service in &mut settings.services {
        service.pools = [1, workers, 1];
    }
    let takes = Duration::from_millis(number(JOB_MS)?);
    let context = Context::new(settings)?.with_handler(KIND, Arc::new(Reporting(takes)));
    let working = Working::start(&context, Role::Both, &context.settings.services).await?;
    let stopped = CancellationToken::new();
    let reconciling = tokio::spawn(reconcile::run(context, stopped.clone()));
    print_line("ready");
    let mut lines = input_lines();
    while lines.next_line().await?.is_some() {}
    stopped.cancel();
    reconciling.await?;
    working.stop().await;
    Ok(())
}

/// A handler that takes this long, and reports its start and end.
struct Reporting(Duration);

#[async_trait]
impl Handler for Reporting {
    async fn reserve(&self, _holder: Holder, _args: &Map<String, Value>) -> Result<i64, Refusal> {
        Ok(1)
    }

    async fn work(&self, attempt: Attempt) -> Result<Worked, HandlerError> {
        let user = attempt.holder.map(|holder| holder.id).unwrap_or_default();
        print_line(&format!("+ {user} {} {}", attempt.job_id, now()));
        if !self.0.is_zero() {
            tokio::time::sleep(self.0).await;
        }
        print_line(&format!("- {user} {} {}", attempt.job_id, now()));
        Ok(Outcome {
            output: Value::Null,
            used: None,
        }
        .into())
    }
}

fn input_lines() -> Lines<BufReader<Stdin>> {
    BufReader::new(tokio::io::stdin()).lines()
}

fn now() -> i64 {
    Timestamp::now().as_microsecond()
}

/// Writes a line. The reader ends this process by closing its input, so a lost line does not matter.
fn print_line(line: &str) {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    let _ = out
        .write_all(format!("{line}\n").as_bytes())
        .and_then(|()| out.flush());
}

fn number<N: std::str::FromStr>(variable: &str) -> Result<N, BenchError> {
    std::env::var(variable)
        .ok()
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| {
            BenchError::Missing(format!("{variable} must be a number; `weir-bench peers` sets it"))
        })
}
