//! Addresses of a guest in the configuration: the key `addresses`.

use std::fmt;
use std::net::IpAddr;

use faultline_nic::{AddressRange, PortSecurity};
use faultline_wire::Gid;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Unexpected, Visitor};

/// An address, or a range of them as `ADDRESS/BITS`.
struct Range(AddressRange);

/// Reads a range. `None`: the text is no range.
fn parse(text: &str) -> Option<AddressRange> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u8>().ok()?)),
        None => (text, None),
    };
    // Bits of an IPv4 address are those behind the 96 that mapped addresses have in common.
    let (gid, longest) = match address.parse().ok()? {
        IpAddr::V4(address) => (Gid::from_ipv4(address.octets()), 32),
        IpAddr::V6(address) => (Gid(address.octets()), 128),
    };
    let bits = bits.unwrap_or(longest);
    let more: u8 = 128u8.checked_sub(longest)?;
    let bits = (bits <= longest).then(|| bits.saturating_add(more))?;
    AddressRange::new(gid, bits)
}

impl<'de> Deserialize<'de> for Range {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneRange;

        impl Visitor<'_> for OneRange {
            type Value = Range;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(
                    f,
                    "an IP address, or a range such as \"10.0.0.0/24\" or \"fd00::/64\""
                )
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Range, E> {
                let range = parse(text).map(Range);
                range.ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_str(OneRange)
    }
}

/// Reads the addresses of a guest, for a key that may be absent.
pub(crate) fn addresses<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<PortSecurity>, D::Error> {
    struct Ranges;

    impl<'de> Visitor<'de> for Ranges {
        type Value = PortSecurity;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "an array of IP addresses and ranges")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<PortSecurity, A::Error> {
            let ranges = std::iter::from_fn(|| seq.next_element::<Range>().transpose());
            let ranges: Result<Vec<_>, _> =
                ranges.map(|range| range.map(|range| range.0)).collect();
            Ok(PortSecurity::new(ranges?))
        }
    }

    deserializer.deserialize_seq(Ranges).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_of_both_versions() {
        let range = |address: [u8; 4], bits| AddressRange::new(Gid::from_ipv4(address), bits);
        assert_eq!(parse("10.0.0.1"), range([10, 0, 0, 1], 128));
        assert_eq!(parse("10.0.0.0/8"), range([10, 0, 0, 0], 104));
        assert_eq!(parse("0.0.0.0/0"), range([0; 4], 96));
        // That range has no address of IPv4.
        assert_eq!(parse("::/0"), AddressRange::new(Gid([0; 16]), 0));
        for wrong in [
            "10.0.0.0/33",
            "fd00::/129",
            "10.0.0",
            "host",
            "10.0.0.1/",
            "",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
