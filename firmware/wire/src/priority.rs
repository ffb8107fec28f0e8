//! Priorities of frames (IEEE 802.1Q clause 6.9.4), by which priority-based flow control pauses them (clause 36).
//!
//! A frame with a VLAN tag has the priority of its tag. An untagged IP packet has the upper three bits of its DSCP (the class selector
//! of RFC 2474), as at a switch that trusts the DSCP. Any other frame has priority 0. There are no configurable maps.
//!
//! # Panics
//!
//! Nothing here panics, whatever the bytes are.

use crate::ethernet::{EtherType, Ethernet, VlanTag};
use crate::packet::RoceHeader;

/// Number of priorities.
pub const PRIORITIES: usize = 8;

/// The priority of an untagged packet with this traffic class (DSCP and ECN bits).
#[inline]
pub const fn of_traffic_class(class: u8) -> u8 {
    class >> 5
}

/// The priority of a frame as octets, from the Ethernet header on; of a frame that is too short, 0.
pub fn of_frame(frame: &[u8]) -> u8 {
    let octet = |at: usize| frame.get(at).copied().unwrap_or_default();
    let ethertype = u16::from_be_bytes([octet(12), octet(13)]);
    let (first, second) = (octet(Ethernet::LEN), octet(Ethernet::LEN + 1));
    match ethertype {
        EtherType::VLAN => first >> 5,
        EtherType::IPV4 => of_traffic_class(second),
        EtherType::IPV6 => of_traffic_class(first << 4 | second >> 4),
        _ => 0,
    }
}

/// The priority of a packet with these headers.
#[inline]
pub fn of_packet(header: &RoceHeader) -> u8 {
    match header.ethernet.vlan {
        Some(VlanTag { pcp, .. }) => pcp & 7,
        None => of_traffic_class(header.ip.traffic_class()),
    }
}

/// A set of priorities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PrioritySet(u8);

impl PrioritySet {
    /// No priority.
    pub const NONE: Self = Self(0);
    /// All of them.
    pub const ALL: Self = Self(0xff);

    /// The priorities whose bits are set: bit 0 is priority 0.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The set as bits.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// True if there is none.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True if `priority` is in the set.
    #[inline]
    pub const fn contains(self, priority: u8) -> bool {
        self.0 & 1 << (priority & 7) != 0
    }

    /// The set with `priority`; only its lower three bits count.
    pub const fn with(self, priority: u8) -> Self {
        Self(self.0 | 1 << (priority & 7))
    }

    /// The priorities that are in this set, in `other` or in both.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The priorities that are in this set and not in `other`.
    #[inline]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The priorities of this set, in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..8).filter(move |priority| self.contains(*priority))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bth::{Bth, Psn};
    use crate::ip::{Gid, Ip};
    use crate::opcode::Opcode;
    use crate::{MAX_HEADER_LEN, MacAddr};
    use std::vec::Vec;

    fn header(is_v6: bool, class: u8, vlan: Option<VlanTag>) -> RoceHeader {
        let gid = match is_v6 {
            true => Gid([0xfd; 16]),
            false => Gid::from_ipv4([192, 0, 2, 1]),
        };
        let ip = Ip::from_gids(gid, gid, class, 5, 64);
        let bth = Bth::new(Opcode::RcAcknowledge, 2, Psn::new(0));
        let mut header = RoceHeader::new(MacAddr([2; 6]), MacAddr([4; 6]), ip, bth);
        header.aeth = Some(crate::Aeth {
            syndrome: crate::Syndrome::ACK,
            msn: 0,
        });
        header.ethernet.vlan = vlan;
        header
    }

    #[test]
    fn a_tag_comes_before_the_dscp() {
        for is_v6 in [false, true] {
            for class in 0..=u8::MAX {
                let tag = |pcp| VlanTag {
                    pcp,
                    dei: true,
                    vid: 0,
                };
                let cases = [(None, class >> 5), (Some(tag(6)), 6), (Some(tag(0)), 0)];
                for (vlan, expected) in cases {
                    let header = header(is_v6, class, vlan);
                    assert_eq!(of_packet(&header), expected);
                    let mut octets = [0; MAX_HEADER_LEN + 4];
                    header.emit(0, &mut octets).unwrap();
                    assert_eq!(of_frame(&octets), expected, "{header:?}");
                }
            }
        }
    }

    #[test]
    fn other_frames_have_priority_0() {
        let mut arp = [0xff; 60];
        arp[12..14].copy_from_slice(&EtherType::ARP.to_be_bytes());
        assert_eq!(of_frame(&arp), 0);
        // A service tag is no tag of this switch.
        arp[12..14].copy_from_slice(&[0x88, 0xa8]);
        assert_eq!(of_frame(&arp), 0);
        arp[12..14].copy_from_slice(&EtherType::VLAN.to_be_bytes());
        for length in 0..=Ethernet::LEN {
            assert_eq!(of_frame(&arp[..length]), 0);
        }
        assert_eq!(of_frame(&arp), 7);
    }

    #[test]
    fn a_set_has_its_members() {
        let set = PrioritySet::NONE
            .with(3)
            .with(7)
            .or(PrioritySet::NONE.with(0));
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 3, 7]);
        assert_eq!((set.bits(), PrioritySet::from_bits(0x89)), (0x89, set));
        assert!(PrioritySet::NONE.is_empty() && !set.is_empty());
        let left = set.without(PrioritySet::NONE.with(3).with(4));
        assert_eq!(left.iter().collect::<Vec<_>>(), [0, 7]);
        assert_eq!(PrioritySet::ALL.iter().count(), PRIORITIES);
    }
}
