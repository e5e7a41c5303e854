//! Each function of the schema has a header that states its cost, callers and errors.

use std::path::{Path, PathBuf};

use regex::Regex;

use crate::layers::files_under;

#[test]
fn each_function_of_the_schema_has_a_complete_header() {
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ledger/schema");
    let files = files_under(&schema.join("functions"));
    assert!(files.len() > 70, "only {} functions were found", files.len());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let (header, body) = text.split_once("CREATE ").unwrap();
        let has = |words: &[&str]| words.iter().any(|word| header.contains(word));
        let file = file.display();
        assert!(has(&["Cost:"]), "{file} states no cost");
        assert!(has(&["Callers:", "Trigger"]), "{file} names no callers");
        assert!(
            !body.contains("RAISE") || has(&["Errors:", "Raises", "Refuses"]),
            "{file} names no errors"
        );
        assert!(
            body.contains("SET search_path FROM CURRENT")
                || has(&["inlines it", "cannot pin its search_path"]),
            "{file} neither sets its search_path nor explains why"
        );
    }
}

/// A file of each name among a function's callers contains the function's name.
#[test]
fn headers_of_functions_name_their_callers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let path = Regex::new(r"[\w/]+\.(?:rs|sql)").unwrap();
    let sources = files_under(&root.join("ledger"));
    let (mut callers, mut wrong) = (0, Vec::new());
    for file in files_under(&root.join("ledger/schema/functions")) {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let word = Regex::new(&format!(r"\b{name}\b")).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let header = text.split("CREATE ").next().unwrap().replace("\n--", "");
        let Some((_, list)) = header.split_once("Callers:") else {
            continue;
        };
        for caller in path.find_iter(list.split(". ").next().unwrap()) {
            callers += 1;
            let calls = |path: &PathBuf| word.is_match(&std::fs::read_to_string(path).unwrap());
            if !sources
                .iter()
                .any(|path| path.ends_with(caller.as_str()) && calls(path))
            {
                wrong.push(format!("{name}: {} does not call it", caller.as_str()));
            }
        }
    }
    assert!(callers > 50, "only {callers} callers were found");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
