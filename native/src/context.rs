//! What every part of a process shares.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::OnceCell;
use uuid::Uuid;
use weir_ledger::database::{ConnectionPool, Database, DatabaseError};
use weir_ledger::holder::Holders;
use weir_ledger::rules::Rules;
use weir_ledger::settlement::Settler;

use crate::config::Settings;
use crate::handler::{self, AttemptTokens, Handler};

/// What every part of a process shares.
#[derive(Clone)]
pub struct Context {
    /// The settings it was started with.
    pub settings: Arc<Settings>,
    /// How to reach the database.
    pub database: Database,
    /// Connections that everybody uses in turn.
    pub pool: ConnectionPool,
    /// What admission decides by.
    pub rules: Arc<Rules>,
    /// Settles what ended.
    pub settler: Settler,
    /// Who does the work, by River's job kind.
    pub handlers: HashMap<String, Arc<dyn Handler>>,
    holders: Arc<OnceCell<Holders>>,
    attempt_tokens: Arc<OnceCell<AttemptTokens>>,
}

impl Context {
    /// Opens nothing yet; connections are made when they are needed.
    ///
    /// # Errors
    ///
    /// When the database's URL does not parse.
    pub fn new(settings: Settings) -> Result<Self, DatabaseError> {
        let database = settings.database()?;
        let rules = Arc::new(settings.rules());
        let pool = database.pool(20);
        let handlers = settings
            .services
            .iter()
            .map(|service| {
                (
                    service.kind.clone(),
                    handler::of(service, &pool, &settings.handler_secrets),
                )
            })
            .collect();
        Ok(Self {
            pool,
            handlers,
            settler: Settler::start(&database, &rules),
            settings: Arc::new(settings),
            database,
            rules,
            holders: Arc::default(),
            attempt_tokens: Arc::default(),
        })
    }

    /// Makes holders out of subjects and addresses. The database is asked once.
    ///
    /// # Errors
    ///
    /// When it cannot be asked.
    pub async fn holders(&self) -> Result<Holders, DatabaseError> {
        let load = || {
            self.pool
                .with(async |client| Ok::<_, DatabaseError>(Holders::load(client).await?))
        };
        self.holders.get_or_try_init(load).await.copied()
    }

    /// Makes and verifies attempt tokens. The database is asked once, if there is a secret.
    ///
    /// # Errors
    ///
    /// When it cannot be asked.
    pub async fn attempt_tokens(&self) -> Result<&AttemptTokens, DatabaseError> {
        let make = async || {
            let secrets = &self.settings.handler_secrets;
            let database = match secrets.is_empty() {
                true => Uuid::nil(),
                false => self.holders().await?.namespace(),
            };
            Ok::<_, DatabaseError>(AttemptTokens::new(secrets, database))
        };
        self.attempt_tokens.get_or_try_init(make).await
    }

    /// Has the jobs of this kind done by a handler of the program's own, instead of the one in `weir.toml`.
    #[must_use]
    pub fn with_handler(mut self, kind: &str, handler: Arc<dyn Handler>) -> Self {
        self.handlers.insert(kind.to_owned(), handler);
        self
    }
}
