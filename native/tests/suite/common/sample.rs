//! The handler of the builtin services, in tests only.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use weir::config::service::HandlerSpec;
use weir::context::Context;
use weir::handler::{Attempt, Handler, HandlerError, Outcome, Refusal, Worked};
use weir_ledger::holder::Holder;

/// Counts the tests in Go files.
struct Sample;

#[async_trait]
impl Handler for Sample {
    async fn reserve(&self, _holder: Holder, args: &Map<String, Value>) -> Result<i64, Refusal> {
        let files = args.get("files").and_then(Value::as_array);
        let named = |file: &Value| file["path"].as_str().is_some_and(|path| !path.is_empty());
        match files.is_some_and(|files| !files.is_empty() && files.iter().all(named)) {
            true => Ok(1),
            false => Err(Refusal::Arguments("\"files\" must be a list of files".to_owned())),
        }
    }

    async fn work(&self, attempt: Attempt) -> Result<Worked, HandlerError> {
        let mut tests = Vec::new();
        for file in attempt.args["files"].as_array().into_iter().flatten() {
            let lines = file["content"].as_str().unwrap_or_default().lines();
            let found = lines.filter(|line| line.starts_with("func Test"));
            tests.extend(found.map(|line| json!({ "file": file["path"], "name": line })));
        }
        Ok(Outcome {
            output: json!({ "count": tests.len(), "tests": tests }),
            used: None,
        }
        .into())
    }
}

/// The context with this handler for each builtin service.
pub fn with_samples(mut context: Context) -> Context {
    for service in &Arc::clone(&context.settings).services {
        if matches!(service.handler, HandlerSpec::Builtin { .. }) {
            context = context.with_handler(&service.kind, Arc::new(Sample));
        }
    }
    context
}
