//! `WEIR_SCHEMA` and `RIVER_SCHEMA`: where the tables are.

use weir_ledger::database::{MAX_RIVER_SCHEMA, Schemas};

use super::variables::Reader;

/// An identifier of PostgreSQL's has as many bytes.
const MAX_SCHEMA: usize = 63;

pub(super) fn read(reader: &mut Reader<'_>) -> Schemas {
    Schemas {
        weir: schema(reader, "WEIR_SCHEMA", MAX_SCHEMA),
        river: schema(reader, "RIVER_SCHEMA", MAX_RIVER_SCHEMA),
    }
}

/// The name of a schema. PostgreSQL keeps those that begin with `pg_` for itself, and cuts what is too long.
fn schema(reader: &mut Reader<'_>, name: &str, longest: usize) -> Option<String> {
    let wants = format!(
        "the name of a schema: letters, digits, _ and -, at most {longest} of them, and not pg_ at the beginning"
    );
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    reader.parsed(name, None, &wants, |text| {
        (text.len() <= longest && text.bytes().all(fits) && !text.starts_with("pg_"))
            .then(|| Some(text.to_owned()))
    })
}
