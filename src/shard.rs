//! The choice of the counting object: one for many addresses of a region, and one for each user.

use weir_policy::address::AddressKey;

/// A counting object: its name, and where Cloudflare should create it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    pub(crate) name: String,
    /// A location hint, when the address's location is known.
    pub(crate) hint: Option<&'static str>,
}

/// The prefix of the names of objects that count users.
const USERS: &str = "user-";

/// Whether the object of this name counts users.
pub(crate) fn counts_users(name: Option<&str>) -> bool {
    name.is_some_and(|name| name.starts_with(USERS))
}

/// The id of the group of limits that the object of this name counts, if it counts a route's limits.
pub(crate) fn group(name: Option<&str>) -> Option<u64> {
    let (_, id) = name?.split_once(':')?;
    let id = id.split_once('@').map_or(id, |(id, _)| id);
    u64::from_str_radix(id, 16).ok()
}

/// A name that differs between a Worker's edges. `edgeOf` in `weir.mjs` reads the number.
pub(crate) fn of_edge(name: &str, edge: Option<u32>) -> String {
    edge.map_or_else(|| name.to_owned(), |number| format!("{name}@{number}"))
}

/// The object for `key`. One address must always have the same object, but routes change. So its region depends on the
/// location that Cloudflare has for the address, not on the data centre that received the request.
///
/// A user may send from several regions at once, and has one object for all of them. It is created near the first
/// request.
///
/// Each group of a route's limits has separate objects.
pub(crate) fn shard(
    key: AddressKey,
    group: Option<u64>,
    shards: u32,
    continent: Option<&str>,
    longitude: Option<f64>,
) -> Shard {
    let is_user = matches!(key, AddressKey::User(_));
    let id = if is_user {
        let (_, upper, lower) = key.to_parts();
        format!("{upper:08x}{lower:08x}")
    } else {
        (key.spread() % u64::from(shards.max(1))).to_string()
    };
    let number = match group {
        Some(group) => format!("{id}:{group:016x}"),
        None => id,
    };
    if is_user {
        return Shard {
            name: format!("{USERS}{number}"),
            hint: None,
        };
    }
    let hint = region(continent, longitude);
    Shard {
        name: format!("{}-{number}", hint.unwrap_or("any")),
        hint,
    }
}

/// The location hint for a location. Three wide continents are divided by longitude.
fn region(continent: Option<&str>, longitude: Option<f64>) -> Option<&'static str> {
    let west_of = |degrees: f64| longitude.is_some_and(|longitude| longitude < degrees);
    match continent? {
        "NA" if west_of(-100.0) => Some("wnam"),
        "NA" => Some("enam"),
        "SA" => Some("sam"),
        "EU" if west_of(15.0) => Some("weur"),
        "EU" => Some("eeur"),
        "AS" if west_of(60.0) => Some("me"),
        "AS" => Some("apac"),
        "OC" => Some("oc"),
        "AF" => Some("afr"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANNE: AddressKey = AddressKey::V4(0xcb00_7107);

    #[test]
    fn an_address_always_has_the_same_object_in_its_region() {
        let berlin = shard(ANNE, None, 8, Some("EU"), Some(13.4));
        assert_eq!(berlin, shard(ANNE, None, 8, Some("EU"), Some(13.4)));
        assert_eq!(berlin.hint, Some("weur"));
        assert!(berlin.name.starts_with("weur-"));
    }

    #[test]
    fn a_user_has_one_object_for_all_regions() {
        let user = AddressKey::User(7);
        let berlin = shard(user, None, 1, Some("EU"), Some(13.4));
        assert_eq!(berlin, shard(user, None, 1, Some("OC"), Some(151.0)));
        assert!(counts_users(Some(&berlin.name)));
        assert!(!counts_users(Some(&shard(ANNE, None, 1, None, None).name)) && !counts_users(None));
    }

    #[test]
    fn each_routes_limits_have_separate_objects() {
        let own = shard(AddressKey::User(7), Some(0x2a), 1, None, None);
        assert_eq!(own.name, "user-0000000000000007:000000000000002a");
        assert_eq!(
            (group(Some(&own.name)), counts_users(Some(&own.name))),
            (Some(0x2a), true)
        );
        let numbered = of_edge(&own.name, Some(5));
        assert_eq!(numbered, "user-0000000000000007:000000000000002a@5");
        assert_eq!(
            (group(Some(&numbered)), counts_users(Some(&numbered))),
            (Some(0x2a), true)
        );
        let other = of_edge(&shard(ANNE, None, 1, None, None).name, None);
        assert_eq!((group(Some(&other)), group(None)), (None, None));
    }

    #[test]
    fn every_continent_has_a_region() {
        for (continent, longitude, hint) in [
            ("NA", -122.0, "wnam"),
            ("NA", -74.0, "enam"),
            ("SA", -46.0, "sam"),
            ("EU", 2.3, "weur"),
            ("EU", 21.0, "eeur"),
            ("AS", 46.0, "me"),
            ("AS", 127.0, "apac"),
            ("OC", 151.0, "oc"),
            ("AF", 36.0, "afr"),
        ] {
            assert_eq!(region(Some(continent), Some(longitude)), Some(hint));
        }
    }

    #[test]
    fn an_address_of_unknown_location_also_has_one_object() {
        for continent in [None, Some("T1"), Some("AN"), Some("")] {
            assert_eq!(
                shard(ANNE, None, 1, continent, None),
                Shard {
                    name: "any-0".into(),
                    hint: None
                }
            );
        }
    }
}
