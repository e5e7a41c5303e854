//! Uniqueness: the key by which River folds a job into an unfinished one.
//!
//! The key has River's form and includes the holder. So the jobs of one holder fold together, independent of other
//! holders and other River clients.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::json;

/// The maximum nesting of a member. SQL has the same limit, in `go_json`.
pub const MAX_DEPTH: usize = 100;

/// A member of `unique_by` is nested too deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a member of unique_by must be nested at most {MAX_DEPTH} deep")]
pub struct TooDeep;

/// The `unique_key` of the holder's job with these arguments: SHA-256 over the kind and the chosen members, in Go's
/// encoding, and the holder. SQL: `unique_key_of`.
///
/// `None` when a member is missing, because jobs without it cannot be compared.
///
/// # Errors
///
/// When a member is nested more than 100 deep.
pub fn key(
    holder: Uuid,
    kind: &str,
    args: &Map<String, Value>,
    members: &[String],
) -> Result<Option<Vec<u8>>, TooDeep> {
    let chosen = members
        .iter()
        .map(|member| args.get(member).map(|value| (member.clone(), value)))
        .collect::<Option<Vec<_>>>();
    let Some(chosen) = chosen.filter(|chosen| !chosen.is_empty()) else {
        return Ok(None);
    };
    if chosen.iter().any(|(_, value)| is_deeper(value, MAX_DEPTH)) {
        return Err(TooDeep);
    }
    let chosen: Map<String, Value> = chosen
        .into_iter()
        .map(|(member, value)| (member, json::with_river_numbers(value)))
        .collect();
    let encoded = riverqueue::encoding::encode_args(&chosen).ok();
    Ok(encoded.map(|args| {
        let key = format!("&kind={kind}&args={}&holder={holder}", args.get());
        Sha256::digest(key).to_vec()
    }))
}

/// Whether a value is nested deeper than that.
fn is_deeper(value: &Value, most: usize) -> bool {
    let mut inside: Box<dyn Iterator<Item = &Value>> = match value {
        Value::Array(values) => Box::new(values.iter()),
        Value::Object(members) => Box::new(members.values()),
        _ => return false,
    };
    most.checked_sub(1)
        .is_none_or(|most| inside.any(|value| is_deeper(value, most)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key_of(holder: u128, args: &Value, members: &[&str]) -> Option<Vec<u8>> {
        let args = args.as_object().unwrap();
        let members: Vec<String> = members.iter().map(|member| (*member).to_owned()).collect();
        key(Uuid::from_u128(holder), "k", args, &members).unwrap()
    }

    #[test]
    fn unique_keys_cover_holder_kind_and_members() {
        let args = json!({ "repo": "a<b>&\u{2028}é", "f": 1e21, "n": 1 });
        let written = "{\"f\": 1000.0e18, \"repo\": \"a<b>&\u{2028}é\"}";
        let written: Value = serde_json::from_str(written).unwrap();
        let expected = "&kind=k&args={\"f\":1e+21,\"repo\":\"a\\u003cb\\u003e\\u0026\\u2028é\"}\
                        &holder=00000000-0000-0000-0000-000000000001";
        let key = key_of(1, &args, &["repo", "f"]);
        assert_eq!(key, Some(Sha256::digest(expected).to_vec()));
        assert_eq!(key, key_of(1, &written, &["repo", "f"]));
        assert_ne!(key, key_of(2, &args, &["repo", "f"]));
    }

    #[test]
    fn arguments_without_all_unique_fields_have_no_key() {
        let args = json!({ "owner": "acme" });
        assert_eq!(key_of(1, &args, &["owner", "repo"]), None);
        assert_eq!(key_of(1, &args, &[]), None);
    }
}
