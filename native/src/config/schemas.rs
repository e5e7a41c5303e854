//! `WEIR_SCHEMA` and `RIVER_SCHEMA`: the schemas of the tables.

use weir_ledger::database::{MAX_RIVER_SCHEMA, Schemas};

use super::variables::Reader;

/// PostgreSQL's limit for an identifier, in bytes.
const MAX_SCHEMA: usize = 63;

pub(super) fn read(reader: &mut Reader<'_>) -> Schemas {
    Schemas {
        weir: schema(reader, "WEIR_SCHEMA", MAX_SCHEMA),
        river: schema(reader, "RIVER_SCHEMA", MAX_RIVER_SCHEMA),
    }
}

/// Reads a schema's name. PostgreSQL reserves names that begin with `pg_`, and truncates long ones.
fn schema(reader: &mut Reader<'_>, name: &str, longest: usize) -> Option<String> {
    let wants =
        format!("the name of a schema: at most {longest} letters, digits, _ and -, not starting with pg_");
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    reader.parsed(name, None, &wants, |text| {
        (text.len() <= longest && text.bytes().all(fits) && !text.starts_with("pg_"))
            .then(|| Some(text.to_owned()))
    })
}
