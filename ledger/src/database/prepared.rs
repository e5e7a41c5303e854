//! A session that repeats its statements.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

use parking_lot::Mutex;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row, Statement};

/// A session that keeps its statements prepared, so that PostgreSQL parses and plans each of them once. Maintenance
/// repeats a dozen statements twice a second. Planning one of them takes ten times as long as an idle installation
/// takes to execute it.
pub struct PreparedClient {
    client: Client,
    statements: Mutex<HashMap<&'static str, Statement>>,
}

impl PreparedClient {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            statements: Mutex::default(),
        }
    }

    async fn prepared(&self, sql: &'static str) -> Result<Statement, Error> {
        let kept = self.statements.lock().get(sql).cloned();
        if let Some(statement) = kept {
            return Ok(statement);
        }
        let statement = self.client.prepare(sql).await?;
        self.statements.lock().insert(sql, statement.clone());
        Ok(statement)
    }

    /// As [`Client::query`].
    ///
    /// # Errors
    ///
    /// When the database cannot be used, or refuses the statement.
    pub async fn query(&self, sql: &'static str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        self.client.query(&self.prepared(sql).await?, params).await
    }

    /// As [`Client::query_one`].
    ///
    /// # Errors
    ///
    /// As [`Self::query`], and when there is not one row.
    pub async fn query_one(&self, sql: &'static str, params: &[&(dyn ToSql + Sync)]) -> Result<Row, Error> {
        self.client.query_one(&self.prepared(sql).await?, params).await
    }

    /// As [`Client::query_opt`].
    ///
    /// # Errors
    ///
    /// As [`Self::query`], and when there are several rows.
    pub async fn query_opt(
        &self,
        sql: &'static str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, Error> {
        self.client.query_opt(&self.prepared(sql).await?, params).await
    }

    /// As [`Client::execute`].
    ///
    /// # Errors
    ///
    /// As [`Self::query`].
    pub async fn execute(&self, sql: &'static str, params: &[&(dyn ToSql + Sync)]) -> Result<u64, Error> {
        self.client.execute(&self.prepared(sql).await?, params).await
    }
}

impl Deref for PreparedClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for PreparedClient {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}
