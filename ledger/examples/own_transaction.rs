//! Submits a job in the transaction that inserts what the job is about: both are there, or neither.

use std::error::Error;

use serde_json::json;
use uuid::Uuid;
use weir_ledger::database::Database;
use weir_ledger::holder::Holders;
use weir_ledger::meter::Meter;
use weir_ledger::reservation::{Answer, Submission, reserve};

/// Returns the job's id; `None` when the user is over the quota, and then nothing was written.
pub async fn upload(database: &Database, user: Uuid, path: &str) -> Result<Option<i64>, Box<dyn Error>> {
    let submission = Submission {
        holder: Holders::user(user),
        subject: None,
        service: "analysis".to_owned(),
        meter: Meter::named("analysis"),
        kind: "analysis:analyze".to_owned(),
        max_attempts: 3,
        args: json!({ "user_id": user, "files": [{ "path": path, "content": "" }] }),
        metadata: json!({}),
        amount: 1,
        idempotency: None,
        unique_key: None,
        run_at: None,
        priority: 1,
    };
    let mut client = database.connect().await?;
    let transaction = client.transaction().await?;
    transaction
        .execute(
            "INSERT INTO uploads (user_id, path) VALUES ($1, $2)",
            &[&user, &path],
        )
        .await?;
    match reserve(&transaction, &submission).await? {
        Answer::Accepted { job, .. } => {
            transaction.commit().await?;
            Ok(Some(job.id))
        }
        _ => {
            transaction.rollback().await?;
            Ok(None)
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let database = Database::at(&std::env::var("DATABASE_URL")?)?;
    let id = upload(&database, Uuid::from_u128(7), "a_test.go").await?;
    eprintln!("job: {id:?}");
    Ok(())
}
