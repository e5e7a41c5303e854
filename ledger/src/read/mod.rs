//! Reads of the API, the console, the workers and the metrics. Each function returns plain rows. The statements are in
//! `sql/`.

pub mod attempts;
pub mod check;
pub mod console;
pub mod feed;
pub mod gauges;
pub mod holders;
pub mod horizon;
pub mod jobs;
pub mod lanes;
pub mod overview;
pub mod probes;
pub mod usage;

use deadpool_postgres::ClientWrapper;
use postgres_types::ToSql;
use tokio_postgres::{Client, Row, Transaction};

use crate::database::{ConnectionPool, DatabaseError};

/// The connection on which a statement runs.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// On a connection of a pool, which keeps it prepared.
    Pool(&'a ConnectionPool),
    /// On this connection of a pool, which keeps it prepared.
    Pooled(&'a ClientWrapper),
    /// On this connection.
    Client(&'a Client),
    /// In this transaction.
    Transaction(&'a Transaction<'a>),
}

impl<'a> From<&'a ConnectionPool> for Source<'a> {
    fn from(pool: &'a ConnectionPool) -> Self {
        Self::Pool(pool)
    }
}

impl<'a> From<&'a ClientWrapper> for Source<'a> {
    fn from(client: &'a ClientWrapper) -> Self {
        Self::Pooled(client)
    }
}

impl<'a> From<&'a Client> for Source<'a> {
    fn from(client: &'a Client) -> Self {
        Self::Client(client)
    }
}

impl<'a> From<&'a Transaction<'a>> for Source<'a> {
    fn from(transaction: &'a Transaction<'a>) -> Self {
        Self::Transaction(transaction)
    }
}

impl Source<'_> {
    async fn rows(self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, DatabaseError> {
        Ok(match self {
            Self::Pool(pool) => pool.query(sql, params).await?,
            Self::Pooled(client) => {
                let statement = client.prepare_cached(sql).await?;
                client.query(&statement, params).await?
            }
            Self::Client(client) => client.query(sql, params).await?,
            Self::Transaction(transaction) => transaction.query(sql, params).await?,
        })
    }
}

/// A row as plain data.
trait FromRow {
    fn from_row(row: &Row) -> Self;
}

/// The result of a statement: exactly one row, at most one row, or all rows.
trait FromRows {
    fn from_rows(rows: &[Row]) -> Self;
}

impl<T: FromRow> FromRows for Option<T> {
    fn from_rows(rows: &[Row]) -> Self {
        rows.first().map(T::from_row)
    }
}

impl<T: FromRow> FromRows for Vec<T> {
    fn from_rows(rows: &[Row]) -> Self {
        rows.iter().map(T::from_row).collect()
    }
}

/// Defines structs with the columns of a statement as fields.
macro_rules! rows {
    ($($(#[$attribute:meta])* pub struct $Name:ident { $($(#[$about:meta])* pub $column:ident: $Type:ty,)+ })+) => {$(
        $(#[$attribute])*
        #[derive(Clone, Debug)]
        pub struct $Name {
            $($(#[$about])* pub $column: $Type,)+
        }

        $crate::read::row!($Name, row => Self { $($column: row.get(stringify!($column)),)+ });
    )+};
}

macro_rules! row {
    ($Type:ty, $row:ident => $value:expr) => {
        impl $crate::read::FromRow for $Type {
            fn from_row($row: &tokio_postgres::Row) -> Self {
                $value
            }
        }

        impl $crate::read::FromRows for $Type {
            fn from_rows(rows: &[tokio_postgres::Row]) -> Self {
                <Self as $crate::read::FromRow>::from_row(&rows[0])
            }
        }
    };
}

/// Defines functions that each run one statement. Their arguments are its parameters, followed by fixed ones.
macro_rules! statements {
    ($($(#[$about:meta])* pub fn $name:ident($($parameter:ident: $Type:ty),*) -> $Rows:ty
       = $sql:expr $(, [$($fixed:expr),+])?;)+) => {$(
        $(#[$about])*
        ///
        /// # Errors
        ///
        /// When the database cannot be used.
        pub async fn $name(
            source: impl Into<$crate::read::Source<'_>>,
            $($parameter: $Type),*
        ) -> Result<$Rows, $crate::database::DatabaseError> {
            let rows = source.into().rows($sql, &[$(&$parameter,)* $($(&$fixed),+)?]).await?;
            Ok($crate::read::FromRows::from_rows(&rows))
        }
    )+};
}

row!(bool, row => row.get(0));
row!(i64, row => row.get(0));
row!(String, row => row.get(0));
row!(jiff::Timestamp, row => row.get(0));
row!(uuid::Uuid, row => row.get(0));

use {row, rows, statements};
