//! Public addresses: those that the registries of special-purpose addresses (RFC 6890) do not list as special.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use ipnet::{Ipv4Net, Ipv6Net};

/// IPv4 addresses that are not globally reachable, and multicast.
static SPECIAL_V4: LazyLock<Vec<Ipv4Net>> = LazyLock::new(|| {
    [
        ([0, 0, 0, 0], 8),
        ([10, 0, 0, 0], 8),
        // Carrier-grade NAT (RFC 6598).
        ([100, 64, 0, 0], 10),
        ([127, 0, 0, 0], 8),
        // Link-local, including the metadata services of clouds, which hand out credentials.
        ([169, 254, 0, 0], 16),
        ([172, 16, 0, 0], 12),
        ([192, 0, 0, 0], 24),
        ([192, 0, 2, 0], 24),
        ([192, 88, 99, 0], 24),
        ([192, 168, 0, 0], 16),
        ([198, 18, 0, 0], 15),
        ([198, 51, 100, 0], 24),
        ([203, 0, 113, 0], 24),
        // Multicast, reserved, and broadcast.
        ([224, 0, 0, 0], 3),
    ]
    .map(|(address, length)| Ipv4Net::new_assert(Ipv4Addr::from(address), length))
    .to_vec()
});

/// IPv6 addresses outside of this range are unassigned or not global.
static GLOBAL_V6: LazyLock<Ipv6Net> = LazyLock::new(|| net([0x2000, 0, 0, 0, 0, 0, 0, 0], 3));

/// Within it, addresses that are not globally reachable or lead to an IPv4 address.
static SPECIAL_V6: LazyLock<Vec<Ipv6Net>> = LazyLock::new(|| {
    vec![
        // Teredo, benchmarks, ORCHID, and other protocol assignments.
        net([0x2001, 0, 0, 0, 0, 0, 0, 0], 23),
        net([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32),
        // 6to4.
        net([0x2002, 0, 0, 0, 0, 0, 0, 0], 16),
        net([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20),
    ]
});

/// NAT64 (RFC 6052): the last four bytes are an IPv4 address.
static NAT64: LazyLock<Ipv6Net> = LazyLock::new(|| net([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96));

fn net(segments: [u16; 8], length: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::from(segments), length)
}

/// Whether the whole internet can reach the address.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => !SPECIAL_V4.iter().any(|net| net.contains(&address)),
        IpAddr::V6(address) if NAT64.contains(&address) => {
            let [.., a, b, c, d] = address.octets();
            is_public(IpAddr::from([a, b, c, d]))
        }
        IpAddr::V6(address) => {
            GLOBAL_V6.contains(&address) && !SPECIAL_V6.iter().any(|net| net.contains(&address))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test panics")]

    use super::*;

    #[test]
    fn only_global_addresses_are_public() {
        for (address, public) in [
            ("1.1.1.1", true),
            ("8.8.8.8", true),
            ("172.15.255.255", true),
            ("172.32.0.1", true),
            ("100.128.0.1", true),
            ("0.0.0.0", false),
            ("10.1.2.3", false),
            ("100.64.0.1", false),
            ("127.0.0.53", false),
            ("169.254.169.254", false),
            ("172.16.0.1", false),
            ("172.31.255.255", false),
            ("192.168.1.1", false),
            ("198.19.255.255", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("2606:4700:4700::1111", true),
            ("2a00:1450:4001:80f::200e", true),
            ("::", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:8.8.8.8", true),
            ("::127.0.0.1", false),
            ("64:ff9b::10.0.0.1", false),
            ("64:ff9b::8.8.8.8", true),
            ("64:ff9b:1::8.8.8.8", false),
            ("2002:7f00:1::", false),
            ("2001:0:1::", false),
            ("2001:db8::1", false),
            ("fc00::1", false),
            ("fd12:3456::1", false),
            ("fe80::1", false),
            ("ff02::1", false),
        ] {
            assert_eq!(is_public(address.parse().unwrap()), public, "{address}");
        }
    }
}
