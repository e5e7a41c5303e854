//! Finds the tests declared in one file.

use serde::{Deserialize, Serialize};

use super::frameworks::Pattern;

/// A longer name is truncated, in bytes, because each test repeats the names of its suites.
pub(super) const MAX_NAME: usize = 512;

/// A test case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TestCase {
    /// The path of its file.
    pub(crate) file: String,
    /// Its name, prefixed by its suites: `suite > name`.
    pub(crate) name: String,
    /// The line where it is declared, from 1.
    pub(crate) line: usize,
}

/// The tests exceed the maximum size of an output.
pub(super) struct TooMuch;

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Adds the test cases of one file. The size of their texts is subtracted from `left`.
pub(super) fn scan(
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

/// At most the last [`MAX_NAME`] bytes of a name, because the test's name is at the end.
pub(super) fn shortened(name: String) -> String {
    if name.len() <= MAX_NAME {
        return name;
    }
    let mut from = name.len() - (MAX_NAME - '…'.len_utf8());
    while !name.is_char_boundary(from) {
        from += 1;
    }
    format!("…{}", &name[from..])
}

/// The name from the group that matched.
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
    use super::super::frameworks::language;
    use super::*;

    fn find(path: &str, content: &str, mut left: usize) -> Result<Vec<TestCase>, TooMuch> {
        let mut tests = Vec::new();
        if let Some((_, pattern)) = language(path, content) {
            scan(path, content, pattern, &mut tests, &mut left)?;
        }
        Ok(tests)
    }

    fn find_tests(path: &str, content: &str) -> Vec<TestCase> {
        find(path, content, 1_000_000).ok().unwrap()
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
        assert!(tests[0].name.len() <= MAX_NAME, "{}", tests[0].name.len());
        assert!(tests[0].name.starts_with('…') && tests[0].name.ends_with(" > is the name"));
        assert!(shortened("é".repeat(MAX_NAME)).len() <= MAX_NAME);
    }

    #[test]
    fn too_many_tests_are_an_error_and_use_bounded_memory() {
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
    fn python_tests_include_their_class() {
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
    fn javascript_tests_include_their_suites() {
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
    fn commented_out_tests_are_ignored() {
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
