//! Ranges of addresses (CIDR), such as `203.0.113.0/24` and `2001:db8::/32`.

use std::net::IpAddr;
use std::str::FromStr;

use thiserror::Error;

/// A range of addresses. A single address is a range of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    is_v6: bool,
    /// The upper bits, common to all addresses of the range. The lower bits are zero.
    first: u128,
    /// A mask of the bits in which its addresses may differ.
    rest: u128,
}

/// A list of ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<Range>);

/// A text that is not a range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{0}` is not an address range; expected one such as `203.0.113.0/24`, `2001:db8::/32` or `203.0.113.7`"
)]
pub struct RangeError(String);

impl FromStr for Ranges {
    type Err = RangeError;

    /// Ranges separated by commas.
    fn from_str(text: &str) -> Result<Self, RangeError> {
        let ranges = text.split(',').map(str::trim).filter(|range| !range.is_empty());
        let parsed = ranges.map(|range| Range::parse(range).ok_or_else(|| RangeError(range.to_owned())));
        parsed.collect::<Result<_, _>>().map(Self)
    }
}

impl Ranges {
    /// Whether an address is in one of the ranges. An IPv4-mapped IPv6 address counts as the IPv4 address.
    pub fn contain(&self, address: IpAddr) -> bool {
        self.0.iter().any(|range| range.contains(address))
    }
}

impl Range {
    /// Refuses a range with bits set after its prefix, because a different length may have been meant.
    fn parse(text: &str) -> Option<Self> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let (is_v6, first) = bits(address.parse().ok()?);
        let width = if is_v6 { 128 } else { 32 };
        let length: u32 = match length {
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok()?,
            Some(_) => return None,
            None => width,
        };
        let free = width.checked_sub(length)?;
        let rest = 1_u128.checked_shl(free).map_or(u128::MAX, |next| next - 1);
        (first & rest == 0).then_some(Self { is_v6, first, rest })
    }

    fn contains(&self, address: IpAddr) -> bool {
        let (is_v6, bits) = bits(address.to_canonical());
        is_v6 == self.is_v6 && bits & !self.rest == self.first
    }
}

fn bits(address: IpAddr) -> (bool, u128) {
    match address {
        IpAddr::V4(v4) => (false, u128::from(v4.to_bits())),
        IpAddr::V6(v6) => (true, v6.to_bits()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn a_range_contains_the_addresses_with_its_prefix() {
        let ranges: Ranges = "203.0.113.0/24, 2001:db8::/32,198.51.100.7, 10.0.0.0/8,"
            .parse()
            .unwrap();
        for (address, is_in) in [
            ("203.0.113.0", true),
            ("203.0.113.255", true),
            ("203.0.114.0", false),
            ("::ffff:203.0.113.9", true),
            ("2001:db8:ffff::1", true),
            ("2001:db9::", false),
            ("198.51.100.7", true),
            ("198.51.100.8", false),
            ("::a00:1", false),
        ] {
            assert_eq!(ranges.contain(address.parse().unwrap()), is_in, "{address}");
        }
        let all: Ranges = "0.0.0.0/0, ::/0".parse().unwrap();
        assert!(all.contain("8.8.8.8".parse().unwrap()) && all.contain("::".parse().unwrap()));
        assert!(!Ranges::default().contain("8.8.8.8".parse().unwrap()));
    }

    #[test]
    fn a_malformed_range_is_refused() {
        for wrong in [
            "203.0.113.1/24",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10/8",
            "::/129",
            "x",
            "10.0.0.0/+8",
            "1::/0",
        ] {
            let error = wrong.parse::<Ranges>().unwrap_err();
            assert_eq!(error, RangeError(wrong.to_owned()));
        }
    }

    proptest! {
        #[test]
        fn a_range_of_any_length_contains_its_address_and_not_the_next_one(bits: u128, is_v6: bool, length in 1..=128_u32) {
            let width = if is_v6 { 128 } else { 32 };
            let length = (length - 1) % width + 1;
            let free = width - length;
            let address = |bits: u128| match is_v6 {
                true => IpAddr::V6(Ipv6Addr::from_bits(bits)),
                false => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
            };
            let bits = if is_v6 { bits | 1 << 127 } else { bits & 0xffff_ffff };
            let first = bits >> free << free;
            let ranges: Ranges = format!("{}/{length}", address(first)).parse().unwrap();
            prop_assert!(ranges.contain(address(bits)));
            let beside = bits ^ (1 << free);
            prop_assert!(!ranges.contain(address(beside)));
        }

        #[test]
        fn parsing_arbitrary_text_does_not_panic(text in ".{0,40}") {
            let _ = text.parse::<Ranges>();
        }
    }
}
