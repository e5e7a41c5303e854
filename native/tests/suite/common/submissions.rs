//! Submissions as the API makes them, for tests that call the ledger directly.

use serde_json::json;
use uuid::Uuid;
use weir_ledger::holder::Holders;
use weir_ledger::meter::Meter;
use weir_ledger::reservation::Submission;

use super::GO_TESTS;

pub fn submission(user: Uuid, amount: i64) -> Submission {
    Submission {
        holder: Holders::user(user),
        subject: None,
        service: "analysis".to_owned(),
        meter: Meter::named("analysis"),
        kind: "analysis:analyze".to_owned(),
        max_attempts: 3,
        args: json!({ "user_id": user, "files": [{ "path": "a_test.go", "content": GO_TESTS }] }),
        metadata: json!({}),
        amount,
        idempotency: None,
        unique_key: None,
        run_at: None,
        priority: 1,
    }
}
