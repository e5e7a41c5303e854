//! Rendered tests of the sample service `specview`. A test is charged to the job that has its row.

use std::collections::HashMap;

use postgres_types::ToSql;
use uuid::Uuid;

use crate::database::{ConnectionPool, DatabaseError};

/// The rendered texts of these tests, by key. A text is free only if the job that rendered it was charged. A first
/// attempt that fills the cache and dies must not make the second one free.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn charged(
    pool: &ConnectionPool,
    holder: Uuid,
    language: &str,
    keys: &[Vec<u8>],
) -> Result<HashMap<Vec<u8>, String>, DatabaseError> {
    let params: [&(dyn ToSql + Sync); 3] = [&holder, &language, &keys];
    let rows = pool.query(include_str!("sql/charged_tests.sql"), &params).await?;
    Ok(rows
        .iter()
        .map(|row| (row.get("test_key"), row.get("rendered")))
        .collect())
}

/// Stores rendered tests for the job, and returns how many are charged to it. Another job that renders the same test
/// concurrently either has its row already or waits for this one's. No test is charged twice.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn claim(
    pool: &ConnectionPool,
    holder: Uuid,
    language: &str,
    keys: &[Vec<u8>],
    texts: &[String],
    job_id: i64,
) -> Result<usize, DatabaseError> {
    let params: [&(dyn ToSql + Sync); 5] = [&holder, &language, &keys, &texts, &job_id];
    let claimed = pool.query(include_str!("sql/claim_tests.sql"), &params).await?;
    Ok(claimed.len())
}
