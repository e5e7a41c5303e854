//! `analyze`: finds the test cases in source files.
//!
//! It reads the way test frameworks declare tests, line by line: no compiler, no parser per language. That finds
//! what people write and stays fast on files that do not even compile.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use async_trait::async_trait;
use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::attempt::{Attempt, Handler, HandlerError, LARGEST_OUTPUT, Outcome, Refusal};
use weir_ledger::holder::Holder;

/// More files than this are refused.
const MOST_FILES: usize = 500;

/// A longer path is refused, in bytes: each test found repeats it.
const LONGEST_PATH: usize = 512;

/// A longer name is cut, in bytes: each test found repeats the names of the suites around it.
const LONGEST_NAME: usize = 512;

/// What the tests found may take, in bytes of paths and names. Beyond it the job ends with an error, before it has
/// taken the memory of everybody else.
const MOST_TEXT: usize = LARGEST_OUTPUT / 2;

pub(super) struct Analysis;

/// The arguments; what else a job carries (`owner`, `repo`, `commit_sha`, `user_id`) is not looked at.
#[derive(Deserialize)]
struct Arguments {
    files: Vec<File>,
}

#[derive(Deserialize)]
struct File {
    path: String,
    content: String,
}

/// A test case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TestCase {
    /// The path of its file.
    pub(super) file: String,
    /// Its name, with the suites around it: `suite > name`.
    pub(super) name: String,
    /// The line where it is declared, from 1.
    pub(super) line: usize,
}

fn arguments(args: &Map<String, Value>) -> Result<Arguments, String> {
    let wants = "\"files\" must be a list of {\"path\": \"a_test.go\", \"content\": \"…\"}";
    let arguments: Arguments =
        serde_json::from_value(Value::Object(args.clone())).map_err(|error| format!("{wants}: {error}"))?;
    if arguments.files.is_empty() {
        return Err(format!("{wants} with at least one file"));
    }
    if arguments.files.len() > MOST_FILES {
        return Err(format!(
            "\"files\" has {} entries, but at most {MOST_FILES}",
            arguments.files.len()
        ));
    }
    if arguments.files.iter().any(|file| file.path.is_empty()) {
        return Err("every file needs a \"path\", since its ending tells the language".to_owned());
    }
    if arguments.files.iter().any(|file| file.path.len() > LONGEST_PATH) {
        return Err(format!("a \"path\" may have at most {LONGEST_PATH} bytes"));
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

    async fn work(&self, attempt: Attempt) -> Result<Outcome, HandlerError> {
        let arguments = arguments(&attempt.args).map_err(HandlerError::Permanent)?;
        // Big inputs must not hold up the other jobs of this thread.
        let found = tokio::task::spawn_blocking(move || {
            let mut frameworks = BTreeSet::new();
            let mut tests = Vec::new();
            let mut left = MOST_TEXT;
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
        })
    }
}

/// How one framework writes a test.
struct Pattern {
    /// Group `name` is the test's name.
    test: Regex,
    /// Group `name` is a suite's name; the indentation tells what is inside it.
    suite: Option<Regex>,
    /// A line that must stand above the test's, with nothing but attributes and comments in between.
    marker: Option<Regex>,
}

#[allow(
    clippy::unwrap_used,
    reason = "the expressions are constants that the tests below compile"
)]
fn regex(expression: &str) -> Regex {
    Regex::new(expression).unwrap()
}

