//! Meters: the names by which work is counted.

use std::collections::HashSet;
use std::error::Error;
use std::sync::LazyLock;

use bytes::BytesMut;
use parking_lot::Mutex;
use postgres_types::{FromSql, IsNull, Kind, ToSql, Type, to_sql_checked};

/// The name of a meter: the `event_type` column of the quota tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Meter(&'static str);

impl Meter {
    /// The meter of this name, known at compile time.
    #[must_use]
    pub const fn named(name: &'static str) -> Self {
        Self(name)
    }

    /// The meter of this name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        Self(interned(name))
    }

    /// The name in the database, in labels and in responses.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::fmt::Display for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

/// The only copy of a name. Names of meters and plans are few and are kept as long as the process lives, so that types
/// with a meter can be `Copy`.
pub(crate) fn interned(name: &str) -> &'static str {
    static NAMES: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Mutex::default);
    let mut names = NAMES.lock();
    if let Some(known) = names.get(name) {
        return known;
    }
    let name: &'static str = Box::leak(name.into());
    names.insert(name);
    name
}

/// Whether a column is text or a domain over text.
fn is_text(ty: &Type) -> bool {
    match ty.kind() {
        Kind::Domain(base) => is_text(base),
        _ => <&str as FromSql>::accepts(ty),
    }
}

impl ToSql for Meter {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        self.0.to_sql(&Type::TEXT, out)
    }

    fn accepts(ty: &Type) -> bool {
        is_text(ty)
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Meter {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self::of(<&str as FromSql>::from_sql(&Type::TEXT, raw)?))
    }

    fn accepts(ty: &Type) -> bool {
        is_text(ty)
    }
}
