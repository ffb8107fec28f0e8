//! Which IP addresses a guest may use: those that the operator has listed for its NIC.
//!
//! RoCE packets need no check here, because queue pairs send from entries of the GID table only. Software can write any
//! headers into raw frames, so these are checked: IPv4 and IPv6 (RFC 791, RFC 8200), ARP (RFC 826), neighbour discovery
//! (RFC 4861), and DHCP (RFC 2131, RFC 8415), whose servers a guest must not imitate. Other frames carry no address
//! that could be compared, and are refused. So is an extension header in front of neighbour discovery (RFC 6980).

use faultline_wire::ethernet::EtherType;
use faultline_wire::{Ethernet, Gid, MacAddr};

use crate::headers::be16;

/// A range of addresses. IPv4 addresses are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    first: Gid,
    /// Leading bits that all of its addresses share.
    bits: u8,
}

impl AddressRange {
    /// The addresses that share the first `bits` of 128 bits with this one. `None`: `bits` is greater than 128.
    pub fn new(address: Gid, bits: u8) -> Option<Self> {
        let first = address;
        (bits <= 128).then_some(Self { first, bits })
    }

    fn contains(&self, address: Gid) -> bool {
        // IPv4 addresses are in no range of IPv6, although they are mapped.
        if self.first.is_ipv4_mapped() != address.is_ipv4_mapped() {
            return false;
        }
        let differ = u128::from_be_bytes(self.first.0) ^ u128::from_be_bytes(address.0);
        differ.leading_zeros() >= u32::from(self.bits)
    }
}

/// Addresses of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSecurity {
    ranges: Vec<AddressRange>,
}

const ICMP: u8 = 1;
const IGMP: u8 = 2;
const UDP: u8 = 17;
/// Types of ICMP (RFC 792, RFC 1256).
const ICMP_REDIRECT: u8 = 5;
const ICMP_ROUTER_ADVERTISEMENT: u8 = 9;
const ICMPV6: u8 = 58;
/// Extension headers of IPv6 (RFC 8200, RFC 6275).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;
const MOBILITY: u8 = 135;
/// Types of ICMPv6 (RFC 4861, RFC 3810).
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
const LISTENER_REPORTS: [u8; 3] = [131, 132, 143];
/// UDP ports of DHCP.
const DHCP_SERVER: u16 = 67;
const DHCP_CLIENT: u16 = 68;
const DHCPV6_SERVER: u16 = 547;
const DHCPV6_CLIENT: u16 = 546;
/// The unspecified addresses: of a host that has none yet.
const NONE_V4: Gid = Gid::from_ipv4([0; 4]);
const NONE_V6: Gid = Gid([0; 16]);

impl PortSecurity {
    /// The addresses in these ranges, and the link-local address that follows from the MAC address.
    pub fn new(ranges: Vec<AddressRange>) -> Self {
        Self { ranges }
    }

    /// True if the guest of a NIC with this MAC address may use an address.
    pub(crate) fn permits(&self, mac: MacAddr, address: Gid) -> bool {
        address == Gid::link_local(mac) || self.ranges.iter().any(|range| range.contains(address))
    }

    /// True if the guest may send a raw frame with these headers.
    pub(crate) fn permits_frame(&self, mac: MacAddr, head: &[u8]) -> bool {
        let Ok((ethernet, at)) = Ethernet::parse(head) else {
            return false;
        };
        let Some(packet) = head.get(at..) else {
            return false;
        };
        let check = Check {
            security: self,
            mac,
        };
        let permitted = match ethernet.ethertype {
            EtherType::IPV4 => check.ipv4(packet),
            EtherType::IPV6 => check.ipv6(packet),
            EtherType::ARP => check.arp(packet, ethernet.src),
            _ => None,
        };
        permitted == Some(true)
    }
}

struct Check<'a> {
    security: &'a PortSecurity,
    mac: MacAddr,
}

