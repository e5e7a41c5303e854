//! `specview`: renders the test cases of an analysis as a readable specification.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;
use tokio_postgres::types::ToSql;
use weir::handler::{Attempt, Handler, HandlerError, Outcome, Refusal, Worked};
use weir_ledger::database::{ConnectionPool, DatabaseError};
use weir_ledger::holder::Holder;
use weir_ledger::read::jobs::{self, JobOutput};

use super::analysis::TestCase;

const CREATE: &str = "\
CREATE SCHEMA IF NOT EXISTS specvital;
CREATE TABLE IF NOT EXISTS specvital.rendered (
    holder uuid, language text, test_key bytea, rendered text NOT NULL, job_id bigint NOT NULL,
    PRIMARY KEY (holder, language, test_key))";

/// The texts of tests that were charged. A first attempt that stores them and dies must not make the second one free.
const CHARGED: &str = "\
SELECT r.test_key, r.rendered FROM specvital.rendered r
WHERE r.holder = $1 AND r.language = $2 AND r.test_key = ANY ($3)
  AND EXISTS (SELECT 1 FROM usage_events u WHERE u.job_id = r.job_id)";

/// Stores tests for a job, and returns those that are charged to it. A row stays with another job that was charged for
/// it or is running. The order prevents deadlocks.
const CLAIM: &str = "\
INSERT INTO specvital.rendered AS r (holder, language, test_key, rendered, job_id)
SELECT $1, $2, k, t, $5 FROM unnest($3::bytea[], $4::text[]) AS n (k, t) ORDER BY k
ON CONFLICT (holder, language, test_key) DO UPDATE SET rendered = excluded.rendered, job_id = excluded.job_id
    WHERE NOT EXISTS (SELECT 1 FROM usage_events u WHERE u.job_id = r.job_id)
      AND (r.job_id = excluded.job_id
           OR NOT EXISTS (SELECT 1 FROM river_job j WHERE j.id = r.job_id AND j.state = 'running'))
RETURNING test_key";

pub(crate) struct Specview {
    pool: ConnectionPool,
    has_table: OnceCell<()>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Language {
    #[default]
    En,
    Ko,
}

impl Language {
    fn as_str(self) -> &'static str {
        match self {
            Self::En => "en",
            Self::Ko => "ko",
        }
    }
}

#[derive(Deserialize)]
struct Arguments {
    analysis_id: i64,
    #[serde(default)]
    language: Language,
}

#[derive(Deserialize)]
struct Analysed {
    tests: Vec<TestCase>,
}

fn arguments(args: &Map<String, Value>) -> Result<Arguments, String> {
    serde_json::from_value(Value::Object(args.clone())).map_err(|error| {
        format!("\"analysis_id\" must be the id of one of your analysis jobs, \"language\" must be en or ko: {error}")
    })
}

impl Specview {
    pub(crate) fn new(pool: ConnectionPool) -> Self {
        Self {
            pool,
            has_table: OnceCell::new(),
        }
    }

    async fn create_table(&self) -> Result<(), DatabaseError> {
        let create = || {
            self.pool
                .with(async |client| Ok::<_, DatabaseError>(client.batch_execute(CREATE).await?))
        };
        self.has_table.get_or_try_init(create).await.copied()
    }

    /// The tests that the holder's analysis found; `Err` explains why there are none to render.
    async fn tests(
        &self,
        holder: Holder,
        analysis_id: i64,
    ) -> Result<Result<Vec<TestCase>, String>, DatabaseError> {
        let Some(JobOutput { state, output }) = jobs::output(&self.pool, holder.id, analysis_id).await?
        else {
            return Ok(Err(format!(
                "you have no analysis {analysis_id}; submit it again if it is old"
            )));
        };
        if state.as_deref() != Some("completed") {
            return Ok(Err(format!("analysis {analysis_id} is not completed yet")));
        }
        let analysed: Option<Analysed> = output.and_then(|output| output.read());
        Ok(match analysed.map(|analysed| analysed.tests) {
            None => Err(format!("analysis {analysis_id} has no tests in its output")),
            Some(tests) if tests.is_empty() => Err(format!(
                "analysis {analysis_id} found no tests, so there is nothing to render"
            )),
            Some(tests) => Ok(tests),
        })
    }
}

