//! JSON that other programs wrote into the database. PostgreSQL accepts numbers that no double holds, and nesting that
//! this parser refuses. So the text is passed on unchanged, and parsed only if that works.

use std::error::Error;

use postgres_types::{FromSql, Json, Type};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// The text of a JSON value.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RawJson(Box<RawValue>);

impl RawJson {
    /// The parsed value; `None` if it cannot be parsed.
    #[must_use]
    pub fn read<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_str(self.0.get()).ok()
    }

    /// Indented text if it can be parsed, otherwise the text as it is.
    #[must_use]
    pub fn pretty(&self) -> String {
        let value: Option<Value> = self.read();
        value
            .and_then(|value| serde_json::to_string_pretty(&value).ok())
            .unwrap_or_else(|| self.0.get().to_owned())
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

impl<'a> FromSql<'a> for RawJson {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Json::<Self>::from_sql(ty, raw).map(|json| json.0)
    }

    fn accepts(ty: &Type) -> bool {
        <Json<Self> as FromSql>::accepts(ty)
    }
}
