//! The schemas of Weir's tables and River's tables.

/// The maximum length of a schema for River. Its channels' names consist of the schema and a topic, and an identifier
/// has at most 63 bytes.
pub const MAX_RIVER_SCHEMA: usize = riverqueue::migrate::SCHEMA_MAX_LEN;

/// The schemas of the tables. An unnamed one is found by the session's `search_path`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schemas {
    /// `WEIR_SCHEMA`: the schema of Weir's tables.
    pub weir: Option<String>,
    /// `RIVER_SCHEMA`: the schema of River's tables.
    pub river: Option<String>,
}

impl Schemas {
    /// Sets a session's `search_path` to both schemas and nothing else, so that statements never use another program's
    /// table instead of Weir's. `None` if the session's own `search_path` applies.
    ///
    /// `weir.schema` and `weir.river_schema` name the schemas of this Weir's tables, in case a name leads to others.
    pub(super) fn setup(&self) -> Option<String> {
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

    /// The `search_path` of River's client, as an expression. Its channels are named after the first schema.
    fn rivers_path(&self) -> String {
        self.river.as_deref().map_or_else(
            || {
                let found = schema_of("river_job");
                format!("concat_ws(', ', {found}, current_setting('search_path'))")
            },
            quoted,
        )
    }

    /// Prepares a session of River's client. Also reports whether the session can write. A connection opened while the
    /// server was read-only stays read-only, and River would keep it for half an hour.
    pub(super) fn river_setup(&self) -> String {
        let path = self.rivers_path();
        format!(
            "SELECT current_setting('transaction_read_only') = 'off' \
                    AND set_config('search_path', {path}, false) IS NOT NULL"
        )
    }
}

/// The schema in which a session finds a table, quoted; null if it finds none.
fn schema_of(table: &str) -> String {
    format!(
        "(SELECT quote_ident(n.nspname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
          WHERE c.oid = to_regclass('{table}'))"
    )
}

fn quoted(name: &str) -> String {
    format!("quote_ident({})", literal(name))
}

/// A text as a constant of SQL.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
