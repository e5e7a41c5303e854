//! The state that all parts of a process share.

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

/// The state that all parts of a process share.
#[derive(Clone)]
pub struct Context {
    /// The process's settings.
    pub settings: Arc<Settings>,
    /// The connection settings of the database.
    pub database: Database,
    /// The shared connection pool.
    pub pool: ConnectionPool,
    /// The rules of admission.
    pub rules: Arc<Rules>,
    /// Settles jobs that have ended.
    pub settler: Settler,
    /// The handlers, by River's job kind.
    pub handlers: HashMap<String, Arc<dyn Handler>>,
    holders: Arc<OnceCell<Holders>>,
    attempt_tokens: Arc<OnceCell<AttemptTokens>>,
}

impl Context {
    /// Opens no connection yet; connections are created on demand.
    ///
    /// # Errors
    ///
    /// When the database's URL does not parse.
    pub fn new(settings: Settings) -> Result<Self, DatabaseError> {
        let database = settings.database()?;
        Ok(Self::at(database, settings))
    }

    /// As [`Self::new`], with connections to this database.
    #[must_use]
    pub fn at(database: Database, settings: Settings) -> Self {
        let rules = Arc::new(settings.rules());
        let pool = database.pool(20);
        let handlers = settings
            .services
            .iter()
            .filter_map(|service| {
                let handler = handler::of(service, &settings.handler_secrets)?;
                Some((service.kind.clone(), handler))
            })
            .collect();
        Self {
            pool,
            handlers,
            settler: Settler::start(&database),
            settings: Arc::new(settings),
            database,
            rules,
            holders: Arc::default(),
            attempt_tokens: Arc::default(),
        }
    }

    /// Converts subjects and addresses to holders. Queries the database once.
    ///
    /// # Errors
    ///
    /// When the database is unavailable.
    pub async fn holders(&self) -> Result<Holders, DatabaseError> {
        let load = || {
            self.pool
                .with(async |client| Ok::<_, DatabaseError>(Holders::load(client).await?))
        };
        self.holders.get_or_try_init(load).await.copied()
    }

    /// Creates and verifies attempt tokens. Queries the database once, if there is a secret.
    ///
    /// # Errors
    ///
    /// When the database is unavailable.
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

    /// Registers a handler in this program for jobs of this kind, instead of the one in `weir.toml`. A program that
    /// contains all of Weir uses [`crate::main`].
    #[must_use]
    pub fn with_handler(mut self, kind: &str, handler: Arc<dyn Handler>) -> Self {
        self.handlers.insert(kind.to_owned(), handler);
        self
    }
}
