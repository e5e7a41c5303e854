//! How test frameworks declare tests.

use std::sync::LazyLock;

use regex::Regex;

/// A framework's syntax for tests.
pub(super) struct Pattern {
    /// Group `name` is the test's name.
    pub(super) test: Regex,
    /// Group `name` is a suite's name. The indentation shows which tests it contains.
    pub(super) suite: Option<Regex>,
    /// A line that must precede the test, with only attributes and comments in between.
    pub(super) marker: Option<Regex>,
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

/// A file's framework and pattern. The path's extension selects the language. `None` for an unknown one.
pub(super) fn language(path: &str, content: &str) -> Option<(&'static str, &'static Pattern)> {
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
