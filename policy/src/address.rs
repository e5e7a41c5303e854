//! Client addresses: which header has the address, and by which key its requests are counted.
//!
//! Addresses are parsed, never compared as text, so that all spellings of an address are one. An IPv4 address has its
//! own key, and its IPv4-mapped IPv6 address has the same one. An IPv6 address is counted by its /64, the smallest
//! prefix that a subscriber gets (RFC 6177). With a longer prefix, one subscriber would have up to 2^64 keys.
//!
//! If users are counted too, a user's requests count under the user's key, not the address's.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::subject::Subject;

/// The source address of all subrequests from Workers of other Cloudflare zones.
const CLOUDFLARE_WORKERS: Ipv6Addr = Ipv6Addr::new(0x2a06, 0x98c0, 0x3600, 0, 0, 0, 0, 0x103);

/// The longest header that is parsed, in bytes. A longer one counts as absent.
const MAX_HEADER_BYTES: usize = 4096;

/// The key that requests are counted by: one per client, as far as addresses distinguish clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressKey {
    /// An IPv4 address.
    V4(u32),
    /// The upper 64 bits of an IPv6 address.
    V6(u64),
    /// The Workers of another Cloudflare zone, by a hash of the zone's name: all Workers share one address.
    Worker(u64),
    /// A user at any address, by a hash of the holder's subject.
    User(u64),
    /// No usable address. All such requests share one count.
    Unknown,
}

/// The kind of [`AddressKey::User`] in [`AddressKey::to_parts`].
pub const USER_KIND: u32 = 8;

/// Which header has the client's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientIpSource {
    /// `CF-Connecting-IP`, which Cloudflare sets and clients cannot. `X-Forwarded-For` is ignored.
    #[default]
    Cloudflare,
    /// The order of web ADR-21 (the first of `X-Forwarded-For`, then `X-Real-IP`, then the peer), for deployments
    /// behind a proxy that overwrites these headers. Anywhere else, a client could choose its address.
    Proxy,
}

/// The headers that may have the client's address, as received.
#[derive(Clone, Copy, Debug, Default)]
pub struct AddressHeaders<'a> {
    /// `CF-Connecting-IP`
    pub cf_connecting_ip: Option<&'a str>,
    /// `CF-Connecting-IPv6`, which Cloudflare adds when Pseudo IPv4 overwrites `CF-Connecting-IP`.
    pub cf_connecting_ipv6: Option<&'a str>,
    /// `CF-Worker`: the zone of the Worker that sent the request, if one did.
    pub cf_worker: Option<&'a str>,
    /// `X-Forwarded-For`
    pub x_forwarded_for: Option<&'a str>,
    /// `X-Real-IP`
    pub x_real_ip: Option<&'a str>,
}

/// A client's address, if it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddress {
    /// The key that its requests are counted by.
    pub key: AddressKey,
    /// The full address, for the origin's logs (`X-Forwarded-For`). `None` when no trusted header has one.
    pub address: Option<IpAddr>,
}

impl ClientAddress {
    const UNKNOWN: Self = Self {
        key: AddressKey::Unknown,
        address: None,
    };

    fn of(address: IpAddr) -> Self {
        Self {
            key: AddressKey::from(address),
            address: Some(address),
        }
    }
}

/// The client's address from the configured source.
pub fn client_address(source: ClientIpSource, headers: &AddressHeaders<'_>) -> ClientAddress {
    let cloudflare = || from_cloudflare(headers);
    match source {
        ClientIpSource::Cloudflare => cloudflare(),
        ClientIpSource::Proxy => headers
            .x_forwarded_for
            .and_then(|list| parse(list.split(',').next()?))
            .or_else(|| headers.x_real_ip.and_then(parse))
            .map_or_else(cloudflare, ClientAddress::of),
    }
}

