//! `analyze`: finds the test cases in source files.
//!
//! It matches the declarations of test frameworks line by line, without a compiler or a parser per language. That finds
//! common declarations, and is fast even on files that do not compile.

mod find;
mod frameworks;

use std::collections::BTreeSet;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use find::{TooMuch, scan};
use frameworks::language;
use weir::handler::{Attempt, Handler, HandlerError, MAX_OUTPUT, Outcome, Refusal, Worked};
use weir_ledger::holder::Holder;

/// Maximum number of files.
const MAX_FILES: usize = 500;

/// Maximum length of a path, in bytes, because each test repeats it.
const MAX_PATH: usize = 512;

/// Maximum size of the paths and names of all tests, in bytes. Above it the job fails before it exhausts the memory
/// that other jobs need.
const MAX_TEXT: usize = MAX_OUTPUT / 2;

pub(crate) use find::TestCase;

pub(crate) struct Analysis;

/// The arguments. The other members of a job (`owner`, `repo`, `commit_sha`, `user_id`) are ignored.
#[derive(Deserialize)]
struct Arguments {
    files: Vec<File>,
}

#[derive(Deserialize)]
struct File {
    path: String,
    content: String,
}

fn arguments(args: &Map<String, Value>) -> Result<Arguments, String> {
    let wants = "\"files\" must be a list of {\"path\": \"a_test.go\", \"content\": \"…\"}";
    let arguments: Arguments =
        serde_json::from_value(Value::Object(args.clone())).map_err(|error| format!("{wants}: {error}"))?;
    if arguments.files.is_empty() {
        return Err(format!("{wants} with at least one file"));
    }
    if arguments.files.len() > MAX_FILES {
        return Err(format!(
            "\"files\" has {} entries, but at most {MAX_FILES}",
            arguments.files.len()
        ));
    }
    if arguments.files.iter().any(|file| file.path.is_empty()) {
        return Err("every file needs a \"path\", because its extension selects the language".to_owned());
    }
    if arguments.files.iter().any(|file| file.path.len() > MAX_PATH) {
        return Err(format!("a \"path\" may have at most {MAX_PATH} bytes"));
    }
    for name in ["owner", "repo", "commit_sha"] {
        if args.get(name).is_some_and(|value| !value.is_string()) {
            return Err(format!("{name:?} must be text"));
        }
    }
    Ok(arguments)
}

#[async_trait]
impl Handler for Analysis {
    async fn reserve(&self, _holder: Holder, args: &Map<String, Value>) -> Result<i64, Refusal> {
        arguments(args).map(|_| 1).map_err(Refusal::Arguments)
    }

    async fn work(&self, attempt: Attempt) -> Result<Worked, HandlerError> {
        let arguments = arguments(&attempt.args).map_err(HandlerError::Permanent)?;
        // Large inputs must not block the other jobs of this thread.
        let found = tokio::task::spawn_blocking(move || {
            let mut frameworks = BTreeSet::new();
            let mut tests = Vec::new();
            let mut left = MAX_TEXT;
            for file in &arguments.files {
                let Some((framework, pattern)) = language(&file.path, &file.content) else {
                    continue;
                };
                let before = tests.len();
                scan(&file.path, &file.content, pattern, &mut tests, &mut left)?;
                if tests.len() > before {
                    frameworks.insert(framework);
                }
            }
            Ok(json!({ "count": tests.len(), "tests": tests, "frameworks": frameworks }))
        })
        .await
        .map_err(|error| HandlerError::Failed(error.to_string()))?;
        let found = found.map_err(|TooMuch| {
            HandlerError::Permanent("the files have too many tests for one job; send fewer files".to_owned())
        })?;
        Ok(Outcome {
            output: found,
            used: None,
        }
        .into())
    }
}
