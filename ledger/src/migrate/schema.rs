//! The intended contents of the database: the files of `schema/`, and the upgrades for older databases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;
use sha2::{Digest, Sha256};

include!(concat!(env!("OUT_DIR"), "/schema.rs"));

/// This binary's release, as `weir_schema.release` records it.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// The parts of all tables. A test compares this file with a new database, and writes it with `UPDATE_SNAPSHOTS=1`.
const OBJECTS: &str = include_str!("../../snapshots/objects.txt");

/// The table that records applied files. It is created first and locked during any change, so only one process migrates
/// at a time. Only roles that may write it can take that lock.
pub(super) const RECORD: &str = "tables/weir_schema.sql";

/// The placeholder for the schema of River's tables in a file.
const RIVER_SCHEMA: &str = "{river_schema}";

#[expect(clippy::unwrap_used, reason = "constants, which every test compiles")]
static OBJECT: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"(?m)^\s*CREATE\s+(?:OR\s+REPLACE\s+)?(?:UNIQUE\s+)?(TABLE|TYPE|DOMAIN|VIEW|SEQUENCE|INDEX|FUNCTION|PROCEDURE)\s+(?:IF\s+NOT\s+EXISTS\s+)?(\w+)",
    )
    .unwrap()
});

#[expect(clippy::unwrap_used, reason = "constants, which every test compiles")]
static REFERENCE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\bREFERENCES (\w+)").unwrap());

#[expect(clippy::unwrap_used, reason = "constants, which every test compiles")]
static FREED: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?m)^(?:DROP TABLE (\w+);|ALTER TABLE (\w+) RENAME TO)").unwrap());

/// The names of the functions and views that each file of this release creates.
pub(super) static CREATED: LazyLock<BTreeMap<String, Vec<String>>> = LazyLock::new(|| {
    let files = Schema::present().files.into_iter();
    files
        .filter(SchemaFile::is_replaceable)
        .map(|file| {
            let is_function = file.path.starts_with("functions/");
            let objects = file.creates().into_iter();
            let own = objects.filter(|(kind, _)| (*kind == Kind::Function) == is_function);
            let names = own.map(|(_, name)| name).collect();
            (file.path, names)
        })
        .collect()
});

/// The kinds of objects that files create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Tables, views, indexes and types, which share a namespace.
    Relation,
    /// Functions and procedures.
    Function,
}

/// One file: its path in `schema/` or `upgrades/`, and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaFile {
    /// For example `functions/api/weir_submit.sql`.
    pub path: String,
    /// SQL, in which `{river_schema}` stands for the schema of River's tables.
    pub sql: String,
}

impl SchemaFile {
    fn of((path, sql): &(&str, &str)) -> Self {
        Self {
            path: (*path).to_owned(),
            sql: (*sql).to_owned(),
        }
    }

    /// The file's text for this schema of River's tables, which is part of a string literal there.
    pub(super) fn for_river(&self, river: &str) -> String {
        self.sql.replace(RIVER_SCHEMA, &river.replace('\'', "''"))
    }

    /// The objects that it creates.
    pub(super) fn creates(&self) -> Vec<(Kind, String)> {
        let objects = OBJECT.captures_iter(&self.sql).map(|found| {
            let kind = if matches!(&found[1], "FUNCTION" | "PROCEDURE") {
                Kind::Function
            } else {
                Kind::Relation
            };
            (kind, found[2].to_owned())
        });
        objects.collect()
    }

    /// The names of the tables that it drops or renames, which a view of the same release may have.
    pub(super) fn frees(&self) -> Vec<String> {
        let names = FREED.captures_iter(&self.sql);
        let names = names.filter_map(|found| found.get(1).or_else(|| found.get(2)));
        names.map(|name| name.as_str().to_owned()).collect()
    }

    /// Whether it contains a function or a view, which is replaced when the file changes.
    fn is_replaceable(&self) -> bool {
        self.path.starts_with("functions/") || self.path.starts_with("views/")
    }

    /// Whether it contains a trigger function. Triggers need these functions first, and the functions need no table to
    /// be created.
    fn is_trigger_function(&self) -> bool {
        self.path.starts_with("functions/") && self.sql.contains("RETURNS trigger")
    }

    fn hash(&self) -> String {
        let hash = Sha256::digest(self.sql.as_bytes());
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The number at the start of an upgrade's name.
    pub(super) fn number(&self) -> i32 {
        let digits = self.path.split("__").next().unwrap_or_default();
        digits.parse().unwrap_or_default()
    }
}

/// The intended contents of a database.
#[derive(Clone, Debug)]
pub struct Schema {
    /// The files of `schema/`.
    pub files: Vec<SchemaFile>,
    /// The upgrades, in order.
    pub upgrades: Vec<SchemaFile>,
    /// The release that applies them.
    pub release: String,
    /// The columns, constraints, indexes and triggers of the tables, as `objects.sql` describes them.
    pub objects: BTreeSet<String>,
}

/// The applied files of a database, as `weir_schema` records them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Applied {
    pub(super) release: String,
    pub(super) upgrade: i32,
    pub(super) files: BTreeMap<String, String>,
}

