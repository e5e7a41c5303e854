//! Uniqueness: the key by which River folds a job into one that is still live.
//!
//! The key is byte for byte the one that River's clients in every language compute, so jobs fold whichever client
//! inserts them.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// The states in which a key is unique, as River's `unique_states`, leftmost bit first: all but completed, discarded
/// and cancelled. A finished job is done again when it is submitted again.
pub const LIVE_STATES: &str = "11110001";

/// River's `unique_key` for these arguments: SHA-256 over the kind and the chosen members, in Go's encoding.
///
/// `None` when one of the members is missing: what has no name cannot be the same as something else.
#[must_use]
pub fn key(kind: &str, args: &Map<String, Value>, members: &[String]) -> Option<Vec<u8>> {
    if members.is_empty() {
        return None;
    }
    let chosen = members
        .iter()
        .map(|member| args.get(member).map(|value| (member.clone(), value.clone())))
        .collect::<Option<Map<String, Value>>>()?;
    let encoded = riverqueue::encoding::encode_args(&chosen).ok()?;
    Some(Sha256::digest(format!("&kind={kind}&args={}", encoded.get())).to_vec())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hex(kind: &str, args: &Value) -> String {
        let Value::Object(args) = args else {
            panic!("arguments are an object")
        };
        let members: Vec<String> = args.keys().cloned().collect();
        key(kind, args, &members)
            .unwrap()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    #[test]
    fn the_keys_are_those_of_rivers_other_clients() {
        assert_eq!(
            hex(
                "analysis:analyze",
                &json!({"owner": "acme", "repo": "widgets", "commit_sha": "abc1234"})
            ),
            "210466337158a66b43feefee3307a18b2bb0bbde6b6c75a197c909a0d3ef801d"
        );
        let odd =
            json!({"commit_sha": "c", "esc": "a<b>&\u{2028}é", "f": 1e21, "n": 1, "owner": "o", "repo": "r"});
        assert_eq!(
            hex("analysis:analyze_all", &odd),
            "495834651b9b463221489fb84b8bd9e450eedd07604fc02cacb3311fe1d6b710"
        );
    }

    #[test]
    fn arguments_without_all_the_members_are_never_the_same() {
        let Value::Object(args) = json!({"owner": "acme"}) else {
            panic!("arguments are an object")
        };
        assert_eq!(key("k", &args, &["owner".to_owned(), "repo".to_owned()]), None);
        assert_eq!(key("k", &args, &[]), None);
    }
}
