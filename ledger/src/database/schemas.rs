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
        self.setup_until(false)
    }

    /// As [`Self::setup`], for the session, or only for the transaction.
    fn setup_until(&self, is_local: bool) -> Option<String> {
        if *self == Self::default() {
            return None;
        }
        let led = |table| format!("coalesce({}, quote_ident(current_schema()))", schema_of(table));
        let weir = self.weir.as_deref().map_or_else(|| led("weir_schema"), quoted);
        let river = self.river.as_deref().map_or_else(|| led("river_job"), quoted);
        let quoted = |schema: &Option<String>| literal(schema.as_deref().unwrap_or_default());
        Some(format!(
            "SELECT set_config('search_path', concat_ws(', ', {weir}, {river}), {is_local}), \
                    set_config('weir.schema', {}, {is_local}), set_config('weir.river_schema', {}, {is_local})",
            quoted(&self.weir),
            quoted(&self.river)
        ))
    }

    /// Finds the `search_path` of River's client and that of Weir's statements, from the defaults of server, database and
    /// role. They are in the third row and in the last one. Temporary tables of other programs come last in both.
    /// Settings end with the transaction.
    pub(super) fn find_paths(&self) -> String {
        let path = "concat_ws(', ', \
                        (SELECT string_agg(quote_ident(s), ', ' ORDER BY n) \
                         FROM unnest(current_schemas(false)) WITH ORDINALITY AS f (s, n) WHERE s !~ '^pg_temp'), \
                        'pg_temp')";
        let rivers = self.rivers_path();
        let setup = self.setup_until(true).unwrap_or_default();
        let statements = [
            "SELECT set_config('role', NULL, true), set_config('search_path', NULL, true)".to_owned(),
            format!("SELECT set_config('search_path', {path}, true)"),
            format!("SELECT concat_ws(', ', {rivers}, 'pg_temp')"),
            setup,
            format!("SELECT {path}"),
        ];
        statements.join("; ")
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