#[async_trait]
impl Handler for Specview {
    async fn reserve(&self, holder: Holder, args: &Map<String, Value>) -> Result<i64, Refusal> {
        let arguments = arguments(args).map_err(Refusal::Arguments)?;
        // Otherwise clients that share an address could read each other's analyses.
        if holder.user_id.is_none() {
            let wants = "sign in to render a specification: an analysis belongs to the user who submitted it";
            return Err(Refusal::Arguments(wants.to_owned()));
        }
        let tests = self.tests(holder, arguments.analysis_id).await?;
        let count = tests.map_err(Refusal::Arguments)?.len();
        Ok(i64::try_from(count).unwrap_or(i64::MAX))
    }

    async fn work(&self, attempt: Attempt) -> Result<Worked, HandlerError> {
        let arguments = arguments(&attempt.args).map_err(HandlerError::Permanent)?;
        let holder = attempt.holder.ok_or_else(|| {
            HandlerError::Permanent(
                "a specview job needs a user: an analysis belongs to the user who submitted it".to_owned(),
            )
        })?;
        let tests = self
            .tests(holder, arguments.analysis_id)
            .await?
            .map_err(HandlerError::Permanent)?;
        let language = arguments.language;
        let keys: Vec<Vec<u8>> = tests.iter().map(key).collect();
        self.create_table().await?;
        let params: [&(dyn ToSql + Sync); 3] = [&holder.id, &language.as_str(), &keys];
        let rows = self.pool.query(CHARGED, &params).await?;
        let mut known: HashMap<Vec<u8>, String> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let (mut new_keys, mut new_texts) = (Vec::new(), Vec::new());
        let mut sentences = Vec::with_capacity(tests.len());
        for (test, key) in tests.iter().zip(keys) {
            let rendered = known.entry(key.clone()).or_insert_with(|| {
                let rendered = sentence(&test.name, language);
                new_keys.push(key);
                new_texts.push(rendered.clone());
                rendered
            });
            sentences.push(rendered.clone());
        }
        if attempt.cancelled.is_cancelled() {
            return Err(HandlerError::Cancelled);
        }
        let params: [&(dyn ToSql + Sync); 5] = [
            &holder.id,
            &language.as_str(),
            &new_keys,
            &new_texts,
            &attempt.job_id,
        ];
        let claimed = self.pool.query(CLAIM, &params).await?.len();
        let used = i64::try_from(claimed).unwrap_or(i64::MAX);
        let markdown = markdown(&tests, &sentences, language);
        Ok(Outcome {
            output: json!({ "markdown": markdown, "count": tests.len() }),
            used: Some(used),
        }
        .into())
    }
}

/// The identity of a test: the file and the name, without the line.
fn key(test: &TestCase) -> Vec<u8> {
    let mut hash = Sha256::new();
    hash.update(test.file.as_bytes());
    hash.update([0]);
    hash.update(test.name.as_bytes());
    hash.finalize().to_vec()
}

/// The words of a name in any style: `snake_case`, `camelCase`, `TestName`, or plain text.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut word = String::new();
    let mut previous: Option<char> = None;
    for (index, c) in name.char_indices() {
        let next_is_lower = name[index..].chars().nth(1).is_some_and(char::is_lowercase);
        let boundary = c.is_uppercase()
            && previous.is_some_and(|p| p.is_lowercase() || p.is_uppercase() && next_is_lower);
        if c == '_' || c.is_whitespace() || boundary {
            words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
        }
        if c != '_' && !c.is_whitespace() {
            word.push(c);
        }
        previous = Some(c);
    }
    words.extend((!word.is_empty()).then_some(word));
    if words.len() > 1 && ["test", "should"].contains(&words[0].to_lowercase().as_str()) {
        words.remove(0);
    }
    words
}

/// One test's name as a sentence.
fn sentence(name: &str, language: Language) -> String {
    let own = name.rsplit(" > ").next().unwrap_or(name);
    let mut text = words(own)
        .into_iter()
        .map(|word| {
            let is_acronym = word.chars().count() > 1 && !word.chars().any(char::is_lowercase);
            if is_acronym { word } else { word.to_lowercase() }
        })
        .collect::<Vec<_>>()
        .join(" ");
    if let Some(first) = text.get(..1) {
        let first = first.to_uppercase();
        text.replace_range(..1, &first);
    }
    match language {
        Language::En => format!("{text}."),
        Language::Ko => text,
    }
}

