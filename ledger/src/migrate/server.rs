//! Whether the server, the database and the role allow a migration.

use tokio_postgres::GenericClient;

use super::known::quoted;
use crate::database::DatabaseError;

/// The oldest version of PostgreSQL that Weir supports, in the form of `server_version_num`.
const OLDEST_SERVER: i32 = 150_000;

/// The relevant properties of server, database and role.
#[derive(Debug)]
pub(super) struct Server {
    version: i32,
    release: String,
    encoding: String,
    is_read_only: bool,
    database: String,
    role: String,
    may_create_schemas: bool,
    /// `None` if the schema is missing.
    may_create_in_weir: Option<bool>,
    may_create_in_river: Option<bool>,
    /// The owner of the tables, if this role may not act as the owner.
    other_owner_of_weir: Option<String>,
    other_owner_of_river: Option<String>,
}

/// The planned changes of a migration.
#[derive(Clone, Copy)]
pub(super) struct Changes<'a> {
    pub(super) weir: &'a str,
    pub(super) river: &'a str,
    pub(super) changes_weir: bool,
    pub(super) changes_river: bool,
}

impl Server {
    pub(super) async fn of(
        client: &impl GenericClient,
        weir: &str,
        river: &str,
    ) -> Result<Self, DatabaseError> {
        let row = client
            .query_one(include_str!("sql/server.sql"), &[&weir, &river])
            .await?;
        Ok(Self {
            version: row.get("version"),
            release: row.get("release"),
            encoding: row.get("encoding"),
            is_read_only: row.get("is_read_only"),
            database: row.get("database"),
            role: row.get("role"),
            may_create_schemas: row.get("may_create_schemas"),
            may_create_in_weir: row.get("may_create_in_weir"),
            may_create_in_river: row.get("may_create_in_river"),
            other_owner_of_weir: row.get("other_owner_of_weir"),
            other_owner_of_river: row.get("other_owner_of_river"),
        })
    }

    /// All obstacles to these changes, each with a remedy.
    pub(super) fn faults(&self, changes: Changes<'_>) -> Vec<String> {
        let Changes { weir, river, .. } = changes;
        let mut faults = Vec::new();
        if self.version < OLDEST_SERVER {
            faults.push(format!(
                "the server is PostgreSQL {}, but Weir needs {} or newer; upgrade it, or use another server",
                self.release,
                OLDEST_SERVER / 10_000
            ));
        }
        if self.encoding != "UTF8" {
            faults.push(format!(
                "the database {:?} has the encoding {}, which cannot store every text; create one with: CREATE DATABASE \
                 name TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C.UTF-8'",
                self.database, self.encoding
            ));
        }
        if !(changes.changes_weir || changes.changes_river) {
            return faults;
        }
        if self.is_read_only {
            faults.push(
                "the server is read-only; set DATABASE_URL to the primary, or turn default_transaction_read_only off"
                    .to_owned(),
            );
        }
        let role = quoted(&self.role);
        let parts = [
            (
                "Weir",
                weir,
                self.may_create_in_weir,
                &self.other_owner_of_weir,
                changes.changes_weir,
            ),
            (
                "River",
                river,
                self.may_create_in_river,
                &self.other_owner_of_river,
                changes.changes_river,
            ),
        ];
        let changed = parts.into_iter().filter(|(.., is_changed)| *is_changed);
        let mut seen = None;
        for (whose, schema, may_create, other_owner, _) in changed {
            if let Some(owner) = other_owner {
                faults.push(format!(
                    "{whose}'s tables in schema {schema:?} belong to the role {owner}; connect as that role, or run as it \
                     or a superuser: GRANT {owner} TO {role}"
                ));
            }
            if seen.replace(schema) == Some(schema) {
                continue;
            }
            match may_create {
                Some(true) => {}
                Some(false) => faults.push(format!(
                    "the role {role} may not create tables in schema {schema:?}; as the schema's owner or a superuser, \
                     run: GRANT USAGE, CREATE ON SCHEMA {} TO {role}",
                    quoted(schema)
                )),
                None if self.may_create_schemas => {}
                None => faults.push(format!(
                    "the schema {schema:?} is missing, and the role {role} may not create it; as a superuser, run: CREATE \
                     SCHEMA {} AUTHORIZATION {role}",
                    quoted(schema)
                )),
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> Server {
        Server {
            version: 150_004,
            release: "15.4".to_owned(),
            encoding: "UTF8".to_owned(),
            is_read_only: false,
            database: "shop".to_owned(),
            role: "shop".to_owned(),
            may_create_schemas: false,
            may_create_in_weir: Some(true),
            may_create_in_river: Some(true),
            other_owner_of_weir: None,
            other_owner_of_river: None,
        }
    }

    const ALL: Changes<'_> = Changes {
        weir: "weir",
        river: "public",
        changes_weir: true,
        changes_river: true,
    };

    const NONE: Changes<'_> = Changes {
        changes_weir: false,
        changes_river: false,
        ..ALL
    };

    #[test]
    fn servers_that_are_too_old_are_refused() {
        let old = Server {
            version: 140_011,
            release: "14.11".to_owned(),
            ..server()
        };
        let wanted =
            ["the server is PostgreSQL 14.11, but Weir needs 15 or newer; upgrade it, or use another server"];
        assert_eq!(old.faults(ALL), wanted);
        assert_eq!(server().faults(ALL), [""; 0]);
    }

    #[test]
    fn rights_are_needed_only_for_changes() {
        let limited = Server {
            is_read_only: true,
            may_create_in_weir: None,
            may_create_in_river: Some(false),
            other_owner_of_weir: Some("anne".to_owned()),
            other_owner_of_river: Some("bert".to_owned()),
            ..server()
        };
        assert_eq!(limited.faults(ALL).len(), 5);
        assert_eq!(limited.faults(NONE), [""; 0]);
        // A schema that serves both is named once.
        let both = Changes {
            weir: "public",
            ..ALL
        };
        let lacking = Server {
            may_create_in_weir: Some(false),
            may_create_in_river: Some(false),
            ..server()
        };
        assert_eq!(lacking.faults(both).len(), 1);
    }
}