static RUST: LazyLock<Pattern> = LazyLock::new(|| Pattern {
    test: regex(r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:async\s+)?fn\s+(?P<name>\w+)"),
    suite: None,
    marker: Some(regex(
        r"^\s*#\[(?:\w+::)*(?:test|rstest|test_case|proptest|wasm_bindgen_test)\b",
    )),
});
static GO: LazyLock<Pattern> = LazyLock::new(|| Pattern {
    test: regex(
        r#"^(?:func\s+(?:\([^)]*\)\s*)?(?P<name>(?:Test|Benchmark|Fuzz|Example)(?:[^a-z\s(]\w*)?)\s*\(|\s+\w+\.Run\(\s*"(?P<sub>[^"]+)")"#,
    ),
    suite: None,
    marker: None,
});
static PYTHON: LazyLock<Pattern> = LazyLock::new(|| Pattern {
    test: regex(r"^\s*(?:async\s+)?def\s+(?P<name>test\w*)\s*\("),
    suite: Some(regex(r"^(?P<indent>\s*)class\s+(?P<name>\w*Test\w*)")),
    marker: None,
});
static JAVASCRIPT: LazyLock<Pattern> = LazyLock::new(|| {
    let call = r"(?:\.(?:only|skip|todo|concurrent|failing|each\([^)]*\)))*\s*\(\s*";
    let text = r#"(?:'(?P<a>(?:[^'\\]|\\.)*)'|"(?P<b>(?:[^"\\]|\\.)*)"|`(?P<c>(?:[^`\\]|\\.)*)`)"#;
    Pattern {
        test: regex(&format!(
            r"^\s*(?:await\s+)?(?:it|test|specify|t\.test){call}{text}"
        )),
        suite: Some(regex(&format!(
            r"^(?P<indent>\s*)(?:describe|suite|context|test\.describe){call}{text}"
        ))),
        marker: None,
    }
});
static JAVA: LazyLock<Pattern> = LazyLock::new(|| Pattern {
    test: regex(
        r"^\s*(?:(?:public|protected|private|static|final|suspend|override)\s+)*(?:fun\s+`?(?P<name>[^`(]+)`?|[\w<>\[\]]+\s+(?P<sub>\w+))\s*\(",
    ),
    suite: None,
    marker: Some(regex(
        r"^\s*@(?:Test|ParameterizedTest|RepeatedTest|TestFactory|Property)\b",
    )),
});
static RUBY: LazyLock<Pattern> = LazyLock::new(|| {
    let text = r#"(?:'(?P<a>[^']*)'|"(?P<b>[^"]*)")"#;
    Pattern {
        test: regex(&format!(
            r"^\s*(?:(?:it|specify|test)\s*\(?\s*{text}|def\s+(?P<name>test_\w+))"
        )),
        suite: Some(regex(&format!(
            r"^(?P<indent>\s*)(?:RSpec\.)?(?:describe|context)\s*\(?\s*(?:{text}|(?P<name>[A-Z][\w:]*))"
        ))),
        marker: None,
    }
});

/// The framework and the pattern of a file; the path's ending tells the language. `None` for one that is not known.
fn language(path: &str, content: &str) -> Option<(&'static str, &'static Pattern)> {
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    let ending = name
        .rsplit_once('.')
        .map(|(_, ending)| ending.to_ascii_lowercase());
    let (framework, pattern): (&str, &'static Pattern) = match ending.as_deref() {
        Some("rs") => ("rust", &RUST),
        Some("go") => ("go testing", &GO),
        Some("py") => (
            if content.contains("unittest") {
                "unittest"
            } else {
                "pytest"
            },
            &PYTHON,
        ),
        Some("js" | "jsx" | "mjs" | "cjs" | "ts" | "tsx" | "mts" | "cts") => {
            (javascript_framework(content), &JAVASCRIPT)
        }
        Some("java" | "kt" | "kts") => ("junit", &JAVA),
        Some("rb") => (
            if content.contains("RSpec") || content.contains("describe") {
                "rspec"
            } else {
                "minitest"
            },
            &RUBY,
        ),
        _ => return None,
    };
    Some((framework, pattern))
}

/// The tests found take more than a job may keep.
struct TooMuch;

