//! Ethernet II header with at most one 802.1Q tag (IEEE 802.3 clause 3, IEEE 802.1Q clause 9).
//!
//! Does not handle the frame check sequence (ports strip it), 802.3 length fields (an `ethertype`
//! below 0x600), or a second tag (`ethertype` is then `VLAN`).
//!
//! # Panics
//!
//! Nothing here panics, whatever the bytes or the field values are.

use core::fmt;

use crate::WireError;
use crate::cursor::{Reader, Writer, fits};

/// A 48-bit MAC address in wire order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// True if the group bit is set. Broadcast is also a group address.
    pub const fn is_multicast(self) -> bool {
        let [first, ..] = self.0;
        first & 1 != 0
    }

    /// True if this is [`MacAddr::BROADCAST`].
    pub const fn is_broadcast(self) -> bool {
        matches!(self.0, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// EtherType values (IEEE registry, RFC 9542). The field itself stays a plain `u16`.
pub struct EtherType;

impl EtherType {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// 802.1Q customer tag.
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// Local Experimental EtherType 2 (IEEE Std 802): that of [`PeerQuery`](crate::PeerQuery).
    pub const LOCAL_EXPERIMENTAL_2: u16 = 0x88b6;
}

/// An 802.1Q tag (IEEE 802.1Q clause 9.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VlanTag {
    /// Priority code point, 3 bits.
    pub pcp: u8,
    /// Drop eligible.
    pub dei: bool,
    /// VLAN identifier, 12 bits; 0 is a priority tag without a VLAN.
    pub vid: u16,
}

impl VlanTag {
    /// Length in bytes, with the EtherType that announces it.
    pub const LEN: usize = 4;

    /// The tag on the wire: [`EtherType::VLAN`] and the tag control information. Bits beyond the width of a field are dropped.
    #[inline]
    pub const fn to_bytes(self) -> [u8; Self::LEN] {
        let [ethertype_high, ethertype_low] = EtherType::VLAN.to_be_bytes();
        let pcp = (self.pcp as u16) << 13;
        let dei = (self.dei as u16) << 12;
        let [high, low] = (pcp | dei | self.vid & 0x0fff).to_be_bytes();
        [ethertype_high, ethertype_low, high, low]
    }
}

/// An Ethernet II header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ethernet {
    /// Destination.
    pub dst: MacAddr,
    /// Source.
    pub src: MacAddr,
    /// 802.1Q tag, if present.
    pub vlan: Option<VlanTag>,
    /// EtherType of the payload (after the tag, if present).
    pub ethertype: u16,
}

impl Ethernet {
    /// Length of an untagged header in bytes.
    pub const LEN: usize = 14;
    /// Length of a tagged header in bytes.
    pub const MAX_LEN: usize = 18;

    /// Reads a header; returns it and its length.
    #[inline(always)]
    pub fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        let mut r = Reader::new(buf, Self::LEN)?;
        let dst = MacAddr(r.take()?);
        let src = MacAddr(r.take()?);
        let mut ethertype = r.u16()?;
        let (mut vlan, mut len) = (None, Self::LEN);
        if ethertype == EtherType::VLAN {
            let mut r = Reader::new(buf, Self::MAX_LEN)?;
            r.take::<{ Self::LEN }>()?;
            let tci = r.u16()?;
            ethertype = r.u16()?;
            vlan = Some(VlanTag {
                pcp: (tci >> 13) as u8,
                dei: tci & 0x1000 != 0,
                vid: tci & 0x0fff,
            });
            len = Self::MAX_LEN;
        }
        let ethernet = Self {
            dst,
            src,
            vlan,
            ethertype,
        };
        Ok((ethernet, len))
    }

    /// Length of this header on the wire in bytes.
    #[inline]
    pub const fn header_len(&self) -> usize {
        if self.vlan.is_some() {
            Self::MAX_LEN
        } else {
            Self::LEN
        }
    }

    /// Writes the header; returns its length.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let len = self.header_len();
        let mut w = Writer::new(out, len)?;
        w.put(self.dst.0)?;
        w.put(self.src.0)?;
        if let Some(tag) = self.vlan {
            fits("pcp", tag.pcp.into(), 3)?;
            fits("vid", tag.vid.into(), 12)?;
            w.put(tag.to_bytes())?;
        }
        w.u16(self.ethertype)?;
        Ok(len)
    }
}