fn markdown(tests: &[TestCase], sentences: &[String], language: Language) -> String {
    let (title, count) = match language {
        Language::En => ("Specification", format!("{} test cases.", tests.len())),
        Language::Ko => ("테스트 명세", format!("테스트 케이스 {}개", tests.len())),
    };
    let mut text = format!("# {title}\n\n{count}\n");
    let mut files: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, test) in tests.iter().enumerate() {
        files.entry(&test.file).or_default().push(index);
    }
    for (file, indices) in files {
        let _ = writeln!(text, "\n## {}\n", code(file));
        let mut suite = "";
        for index in indices {
            let test = &tests[index];
            let own = test.name.rsplit_once(" > ").map_or("", |(suite, _)| suite);
            if own != suite {
                suite = own;
                if !suite.is_empty() {
                    let _ = writeln!(text, "\n### {}\n", escaped(suite));
                }
            }
            let _ = writeln!(text, "- {} (line {})", escaped(&sentences[index]), test.line);
        }
    }
    text
}

/// Escapes text, so that Markdown shows it unchanged: a test's name never becomes a link, an image, a heading or a
/// list.
fn escaped(text: &str) -> String {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let mut safe = String::with_capacity(text.len());
    for (index, c) in text.char_indices() {
        // The characters that can start a list or a heading's underline.
        let begins_block = index == 0 && matches!(c, '-' | '+' | '=')
            || index == digits && digits > 0 && matches!(c, '.' | ')');
        let begins_link = c == ':' && text[index..].starts_with("://");
        let is_markup = matches!(
            c,
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '&' | '#' | '!' | '|' | '~'
        );
        if begins_block || begins_link || is_markup {
            safe.push('\\');
        }
        safe.push(if c.is_control() { ' ' } else { c });
    }
    safe
}

/// Text as code, between more backticks than it contains in a row.
fn code(text: &str) -> String {
    let text: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or_default();
    let fence = "`".repeat(longest + 1);
    if longest == 0 {
        format!("{fence}{text}{fence}")
    } else {
        format!("{fence} {text} {fence}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_in_names_is_escaped() {
        for (name, wanted) in [
            ("[click](https://example.com)", r"\[click\](https\://example.com)"),
            ("![logo](a.png)", r"\!\[logo\](a.png)"),
            ("# Heading", r"\# Heading"),
            ("<b onclick=x>", r"\<b onclick=x\>"),
            ("1. first", r"1\. first"),
            ("2024) rounds", r"2024\) rounds"),
            ("- item", r"\- item"),
            ("a `b` *c* a_b &amp; |", r"a \`b\` \*c\* a\_b \&amp; \|"),
            (r"back\slash", r"back\\slash"),
            ("adds 1.5 - 2", "adds 1.5 - 2"),
            ("비어 있는 장바구니", "비어 있는 장바구니"),
            ("two\nlines", "two lines"),
        ] {
            assert_eq!(escaped(name), wanted, "{name:?}");
        }
        assert_eq!(code("a_test.go"), "`a_test.go`");
        assert_eq!(code("a``b`.go"), "``` a``b`.go ```");
        assert_eq!(code("a\n# b"), "`a # b`");
    }

    #[test]
    fn names_in_any_naming_style_become_sentences() {
        for (name, wanted) in [
            ("an_empty_cart_has_no_total", "An empty cart has no total."),
            ("TestParseURLWithPort", "Parse URL with port."),
            ("cart > when empty > has no total", "Has no total."),
            ("test_empty", "Empty."),
            ("shouldRejectNegativeNumbers", "Reject negative numbers."),
            ("비어 있는 장바구니", "비어 있는 장바구니."),
            ("", "."),
        ] {
            assert_eq!(sentence(name, Language::En), wanted, "{name:?}");
        }
    }

    #[test]
    fn the_document_groups_by_file_and_suite() {
        let tests = [
            ("b.ts", "cart > adds", 3),
            ("b.ts", "cart > removes", 9),
            ("a.rs", "one", 1),
        ]
        .map(|(file, name, line)| TestCase {
            file: file.to_owned(),
            name: name.to_owned(),
            line,
        });
        let sentences: Vec<_> = tests
            .iter()
            .map(|test| sentence(&test.name, Language::En))
            .collect();
        let text = markdown(&tests, &sentences, Language::En);
        assert_eq!(
            text,
            "# Specification\n\n3 test cases.\n\n## `a.rs`\n\n- One. (line 1)\n\n## `b.ts`\n\n\n### cart\n\n- Adds. (line 3)\n- Removes. (line 9)\n"
        );
    }

    #[test]
    fn the_same_test_on_another_line_is_the_same_test() {
        let at = |line| TestCase {
            file: "a.rs".to_owned(),
            name: "one".to_owned(),
            line,
        };
        assert_eq!(key(&at(1)), key(&at(7)));
    }
}