fn javascript_framework(content: &str) -> &'static str {
    if content.contains("vitest") {
        "vitest"
    } else if content.contains("@playwright/test") {
        "playwright"
    } else if content.contains("node:test") {
        "node:test"
    } else if content.contains("mocha") || content.contains("chai") {
        "mocha"
    } else {
        "jest"
    }
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Adds the test cases of one file. What their texts take is taken off `left`.
fn scan(
    path: &str,
    content: &str,
    pattern: &Pattern,
    tests: &mut Vec<TestCase>,
    left: &mut usize,
) -> Result<(), TooMuch> {
    let mut suites: Vec<(usize, String)> = Vec::new();
    let mut marked = false;
    let mut parent: Option<String> = None;
    let mut block_comment = false;
    for (index, line) in content.lines().enumerate() {
        let trimmed = line.trim_start();
        if trimmed.is_empty() {
            continue;
        }
        if block_comment {
            block_comment = !trimmed.contains("*/");
            continue;
        }
        if trimmed.starts_with("/*") && !trimmed.contains("*/") {
            block_comment = true;
            continue;
        }
        let indent = indentation(line);
        if !trimmed.starts_with([')', '}', ']', '#', '@']) {
            suites.retain(|(at, _)| *at < indent);
        }
        if let Some(found) = pattern.suite.as_ref().and_then(|suite| suite.captures(line)) {
            if let Some(name) = captured(&found) {
                suites.push((indent, shortened(name)));
            }
            continue;
        }
        if pattern
            .marker
            .as_ref()
            .is_some_and(|marker| marker.is_match(line))
        {
            marked = true;
            continue;
        }
        if let Some(found) = pattern.test.captures(line)
            && (pattern.marker.is_none() || marked)
            && let Some(name) = captured(&found)
        {
            // A subtest belongs to the last test above it.
            let sub = pattern.marker.is_none() && found.name("sub").is_some();
            let mut names: Vec<String> = suites.iter().map(|(_, suite)| suite.clone()).collect();
            if sub {
                names.extend(parent.clone());
            } else {
                parent = Some(name.clone());
            }
            names.push(name);
            let name = shortened(names.join(" > "));
            *left = left.checked_sub(path.len() + name.len()).ok_or(TooMuch)?;
            tests.push(TestCase {
                file: path.to_owned(),
                name,
                line: index + 1,
            });
            marked = false;
        } else if !trimmed.starts_with(['#', '@']) && !trimmed.starts_with("//") {
            marked = false;
        }
    }
    Ok(())
}

/// At most [`LONGEST_NAME`] bytes of a name, the end of it: that is the test's own.
fn shortened(name: String) -> String {
    if name.len() <= LONGEST_NAME {
        return name;
    }
    let mut from = name.len() - (LONGEST_NAME - '…'.len_utf8());
    while !name.is_char_boundary(from) {
        from += 1;
    }
    format!("…{}", &name[from..])
}

