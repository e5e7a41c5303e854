//! The schemas of Weir's tables and of River's.

/// River puts a topic behind its schema's name in the names of its channels, and an identifier has 63 bytes.
pub const MAX_RIVER_SCHEMA: usize = riverqueue::migrate::SCHEMA_MAX_LEN;

/// Where the tables are. What is not named here is where the `search_path` of the session leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schemas {
    /// `WEIR_SCHEMA`: Weir's.
    pub weir: Option<String>,
    /// `RIVER_SCHEMA`: River's.
    pub river: Option<String>,
}

impl Schemas {
    /// Leads a session to both, and to nothing else: a table of somebody else's is never taken for one of Weir's. `None`
    /// where the session's own `search_path` decides.
    ///
    /// `weir.schema` and `weir.river_schema` say which tables are this Weir's, where a name finds others.
    pub(super) fn enter(&self) -> Option<String> {
        if *self == Self::default() {
            return None;
        }
        let led = |table| format!("coalesce({}, quote_ident(current_schema()))", schema_of(table));
        let weir = self.weir.as_deref().map_or_else(|| led("weir_schema"), quoted);
        let river = self.river.as_deref().map_or_else(|| led("river_job"), quoted);
        let quoted = |schema: &Option<String>| literal(schema.as_deref().unwrap_or_default());
        Some(format!(
            "SELECT set_config('search_path', concat_ws(', ', {weir}, {river}), false), \
                    set_config('weir.schema', {}, false), set_config('weir.river_schema', {}, false)",
            quoted(&self.weir),
            quoted(&self.river)
        ))
    }

    /// Leads a session of River's client, whose channels are named after the first schema of the path, and says whether
    /// it can write: a connection that was made while the server was read-only stays so when the server no longer is,
    /// and River would keep it for half an hour.
    pub(super) fn enter_rivers(&self) -> String {
        let path = self.river.as_deref().map_or_else(
            || {
                let found = schema_of("river_job");
                format!("concat_ws(', ', {found}, current_setting('search_path'))")
            },
            quoted,
        );
        format!(
            "SELECT current_setting('transaction_read_only') = 'off' \
                    AND set_config('search_path', {path}, false) IS NOT NULL"
        )
    }
}

/// The schema in which a session finds a table, quoted; null where it finds none.
fn schema_of(table: &str) -> String {
    format!(
        "(SELECT quote_ident(n.nspname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
          WHERE c.oid = to_regclass('{table}'))"
    )
}

fn quoted(name: &str) -> String {
    format!("quote_ident({})", literal(name))
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
