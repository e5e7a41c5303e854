//! Rendered tests of the sample service `specview`. A test is charged to the job that has its row.

use std::collections::HashMap;

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
    let sql = "SELECT c.test_key, c.rendered FROM specview_cache c \
               WHERE c.holder = $1 AND c.language = $2 AND c.test_key = ANY ($3) \
                 AND EXISTS (SELECT 1 FROM usage_events u WHERE u.job_id = c.job_id)";
    let rows = pool.query(sql, &[&holder, &language, &keys]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
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
    let sql = "INSERT INTO specview_cache AS c (holder, language, test_key, rendered, job_id) \
               SELECT $1, $2, k, t, $5 FROM unnest($3::bytea[], $4::text[]) AS n (k, t) ORDER BY k \
               ON CONFLICT (holder, language, test_key) \
               DO UPDATE SET rendered = excluded.rendered, job_id = excluded.job_id \
               WHERE NOT EXISTS (SELECT 1 FROM usage_events u WHERE u.job_id = c.job_id) \
                 AND (c.job_id = excluded.job_id \
                      OR NOT EXISTS (SELECT 1 FROM river_job j WHERE j.id = c.job_id AND j.state = 'running')) \
               RETURNING test_key";
    let claimed = pool
        .query(sql, &[&holder, &language, &keys, &texts, &job_id])
        .await?;
    Ok(claimed.len())
}