/// The name in whichever of the groups matched.
fn captured(found: &regex::Captures<'_>) -> Option<String> {
    let text = ["name", "sub", "a", "b", "c"]
        .iter()
        .find_map(|group| found.name(group))?
        .as_str()
        .trim();
    (!text.is_empty()).then(|| text.replace("\\'", "'").replace("\\\"", "\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(path: &str, content: &str, mut left: usize) -> Result<Vec<TestCase>, TooMuch> {
        let mut tests = Vec::new();
        if let Some((_, pattern)) = language(path, content) {
            scan(path, content, pattern, &mut tests, &mut left)?;
        }
        Ok(tests)
    }

    fn find_tests(path: &str, content: &str) -> Vec<TestCase> {
        find(path, content, MOST_TEXT).ok().unwrap()
    }

    fn names(path: &str, content: &str) -> Vec<String> {
        find_tests(path, content)
            .into_iter()
            .map(|test| test.name)
            .collect()
    }

    #[test]
    fn names_that_repeat_their_suites_do_not_grow_without_bound() {
        let deep = format!("describe('{}', () => {{\n", "x".repeat(400)).repeat(3);
        let indented: String = deep
            .lines()
            .enumerate()
            .map(|(depth, line)| format!("{}{line}\n", "  ".repeat(depth)))
            .collect();
        let tests = find_tests(
            "a.test.ts",
            &format!("{indented}      it('is the name', () => {{}});\n"),
        );
        assert!(tests[0].name.len() <= LONGEST_NAME, "{}", tests[0].name.len());
        assert!(tests[0].name.starts_with('…') && tests[0].name.ends_with(" > is the name"));
        assert!(shortened("é".repeat(LONGEST_NAME)).len() <= LONGEST_NAME);
    }

    #[test]
    fn more_tests_than_an_output_may_have_are_an_error_and_not_memory() {
        let many = "it('a', () => {});\n".repeat(100);
        assert_eq!(find("a.test.ts", &many, 1000).ok().unwrap().len(), 100);
        assert!(find("a.test.ts", &many, 999).is_err());
    }

    #[test]
    fn rust_tests_are_functions_under_a_test_attribute() {
        let source = "\
#[cfg(test)]
mod tests {
    fn helper() {}

    #[test]
    #[should_panic(expected = \"x\")]
    fn one() {}

    #[tokio::test(flavor = \"multi_thread\")]
    async fn two() {}

    // #[test]
    fn three() {}
}
";
        assert_eq!(names("src/a.rs", source), ["one", "two"]);
        assert_eq!(find_tests("src/a.rs", source)[0].line, 7);
    }

    #[test]
    fn go_tests_start_with_test_and_a_capital_and_have_subtests() {
        let source = "\
package a

func TestAdd(t *testing.T) {
\tt.Run(\"negative numbers\", func(t *testing.T) {})
}
func Testify() {}
func BenchmarkAdd(b *testing.B) {}
func (s *Suite) TestInSuite() {}
func helper() {}
";
        assert_eq!(
            names("a_test.go", source),
            [
                "TestAdd",
                "TestAdd > negative numbers",
                "BenchmarkAdd",
                "TestInSuite"
            ]
        );
    }

    #[test]
    fn python_tests_carry_their_class() {
        let source = "\
import pytest

class TestCart:
    def test_empty(self):
        pass

    async def test_full(self):
        pass

def test_alone():
    pass

def helper():
    pass
";
        assert_eq!(
            names("test_cart.py", source),
            ["TestCart > test_empty", "TestCart > test_full", "test_alone"]
        );
    }

    #[test]
    fn javascript_tests_carry_the_suites_around_them() {
        let source = "\
describe('cart', () => {
  describe(\"when empty\", () => {
    it('has no total', async () => {});
    it.skip(`is not 'sold'`, () => {});
  });
  test.each([1, 2])('takes %i', (n) => {});
});
test('alone', () => {});
const it_is = 1;
";
        assert_eq!(
            names("cart.test.ts", source),
            [
                "cart > when empty > has no total",
                "cart > when empty > is not 'sold'",
                "cart > takes %i",
                "alone"
            ]
        );
    }

    #[test]
    fn java_and_kotlin_tests_are_methods_under_an_annotation() {
        let source = "\
class CartTest {
    @Test
    @DisplayName(\"x\")
    void empty() {}

    void helper() {}

    @ParameterizedTest
    public void full(int n) {}
}
";
        assert_eq!(names("CartTest.java", source), ["empty", "full"]);
        assert_eq!(
            names("CartTest.kt", "    @Test\n    fun `is empty`() {}\n"),
            ["is empty"]
        );
    }

    #[test]
    fn a_file_of_an_unknown_language_has_no_tests() {
        assert_eq!(
            find_tests("notes.txt", "func TestAdd(t *testing.T) {}"),
            Vec::new()
        );
    }

    #[test]
    fn what_is_commented_out_is_not_a_test() {
        assert_eq!(
            names(
                "a.test.ts",
                "/*\ntest('old', () => {});\n*/\ntest('new', () => {});\n"
            ),
            ["new"]
        );
        assert_eq!(
            names("a.test.ts", "// test('old', () => {});\n"),
            Vec::<String>::new()
        );
    }
}
