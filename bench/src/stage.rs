//! The database of a benchmark.

use std::net::{SocketAddr, ToSocketAddrs};

use secrecy::ExposeSecret;
use uuid::Uuid;

use super::proxy::Proxy;
use super::report::BenchError;
use weir::config::Settings;
use weir::context::Context;
use weir_ledger::catalogue::services;
use weir_ledger::database::Database;
use weir_ledger::holder::Holders;
use weir_ledger::meter::Meter;
use weir_ledger::migrate;
use weir_ledger::reservation::Submission;

/// A migrated database on the server of `DATABASE_URL`, dropped at the end.
pub(super) struct Stage {
    server: String,
    name: String,
    pub(super) url: String,
    pub(super) database: Database,
}

impl Stage {
    pub(super) async fn new(settings: &Settings) -> Result<Self, BenchError> {
        let (server, name, url) = create_database(settings).await?;
        let database = Database::at(&url)?.in_schemas(settings.schemas.clone());
        migrate::migrate(&database).await?;
        let mut client = database.connect().await?;
        // High enough for every user: the benchmark measures the check, not the refusal.
        client
            .batch_execute(
                "UPDATE plan_limits SET month = 2000000000 WHERE event_type = 'analysis' \
                 AND plan_id = (SELECT id FROM subscription_plans WHERE is_default)",
            )
            .await?;
        services::apply(&mut client, &settings.service_entries(), &settings.rules()).await?;
        Ok(Self {
            server,
            name,
            url,
            database,
        })
    }

    /// Users with a subscription, known to the holders' table.
    pub(super) async fn users(&self, count: i64) -> Result<Vec<Uuid>, BenchError> {
        let client = self.database.connect().await?;
        let rows = client
            .query(
                "WITH u AS (INSERT INTO users (id) SELECT gen_random_uuid() FROM generate_series(1, $1::bigint) RETURNING id), \
                 s AS (INSERT INTO user_subscriptions (user_id, plan_id) \
                       SELECT u.id, p.id FROM u, subscription_plans p WHERE p.is_default), \
                 h AS (INSERT INTO holders (holder, event_type, user_id) SELECT id, 'analysis', id FROM u) \
                 SELECT id FROM u",
                &[&count],
            )
            .await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// The address of its server.
    pub(super) fn address(&self) -> Result<SocketAddr, BenchError> {
        let config: tokio_postgres::Config = self.url.parse()?;
        let address = match (config.get_hosts().first(), config.get_ports().first()) {
            (Some(tokio_postgres::config::Host::Tcp(host)), port) => {
                (host.as_str(), port.copied().unwrap_or(5432))
                    .to_socket_addrs()?
                    .next()
            }
            _ => None,
        };
        Ok(address.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 5432))))
    }

    /// The URL of this database behind a proxy.
    pub(super) fn through(&self, proxy: &Proxy) -> Result<String, BenchError> {
        let config: tokio_postgres::Config = self.url.parse()?;
        let user = config.get_user().unwrap_or("postgres");
        let password = config
            .get_password()
            .map(|password| String::from_utf8_lossy(password).into_owned());
        let password = password.map_or_else(String::new, |password| format!(":{password}"));
        Ok(format!(
            "postgres://{user}{password}@{}/{}",
            proxy.address, self.name
        ))
    }

    /// The context of a process on this database with this many workers in the default lane of `analysis`.
    pub(super) fn context(&self, settings: &Settings, workers: u32) -> Result<Context, BenchError> {
        let mut settings = settings.clone();
        settings.database_url = secrecy::SecretString::from(self.url.as_str());
        settings.services.retain(|service| service.kind == KIND);
        for service in &mut settings.services {
            service.pools = [1, workers, 1];
        }
        Ok(Context::new(settings)?)
    }

    /// Deletes jobs and history, but keeps the users.
    pub(super) async fn clear(&self) -> Result<(), BenchError> {
        let client = self.database.connect().await?;
        client
            .batch_execute(
                "TRUNCATE river_job, weir_jobs, usage_events, window_balances, processes; \
                 UPDATE holders SET slots_in_use = 0, parked = 0, period_start = NULL, used = 0, reserved = 0",
            )
            .await?;
        // A separate message, because VACUUM cannot run in a transaction.
        client.batch_execute("VACUUM (FULL, ANALYZE) holders").await?;
        Ok(())
    }

    /// Does the work that filling leaves to autovacuum and the checkpointer, so that neither runs during the next
    /// measurement.
    pub(super) async fn tidy(&self) -> Result<(), BenchError> {
        let client = self.database.connect().await?;
        client.batch_execute("VACUUM (ANALYZE)").await?;
        // An owner may not request one before PostgreSQL 15, and later only with `pg_checkpoint`.
        let _ = client.batch_execute("CHECKPOINT").await;
        Ok(())
    }

    pub(super) async fn end(self) -> Result<(), BenchError> {
        drop_database(&self.server, &self.name).await
    }
}

/// An empty database: its server's URL, its name, and its own URL.
pub(super) async fn create_database(settings: &Settings) -> Result<(String, String, String), BenchError> {
    let server = settings.database_url.expose_secret().to_owned();
    let name = format!("weir_bench_{}", Uuid::new_v4().simple());
    let admin = Database::at(&server)?.connect().await?;
    admin.batch_execute(&format!("CREATE DATABASE {name}")).await?;
    let url = with_database(&server, &name);
    Ok((server, name, url))
}

pub(super) async fn drop_database(server: &str, name: &str) -> Result<(), BenchError> {
    let admin = Database::at(server)?.connect().await?;
    let drop = format!("DROP DATABASE {name} WITH (FORCE)");
    Ok(admin.batch_execute(&drop).await?)
}

/// The same server with another database.
pub(super) fn with_database(server: &str, name: &str) -> String {
    let (base, query) = server
        .split_once('?')
        .map_or((server, None), |(base, query)| (base, Some(query)));
    let authority = base.find("://").map_or(0, |scheme| scheme + 3);
    let base = base[authority..]
        .find('/')
        .map_or(base, |slash| &base[..authority + slash]);
    query.map_or_else(
        || format!("{base}/{name}"),
        |query| format!("{base}/{name}?{query}"),
    )
}

/// The job of every submission.
pub(super) fn submission(user: Uuid) -> Submission {
    Submission {
        holder: Holders::user(user),
        subject: None,
        service: "analysis".to_owned(),
        meter: Meter::named("analysis"),
        kind: KIND.to_owned(),
        max_attempts: 3,
        args: arguments(user),
        metadata: serde_json::json!({}),
        amount: 1,
        idempotency: None,
        unique_key: None,
        run_at: None,
        priority: 1,
    }
}

pub(super) const KIND: &str = "analysis:analyze";

pub(super) fn arguments(user: Uuid) -> serde_json::Value {
    serde_json::json!({ "user_id": user, "owner": "acme", "repo": "widgets", "commit_sha": "abc1234" })
}