impl Schema {
    /// The schema of this release.
    #[must_use]
    pub fn present() -> Self {
        Self {
            files: FILES.iter().map(SchemaFile::of).collect(),
            upgrades: UPGRADES.iter().map(SchemaFile::of).collect(),
            release: RELEASE.to_owned(),
            objects: OBJECTS.lines().map(str::to_owned).collect(),
        }
    }

    /// All files in order of their dependencies: types, trigger functions, tables after those that they reference,
    /// other functions, views, rows. PostgreSQL checks a view when it is created, and these functions when they run.
    pub(super) fn in_order(&self) -> Vec<&SchemaFile> {
        let rank = |file: &SchemaFile| match file.path.split('/').next() {
            Some("types.sql") => 0,
            Some("functions") if file.is_trigger_function() => 1,
            Some("tables") => 2,
            Some("functions") => 3,
            Some("views") => 4,
            _ => 5,
        };
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort_by_key(|file| rank(file));
        let (mut ordered, mut created) = (Vec::new(), BTreeSet::new());
        // A table that depends on another one is moved behind it. A cycle would stay unchanged, and PostgreSQL would
        // refuse it.
        while !files.is_empty() {
            let ready = files.iter().position(|file| {
                let own = file.creates();
                REFERENCE.captures_iter(&file.sql).all(|reference| {
                    created.contains(&reference[1]) || own.iter().any(|(_, name)| *name == reference[1])
                })
            });
            let file = files.remove(ready.unwrap_or_default());
            created.extend(file.creates().into_iter().map(|(_, name)| name));
            ordered.push(file);
        }
        ordered
    }

    /// The record of a database with the whole schema applied.
    pub(super) fn applied(&self) -> Applied {
        let replaceable = self.files.iter().filter(|file| file.is_replaceable());
        Applied {
            release: self.release.clone(),
            upgrade: self.latest_upgrade(),
            files: replaceable.map(|file| (file.path.clone(), file.hash())).collect(),
        }
    }

    pub(super) fn latest_upgrade(&self) -> i32 {
        self.upgrades
            .iter()
            .map(SchemaFile::number)
            .max()
            .unwrap_or_default()
    }

    /// The new trigger functions, which upgrades may create triggers with. Then the missing upgrades, and the other
    /// functions and views that differ from this release's. Empty when a newer release migrated the database, because
    /// its functions stay.
    pub(super) fn missing_from(&self, applied: &Applied) -> Vec<&SchemaFile> {
        if self.is_older_than(applied) {
            return Vec::new();
        }
        let upgrades = self
            .upgrades
            .iter()
            .filter(|file| file.number() > applied.upgrade);
        let changed = self
            .in_order()
            .into_iter()
            .filter(|file| file.is_replaceable() && applied.files.get(&file.path) != Some(&file.hash()));
        let is_new =
            |file: &&SchemaFile| file.is_trigger_function() && !applied.files.contains_key(&file.path);
        let (mut files, changed): (Vec<_>, Vec<_>) = changed.partition(is_new);
        files.extend(upgrades);
        files.extend(changed);
        files
    }

    /// Whether a process of this release can use a database with these files. A newer release's functions support the
    /// processes of the previous release.
    pub(super) fn is_served_by(&self, applied: &Applied) -> bool {
        let is_whole = self.is_older_than(applied) || applied.files == self.applied().files;
        applied.upgrade >= self.latest_upgrade() && is_whole
    }

    /// Whether a newer release migrated the database.
    pub(super) fn is_older_than(&self, applied: &Applied) -> bool {
        numbers(&applied.release) > numbers(&self.release)
    }

    /// The names of all objects of one kind.
    pub(super) fn names(&self, kind: Kind) -> BTreeSet<String> {
        let objects = self.files.iter().flat_map(SchemaFile::creates);
        objects
            .filter(|(of, _)| *of == kind)
            .map(|(_, name)| name)
            .collect()
    }
}