fn from_cloudflare(headers: &AddressHeaders<'_>) -> ClientAddress {
    let Some(address) = headers.cf_connecting_ip.and_then(parse) else {
        return ClientAddress::UNKNOWN;
    };
    match address {
        // Pseudo IPv4 replaces an IPv6 address with a hash in class E. The other header has the real address.
        IpAddr::V4(v4) if v4.octets()[0] >= 240 => match headers.cf_connecting_ipv6.and_then(parse) {
            Some(real) => ClientAddress::of(real),
            None => ClientAddress::of(address),
        },
        IpAddr::V6(CLOUDFLARE_WORKERS) => {
            let zone = headers.cf_worker.unwrap_or_default().trim().to_ascii_lowercase();
            ClientAddress {
                key: AddressKey::Worker(fnv1a(zone.as_bytes())),
                address: Some(address),
            }
        }
        other => ClientAddress::of(other),
    }
}

/// Parses an address as proxies write it: plain, with a port, in brackets, with a zone, quoted (RFC 7239). Host
/// names are not resolved. An IPv4-mapped IPv6 address is parsed as the IPv4 address, in every notation.
pub fn parse(text: &str) -> Option<IpAddr> {
    if text.len() > MAX_HEADER_BYTES {
        return None;
    }
    let text = text.trim().trim_matches('"');
    let bare = match text.strip_prefix('[') {
        Some(rest) => {
            rest.split_once(']')
                .filter(|(_, after)| after.is_empty() || is_port(after))?
                .0
        }
        None => text,
    };
    // A zone is meaningful only on the host that wrote it (RFC 4007).
    let bare = bare.split_once('%').map_or(bare, |(address, _)| address);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    let (host, port) = bare.rsplit_once(':')?;
    let v4 = host.parse::<Ipv4Addr>().ok()?;
    port.parse::<u16>().ok().map(|_| IpAddr::V4(v4))
}

fn is_port(after: &str) -> bool {
    after
        .strip_prefix(':')
        .is_some_and(|port| port.parse::<u16>().is_ok())
}

impl From<IpAddr> for AddressKey {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self::V4(v4.to_bits()),
            IpAddr::V6(v6) => Self::V6((v6.to_bits() >> 64) as u64),
        }
    }
}