fn byte(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

fn ipv4_at(bytes: &[u8], at: usize) -> Option<Gid> {
    Some(Gid::from_ipv4(*bytes.get(at..)?.first_chunk()?))
}

fn ipv6_at(bytes: &[u8], at: usize) -> Option<Gid> {
    Some(Gid(*bytes.get(at..)?.first_chunk()?))
}

/// True if a UDP datagram is from a server, or if a client would accept it as an answer of a server.
fn is_dhcpv6_server(datagram: &[u8]) -> Option<bool> {
    Some(be16(datagram, 0)? == DHCPV6_SERVER || be16(datagram, 2)? == DHCPV6_CLIENT)
}

// `None`: a header is cut off, or contradicts itself.
impl Check<'_> {
    fn permits(&self, address: Gid) -> bool {
        self.security.permits(self.mac, address)
    }

    fn ipv4(&self, packet: &[u8]) -> Option<bool> {
        let first = byte(packet, 0)?;
        let header_len = usize::from(first & 0xf).saturating_mul(4);
        if first >> 4 != 4 || header_len < 20 {
            return None;
        }
        let source = ipv4_at(packet, 12)?;
        let is_first = be16(packet, 6)? & 0x1fff == 0;
        let protocol = byte(packet, 9)?;
        if protocol == ICMP && is_first {
            let kind = byte(packet, header_len)?;
            if matches!(kind, ICMP_REDIRECT | ICMP_ROUTER_ADVERTISEMENT) {
                return Some(false);
            }
        }
        let ports = match protocol == UDP && is_first {
            true => {
                let to = header_len.saturating_add(2);
                Some((be16(packet, header_len)?, be16(packet, to)?))
            }
            false => None,
        };
        // A client does not look from which port an answer comes.
        if ports.is_some_and(|(from, to)| from == DHCP_SERVER || to == DHCP_CLIENT) {
            return Some(false);
        }
        // A host without an address requests one, and reports its groups.
        let asks = ports == Some((DHCP_CLIENT, DHCP_SERVER)) || protocol == IGMP;
        Some(source == NONE_V4 && asks || self.permits(source))
    }

    fn arp(&self, packet: &[u8], source: MacAddr) -> Option<bool> {
        /// Ethernet, IPv4, and the lengths of their addresses.
        const KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];
        let kind: [u8; 6] = *packet.first_chunk()?;
        let sender_mac = MacAddr(*packet.get(8..)?.first_chunk()?);
        let (sender, target) = (ipv4_at(packet, 14)?, ipv4_at(packet, 24)?);
        // A probe tests whether the address that the sender requests is in use (RFC 5227).
        let claimed = if sender == NONE_V4 { target } else { sender };
        Some(kind == KIND && sender_mac == source && self.permits(claimed))
    }

    fn ipv6(&self, packet: &[u8]) -> Option<bool> {
        const HEADER_LEN: usize = 40;
        if byte(packet, 0)? >> 4 != 6 {
            return None;
        }
        let source = ipv6_at(packet, 8)?;
        let payload = packet.get(HEADER_LEN..)?;
        let permitted = match byte(packet, 6)? {
            UDP => !is_dhcpv6_server(payload)?,
            ICMPV6 => self.icmpv6(payload, source)?,
            HOP_BY_HOP => {
                // Only reports of groups have it (RFC 3810).
                let length = usize::from(byte(payload, 1)?)
                    .saturating_add(1)
                    .saturating_mul(8);
                let kind = byte(payload, length)?;
                byte(payload, 0)? == ICMPV6 && LISTENER_REPORTS.contains(&kind)
            }
            FRAGMENT => {
                let inner = byte(payload, 0)?;
                let is_first = be16(payload, 2)? & 0xfff8 == 0;
                let is_server = inner == UDP && is_first && is_dhcpv6_server(payload.get(8..)?)?;
                let is_plain = ![ICMPV6, HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION, MOBILITY]
                    .contains(&inner);
                is_plain && !is_server
            }
            ROUTING | DESTINATION | MOBILITY => false,
            _ => true,
        };
        // Packets without a source address were checked above: they are those of a host that has no address yet.
        let has_none = source == NONE_V6 && matches!(byte(packet, 6)?, ICMPV6 | HOP_BY_HOP);
        Some(permitted && (has_none || self.permits(source)))
    }

    fn icmpv6(&self, message: &[u8], source: Gid) -> Option<bool> {
        let kind = byte(message, 0)?;
        let target = || ipv6_at(message, 8);
        Some(match kind {
            NEIGHBOUR_ADVERTISEMENT => self.permits(target()?),
            ROUTER_ADVERTISEMENT | REDIRECT => false,
            // Duplicate address detection: the sender requests this address (RFC 4862).
            NEIGHBOUR_SOLICITATION if source == NONE_V6 => self.permits(target()?),
            ROUTER_SOLICITATION => true,
            _ => source != NONE_V6,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_addresses_of_one_version() {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let permits = |first, bits, address| {
            let range = AddressRange::new(first, bits).unwrap();
            PortSecurity::new(vec![range]).permits(mac, address)
        };
        let (v4, v6) = (Gid::from_ipv4([10, 1, 2, 3]), Gid([0xfd; 16]));
        assert!(permits(NONE_V6, 0, v6) && !permits(NONE_V6, 0, v4));
        assert!(permits(NONE_V4, 96, v4) && !permits(NONE_V4, 96, v6));
        assert!(permits(Gid::from_ipv4([10, 1, 0, 0]), 112, v4));
        assert!(!permits(Gid::from_ipv4([10, 2, 0, 0]), 112, v4));
        assert!(permits(v4, 128, Gid::link_local(mac)));
    }
}