/// A release's numbers, for comparison.
fn numbers(release: &str) -> Vec<u64> {
    release
        .split(['.', '-', '+'])
        .map_while(|number| number.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_come_after_the_tables_that_they_reference() {
        let schema = Schema::present();
        let paths: Vec<_> = schema.in_order().iter().map(|file| file.path.clone()).collect();
        assert_eq!(paths.len(), schema.files.len());
        let at = |path: &str| paths.iter().position(|other| other == path).unwrap();
        assert!(at("tables/users.sql") < at("tables/holders.sql"));
        assert!(at("functions/counters/remember_grants.sql") < at("tables/holders.sql"));
        assert!(at("tables/weir_jobs.sql") < at("functions/account/account_of.sql"));
        assert_eq!(paths.last().map(String::as_str), Some("rows.sql"));
    }

    #[test]
    fn older_processes_accept_a_newer_schema_but_not_the_reverse() {
        let schema = Schema::present();
        let mut applied = schema.applied();
        assert!(schema.is_served_by(&applied));
        applied
            .files
            .insert("functions/api/weir_submit.sql".to_owned(), String::new());
        assert!(!schema.is_served_by(&applied), "same release, another function");
        applied.release = "999.0.0".to_owned();
        assert!(schema.is_served_by(&applied));
        applied.release = "0.0.9".to_owned();
        assert!(!schema.is_served_by(&applied));
    }

    #[test]
    fn each_file_creates_its_object_and_each_function_has_one_file() {
        let schema = Schema::present();
        let mut functions = Vec::new();
        for file in schema.files.iter().filter(|file| file.path.contains('/')) {
            let name = file.path.rsplit('/').next().unwrap().trim_end_matches(".sql");
            let created = file.creates();
            assert_eq!(created[0].1, name, "{}", file.path);
            functions.extend(created.into_iter().filter(|(kind, _)| *kind == Kind::Function));
        }
        let names: BTreeSet<_> = functions.iter().map(|(_, name)| name).collect();
        assert_eq!(names.len(), functions.len(), "one definition a function");
    }

    #[test]
    fn only_new_trigger_functions_are_created_before_the_upgrades() {
        let mut schema = Schema::present();
        let applied = schema.applied();
        let (new, changed) = (
            "functions/events/keep_notes.sql",
            "functions/events/emit_usage.sql",
        );
        let known = schema.files.iter_mut().find(|file| file.path == changed);
        known.unwrap().sql.push_str("-- Changed.\n");
        let sql = "CREATE OR REPLACE FUNCTION keep_notes() RETURNS trigger".to_owned();
        let path = new.to_owned();
        schema.files.push(SchemaFile { path, sql });
        let (path, sql) = ("9999__notes.sql".to_owned(), String::new());
        schema.upgrades.push(SchemaFile { path, sql });
        let missing: Vec<_> = schema
            .missing_from(&applied)
            .iter()
            .map(|file| file.path.clone())
            .collect();
        assert_eq!(missing, [new, "9999__notes.sql", changed]);
    }

    /// The functions of the schema that an upgrade creates or calls. It may drop them, and create triggers with them.
    fn misused_functions(schema: &Schema, upgrade: &SchemaFile) -> Vec<String> {
        let text: Vec<_> = upgrade
            .sql
            .lines()
            .map(|line| line.split("--").next().unwrap_or_default())
            .collect();
        let allowed =
            Regex::new(r"(?i)\b(DROP\s+(FUNCTION|PROCEDURE)(\s+IF\s+EXISTS)?|EXECUTE\s+FUNCTION)\s+\w+\s*\(")
                .unwrap();
        let text = text.join("\n");
        let text = allowed.replace_all(&text, "(");
        let called = Regex::new(r"\b(\w+)\s*\(").unwrap();
        let called: BTreeSet<_> = called
            .captures_iter(&text)
            .map(|found| found[1].to_lowercase())
            .collect();
        let created = upgrade.creates().into_iter();
        let created = created.filter(|(kind, _)| *kind == Kind::Function);
        let mut misused: BTreeSet<_> = schema.names(Kind::Function);
        misused.retain(|name| called.contains(name));
        misused.extend(created.map(|(_, name)| name));
        misused.into_iter().collect()
    }

    #[test]
    fn upgrades_neither_create_nor_call_functions() {
        let schema = Schema::present();
        for upgrade in &schema.upgrades {
            assert!(upgrade.number() > 0, "{} has no number", upgrade.path);
            let misused = misused_functions(&schema, upgrade);
            assert_eq!(misused, Vec::<String>::new(), "{}", upgrade.path);
        }
    }

    #[test]
    fn an_upgrade_that_creates_or_calls_a_function_is_found() {
        let schema = Schema::present();
        let misused = |sql: &str| {
            let (path, sql) = ("0001__sample.sql".to_owned(), sql.to_owned());
            misused_functions(&schema, &SchemaFile { path, sql })
        };
        assert_eq!(
            misused("UPDATE holders SET parked = 0 WHERE utc_text (now()) > '';"),
            ["utc_text"]
        );
        assert_eq!(
            misused("CREATE OR REPLACE FUNCTION note(text) RETURNS text;"),
            ["note"]
        );
        let allowed = "-- As utc_text(at) did.\n\
                       DROP FUNCTION IF EXISTS utc_text(timestamptz);\n\
                       DROP FUNCTION plan_of(uuid, text);\n\
                       CREATE TRIGGER emit_job_ends AFTER DELETE ON quota_reservations\n\
                       FOR EACH ROW EXECUTE FUNCTION emit_job_ends();\n\
                       UPDATE users SET id = gen_random_uuid();";
        assert_eq!(misused(allowed), Vec::<String>::new());
    }
}