/// The key as text: `203.0.113.7`, `2001:db8:1:2::/64`, `worker:` and a hash, or `unknown`.
impl fmt::Display for AddressKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::V4(bits) => Ipv4Addr::from_bits(bits).fmt(f),
            Self::V6(bits) => write!(f, "{}/64", Ipv6Addr::from_bits(u128::from(bits) << 64)),
            Self::Worker(hash) => write!(f, "worker:{hash:016x}"),
            Self::User(hash) => write!(f, "user:{hash:016x}"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

impl AddressKey {
    /// The key of a user. Users may choose their subjects, so the hash must resist second preimages.
    pub fn user(holder: &Subject) -> Self {
        Self::User(digest(holder.as_str()))
    }

    /// The key of all users with this value of a claim in their tokens. Separate from the keys of users.
    pub fn claim(value: &Value) -> Self {
        Self::User(digest(&value.to_string()))
    }

    /// The key that a Worker's own code counts by: any text.
    pub fn own(text: &str) -> Self {
        Self::User(digest(text))
    }

    /// The key as three numbers that JavaScript represents exactly: its kind, and its upper and lower half.
    pub fn to_parts(self) -> (u32, u32, u32) {
        let halves = |bits: u64| ((bits >> 32) as u32, bits as u32);
        match self {
            Self::Unknown => (0, 0, 0),
            Self::V4(bits) => (4, 0, bits),
            Self::V6(bits) => (6, halves(bits).0, halves(bits).1),
            Self::Worker(hash) => (7, halves(hash).0, halves(hash).1),
            Self::User(hash) => (USER_KIND, halves(hash).0, halves(hash).1),
        }
    }

    /// The key from its parts. Parts that [`AddressKey::to_parts`] does not return become `Unknown`.
    pub fn from_parts(kind: u32, upper: u32, lower: u32) -> Self {
        let bits = (u64::from(upper) << 32) + u64::from(lower);
        match kind {
            4 => Self::V4(lower),
            6 => Self::V6(bits),
            7 => Self::Worker(bits),
            USER_KIND => Self::User(bits),
            _ => Self::Unknown,
        }
    }

    /// The key of all addresses with the same first bits, for an IPv6 prefix of 48 to 64 bits. Other keys stay
    /// unchanged.
    #[must_use]
    pub fn within(self, ipv6_prefix: u32) -> Self {
        match self {
            Self::V6(bits) => Self::V6(bits & (u64::MAX << (64 - ipv6_prefix.clamp(48, 64)))),
            other => other,
        }
    }

    /// The key of the /48 that an IPv6 address is in: its first /64. `None` for other keys. Sites are assigned at
    /// most a /48 (RFC 6177), so all /64s of one may belong to one subscriber.
    pub fn prefix(self) -> Option<Self> {
        match self {
            Self::V6(bits) => Some(Self::V6(bits & !0xffff)),
            _ => None,
        }
    }

    /// A hash that never changes and distributes keys evenly, to choose a shard by. All keys with the same prefix have
    /// the same hash, so that one counting object gets all requests of the prefix.
    pub fn spread(self) -> u64 {
        let (kind, upper, lower) = self.prefix().unwrap_or(self).to_parts();
        // The finalizer of SplitMix64, which separates neighbouring addresses.
        let mut x = ((u64::from(upper) << 32) + u64::from(lower)).wrapping_add(u64::from(kind) << 56);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

/// The first 64 bits of a text's SHA-256.
pub(crate) fn digest(text: &str) -> u64 {
    let digest = Sha256::digest(text);
    let (first, _) = digest.split_at(8);
    first.iter().fold(0, |hash, byte| (hash << 8) + u64::from(*byte))
}

/// FNV-1a. Cloudflare assigns zone names, so a collision cannot be chosen.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key_at_cloudflare(headers: &AddressHeaders<'_>) -> AddressKey {
        client_address(ClientIpSource::Cloudflare, headers).key
    }

    fn at_cloudflare(ip: &str) -> AddressKey {
        let headers = AddressHeaders {
            cf_connecting_ip: Some(ip),
            ..Default::default()
        };
        key_at_cloudflare(&headers)
    }

    fn shown(ip: &str) -> String {
        at_cloudflare(ip).to_string()
    }

    #[test]
    fn each_ipv4_address_has_its_own_key() {
        assert_eq!(shown("203.0.113.7"), "203.0.113.7");
        assert_ne!(at_cloudflare("203.0.113.7"), at_cloudflare("203.0.113.8"));
    }

    #[test]
    fn each_user_has_its_own_key() {
        let key = |subject: &str| AddressKey::user(&subject.parse().unwrap());
        assert_eq!(key("anne"), key("anne"));
        assert_ne!(key("anne"), key("Anne"));
        assert_ne!(key("203.0.113.7"), at_cloudflare("203.0.113.7"));
        assert_eq!(key("anne").prefix(), None);
        // Deployments must agree on it.
        assert_eq!(key("anne").to_string(), "user:90b8de4051f02b7a");
    }

    #[test]
    fn ipv6_addresses_are_counted_per_64() {
        assert_eq!(shown("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
        assert_eq!(
            at_cloudflare("2001:db8:1:2::1"),
            at_cloudflare("2001:0DB8:0001:0002:ffff::")
        );
        assert_ne!(at_cloudflare("2001:db8:1:2::1"), at_cloudflare("2001:db8:1:3::1"));
    }

    #[test]
    fn v4_mapped_addresses_count_as_their_v4_address() {
        for mapped in [
            "::ffff:203.0.113.7",
            "::ffff:cb00:7107",
            "0:0:0:0:0:FFFF:CB00:7107",
            "[::ffff:203.0.113.7]:80",
        ] {
            assert_eq!(shown(mapped), "203.0.113.7", "{mapped}");
        }
    }

    #[test]
    fn ports_brackets_zones_quotes_and_spaces_are_stripped_from_addresses() {
        for (text, key) in [
            (" 203.0.113.7 ", "203.0.113.7"),
            ("203.0.113.7:4711", "203.0.113.7"),
            ("[2001:db8::1]", "2001:db8::/64"),
            ("[2001:db8::1]:443", "2001:db8::/64"),
            ("\"[2001:db8::1]:443\"", "2001:db8::/64"),
            ("fe80::1%eth0", "fe80::/64"),
            ("[fe80::1%25eth0]:1", "fe80::/64"),
        ] {
            assert_eq!(shown(text), key, "{text}");
        }
    }

    #[test]
    fn invalid_addresses_are_unknown() {
        for text in [
            "",
            " ",
            "unknown",
            "_hidden",
            "localhost",
            "example.com",
            "256.0.0.1",
            "1.2.3",
            "010.1.1.1",
            "1.2.3.4.5",
            "1.2.3.4:99999",
            "1.2.3.4:x",
            "[::1",
            "[::1]x",
            "::1::",
            "1.2.3.4, 5.6.7.8",
            "2001:db8::/32",
            "0x7f000001",
        ] {
            assert_eq!(at_cloudflare(text), AddressKey::Unknown, "{text}");
        }
        assert_eq!(at_cloudflare(&"1".repeat(5000)), AddressKey::Unknown);
        assert_eq!(
            client_address(ClientIpSource::Cloudflare, &AddressHeaders::default()),
            ClientAddress::UNKNOWN
        );
    }

    #[test]
    fn addresses_are_read_from_headers_up_to_the_maximum_length() {
        let padded = |length: usize| format!("{:length$}", "203.0.113.7");
        assert_eq!(shown(&padded(MAX_HEADER_BYTES)), "203.0.113.7");
        assert_eq!(at_cloudflare(&padded(MAX_HEADER_BYTES + 1)), AddressKey::Unknown);
    }

    #[test]
    fn shards_and_zone_keys_stay_the_same_across_deployments() {
        let by_hand = |key: AddressKey| format!("{:016x}", key.spread());
        assert_eq!(by_hand(AddressKey::V4(0xcb00_7107)), "37c5fb08e2ec3140");
        assert_eq!(by_hand(AddressKey::V6(0x2001_0db8_0001_0002)), "c9d2dcbcdbaaf7ce");
        assert_eq!(
            by_hand(AddressKey::Worker(0x0123_4567_89ab_cdef)),
            "fe9fb033d300f20a"
        );
        // From FNV-1a's own test vectors.
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn the_real_address_wins_over_pseudo_ipv4() {
        let headers = AddressHeaders {
            cf_connecting_ip: Some("240.16.0.1"),
            cf_connecting_ipv6: Some("2001:db8:1:2::1"),
            ..Default::default()
        };
        assert_eq!(key_at_cloudflare(&headers).to_string(), "2001:db8:1:2::/64");
        // Without Pseudo IPv4, the client may have sent the other header.
        let headers = AddressHeaders {
            cf_connecting_ip: Some("203.0.113.7"),
            ..headers
        };
        assert_eq!(key_at_cloudflare(&headers).to_string(), "203.0.113.7");
    }

    #[test]
    fn requests_from_other_zones_workers_are_counted_per_zone() {
        let by = |zone| {
            let headers = AddressHeaders {
                cf_connecting_ip: Some("2a06:98c0:3600::103"),
                cf_worker: zone,
                ..Default::default()
            };
            key_at_cloudflare(&headers)
        };
        assert_eq!(by(Some("a.example")), by(Some("A.example")));
        assert_ne!(by(Some("a.example")), by(Some("b.example")));
        assert!(by(None).to_string().starts_with("worker:"));
    }

    #[test]
    fn spoofed_forwarding_headers_are_ignored_at_cloudflare() {
        let headers = AddressHeaders {
            cf_connecting_ip: Some("203.0.113.7"),
            x_forwarded_for: Some("198.51.100.1"),
            x_real_ip: Some("198.51.100.2"),
            cf_worker: Some("elsewhere.example"),
            ..Default::default()
        };
        assert_eq!(key_at_cloudflare(&headers).to_string(), "203.0.113.7");
    }

    #[test]
    fn proxy_headers_are_read_in_the_order_of_the_adr() {
        let by = |x_forwarded_for, x_real_ip| {
            let headers = AddressHeaders {
                cf_connecting_ip: Some("192.0.2.1"),
                x_forwarded_for,
                x_real_ip,
                ..Default::default()
            };
            client_address(ClientIpSource::Proxy, &headers).key.to_string()
        };
        assert_eq!(
            by(Some("198.51.100.1, 10.0.0.1"), Some("198.51.100.2")),
            "198.51.100.1"
        );
        assert_eq!(
            by(Some("garbage, 10.0.0.1"), Some("198.51.100.2")),
            "198.51.100.2"
        );
        assert_eq!(by(None, Some("198.51.100.2")), "198.51.100.2");
        assert_eq!(by(Some(""), Some("")), "192.0.2.1");
        assert_eq!(by(None, None), "192.0.2.1");
    }

    #[test]
    fn ipv6_prefixes_can_be_shorter_than_64() {
        let key = AddressKey::V6(0x2001_0db8_0001_02ff);
        for (length, bits) in [
            (64, 0x2001_0db8_0001_02ff),
            (60, 0x2001_0db8_0001_02f0),
            (56, 0x2001_0db8_0001_0200),
            (48, 0x2001_0db8_0001_0000),
        ] {
            assert_eq!(key.within(length), AddressKey::V6(bits), "{length}");
        }
        assert_eq!(AddressKey::V4(7).within(48), AddressKey::V4(7));
    }

    proptest! {
        #[test]
        fn parsing_arbitrary_headers_does_not_panic(text in "[ -~]{0,80}", source in any::<bool>()) {
            let headers = AddressHeaders {
                cf_connecting_ip: Some(&text), cf_connecting_ipv6: Some(&text), cf_worker: Some(&text),
                x_forwarded_for: Some(&text), x_real_ip: Some(&text),
            };
            client_address(if source { ClientIpSource::Proxy } else { ClientIpSource::Cloudflare }, &headers);
        }

        #[test]
        fn every_spelling_of_an_address_has_one_key(bits in any::<u128>(), port in any::<u16>()) {
            let v6 = Ipv6Addr::from_bits(bits);
            let full: Vec<_> = v6.segments().iter().map(|part| format!("{part:04X}")).collect();
            for text in [full.join(":"), format!("[{v6}]"), format!("[{v6}]:{port}"), format!("{v6}%1")] {
                prop_assert_eq!(at_cloudflare(&text), AddressKey::from(IpAddr::V6(v6)));
            }
        }

        #[test]
        fn keys_survive_conversion_to_parts_and_back(bits in any::<u64>(), kind in 0..5) {
            let key = match kind {
                0 => AddressKey::Unknown,
                1 => AddressKey::V4(bits as u32),
                2 => AddressKey::V6(bits),
                3 => AddressKey::Worker(bits),
                _ => AddressKey::User(bits),
            };
            let (kind, upper, lower) = key.to_parts();
            prop_assert_eq!(AddressKey::from_parts(kind, upper, lower), key);
        }

        #[test]
        fn all_64s_of_a_48_share_its_prefix_and_hash(site in any::<u64>(), subnets: (u16, u16)) {
            let key = |subnet: u16| AddressKey::V6(site & !0xffff | u64::from(subnet));
            prop_assert_eq!(key(subnets.0).prefix(), key(subnets.1).prefix());
            prop_assert_eq!(key(subnets.0).spread(), key(subnets.1).spread());
            prop_assert_ne!(key(subnets.0).prefix(), AddressKey::V6(site ^ 0x1_0000).prefix());
            prop_assert_eq!(AddressKey::V4(site as u32).prefix(), None);
        }

        #[test]
        fn neighbouring_addresses_are_spread_over_the_shards(first in any::<u32>(), shards in 2u64..17) {
            let mut counts = vec![0u32; shards as usize];
            for offset in 0..1024 {
                counts[(AddressKey::V4(first.wrapping_add(offset)).spread() % shards) as usize] += 1;
            }
            let fair = 1024 / shards as u32;
            prop_assert!(counts.iter().all(|count| *count > fair / 3 && *count < fair * 3), "{:?}", counts);
        }
    }
}
