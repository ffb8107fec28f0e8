//! IPv4 (RFC 791) and IPv6 (RFC 8200) headers as RoCEv2 uses them (IBTA volume 1, annex A17.3),
//! and the GIDs of their addresses.
//!
//! Not supported: fragments (refused), IPv4 options (refused: the iCRC is not defined for them),
//! IPv6 extension headers (their `next_header` is not UDP).
//!
//! # Panics
//!
//! Nothing here panics, whatever the bytes or the field values are.

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};

use crate::checksum::InternetSum;
use crate::cursor::{Reader, Writer, fits};
use crate::{MacAddr, WireError};

/// IP protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

/// A 128-bit GID (IBTA volume 1, chapter 4.1.1): an IPv6 address, or an IPv4 address mapped into
/// `::ffff:0:0/96` (annex A17).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The all-zero GID: an empty table entry.
    pub const ZERO: Self = Self([0; 16]);

    /// The GID of an IPv4 address.
    pub const fn from_ipv4(addr: [u8; 4]) -> Self {
        let [a, b, c, d] = addr;
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// The IPv4 address, if this GID is an IPv4-mapped address.
    pub const fn to_ipv4(self) -> Option<[u8; 4]> {
        match self.0 {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([a, b, c, d]),
            _ => None,
        }
    }

    /// The link-local GID of a port: fe80::/64 and the EUI-64 of its MAC address (RFC 4291
    /// appendix A). Every RoCE port has it as GID 0.
    pub const fn link_local(mac: MacAddr) -> Self {
        let [a, b, c, d, e, f] = mac.0;
        Self([
            0xfe,
            0x80,
            0,
            0,
            0,
            0,
            0,
            0,
            a ^ 2,
            b,
            c,
            0xff,
            0xfe,
            d,
            e,
            f,
        ])
    }

    /// True if this is an IPv4-mapped address.
    pub const fn is_ipv4_mapped(self) -> bool {
        self.to_ipv4().is_some()
    }

    /// True if the GID is in ff00::/8 or maps an address in 224.0.0.0/4.
    pub const fn is_multicast(self) -> bool {
        match self.to_ipv4() {
            Some([first, ..]) => first & 0xf0 == 0xe0,
            None => {
                let [first, ..] = self.0;
                first == 0xff
            }
        }
    }

    /// The destination MAC address of a multicast GID (RFC 1112 section 6.4, RFC 2464
    /// section 7); `None` for a unicast GID.
    pub const fn multicast_mac(self) -> Option<MacAddr> {
        if !self.is_multicast() {
            return None;
        }
        let [.., a, b, c, d] = self.0;
        Some(MacAddr(if self.is_ipv4_mapped() {
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        } else {
            [0x33, 0x33, a, b, c, d]
        }))
    }
}

impl fmt::Display for Gid {
    /// Formats the GID as an IPv6 address: `fe80::1`, `::ffff:10.0.0.1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(addr: Ipv4Addr) -> Self {
        Self::from_ipv4(addr.octets())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(addr: Ipv6Addr) -> Self {
        Self(addr.octets())
    }
}

fn header_sum(header: &[u8]) -> InternetSum {
    let mut sum = InternetSum::default();
    sum.add(header);
    sum
}

/// An IPv4 header without options (RFC 791 section 3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ipv4 {
    /// Source address.
    pub src: [u8; 4],
    /// Destination address.
    pub dst: [u8; 4],
    /// Differentiated services code point, 6 bits.
    pub dscp: u8,
    /// Explicit congestion notification, 2 bits (RFC 3168).
    pub ecn: u8,
    /// Time to live.
    pub ttl: u8,
    /// Identification; has no meaning in an unfragmented packet (RFC 6864), but the iCRC covers it.
    pub identification: u16,
    /// Don't fragment.
    pub dont_fragment: bool,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Length of header and payload in bytes.
    pub total_len: u16,
}

impl Ipv4 {
    /// Length of the header in bytes.
    pub const LEN: usize = Self::LEN_FIELD as usize;
    /// The same length in the type of `total_len`.
    const LEN_FIELD: u16 = 20;

    /// Reads a header; returns it and its length.
    ///
    /// Verifies version, header length and checksum, that the packet is not a fragment, and that `buf`
    /// holds at least `total_len` bytes (Ethernet padding may follow).
    #[inline(always)]
    pub fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        Self::parse_start(buf, buf.len())
    }

    /// The same for the start of a packet: `buf` has its first bytes, and the packet has `available` bytes.
    #[inline(always)]
    pub fn parse_start(buf: &[u8], available: usize) -> Result<(Self, usize), WireError> {
        let mut r = Reader::new(buf, Self::LEN)?;
        let version_ihl = r.u8()?;
        if version_ihl >> 4 != 4 {
            return Err(WireError::BadVersion(version_ihl >> 4));
        }
        let ihl = usize::from(version_ihl & 0xf) * 4;
        if ihl < Self::LEN {
            return Err(WireError::BadLength {
                declared: ihl,
                available: Self::LEN,
            });
        }
        if ihl > Self::LEN {
            return Err(WireError::IpOptions(ihl));
        }
        if !header_sum(buf.get(..Self::LEN).unwrap_or_default()).is_right() {
            return Err(WireError::BadChecksum);
        }
        let tos = r.u8()?;
        let total_len = r.u16()?;
        let identification = r.u16()?;
        let fragment = r.u16()?;
        let ttl = r.u8()?;
        let protocol = r.u8()?;
        let _checksum = r.u16()?;
        let src = r.take()?;
        let dst = r.take()?;
        // More-fragments flag or a fragment offset; bit 15 is reserved and ignored.
        if fragment & 0x3fff != 0 {
            return Err(WireError::Fragment);
        }
        let declared = usize::from(total_len);
        if declared < Self::LEN {
            return Err(WireError::BadLength {
                declared,
                available: Self::LEN,
            });
        }
        if declared > available {
            return Err(WireError::Truncated {
                need: declared,
                have: available,
            });
        }
        let ip = Self {
            src,
            dst,
            dscp: tos >> 2,
            ecn: tos & 3,
            ttl,
            identification,
            dont_fragment: fragment & 0x4000 != 0,
            protocol,
            total_len,
        };
        Ok((ip, Self::LEN))
    }

    /// Writes the header with its checksum; returns its length.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        fits("dscp", self.dscp.into(), 6)?;
        fits("ecn", self.ecn.into(), 2)?;
        let version_tos = u16::from_be_bytes([0x45, self.dscp << 2 | self.ecn]);
        let fragment = if self.dont_fragment { 0x4000 } else { 0 };
        let ttl_protocol = u16::from_be_bytes([self.ttl, self.protocol]);
        let (src, dst) = (u32::from_be_bytes(self.src), u32::from_be_bytes(self.dst));
        // The sum is made of the values, because reading bytes that were just written takes longer.
        let mut sum = InternetSum::default();
        for word in [
            version_tos,
            self.total_len,
            self.identification,
            fragment,
            ttl_protocol,
        ] {
            sum.add_number(word.into());
        }
        sum.add_number(src.into());
        sum.add_number(dst.into());
        let mut w = Writer::new(out, Self::LEN)?;
        w.u16(version_tos)?;
        w.u16(self.total_len)?;
        w.u16(self.identification)?;
        w.u16(fragment)?;
        w.u16(ttl_protocol)?;
        w.u16(sum.checksum())?;
        w.put(self.src)?;
        w.put(self.dst)?;
        Ok(Self::LEN)
    }
}

/// An IPv6 header (RFC 8200 section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ipv6 {
    /// Source address.
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
    /// Traffic class: 6 bits DSCP, 2 bits ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Protocol of the payload, or an extension header.
    pub next_header: u8,
    /// Number of bytes after this header.
    pub payload_len: u16,
}

impl Ipv6 {
    /// Length of the header in bytes.
    pub const LEN: usize = 40;

    /// Reads a header; returns it and its length. Verifies the version and that `buf` holds
    /// `payload_len` bytes after the header.
    #[inline(always)]
    pub fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        Self::parse_start(buf, buf.len())
    }

    /// The same for the start of a packet: `buf` has its first bytes, and the packet has `available` bytes.
    #[inline(always)]
    pub fn parse_start(buf: &[u8], available: usize) -> Result<(Self, usize), WireError> {
        let mut r = Reader::new(buf, Self::LEN)?;
        let word = r.u32()?;
        let version = (word >> 28) as u8;
        if version != 6 {
            return Err(WireError::BadVersion(version));
        }
        let payload_len = r.u16()?;
        let ip = Self {
            traffic_class: ((word >> 20) & 0xff) as u8,
            flow_label: word & 0xf_ffff,
            payload_len,
            next_header: r.u8()?,
            hop_limit: r.u8()?,
            src: r.take()?,
            dst: r.take()?,
        };
        let need = Self::LEN + usize::from(payload_len);
        if need > available {
            return Err(WireError::Truncated {
                need,
                have: available,
            });
        }
        Ok((ip, Self::LEN))
    }

    /// Writes the header; returns its length.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        fits("flow_label", self.flow_label, 20)?;
        let mut w = Writer::new(out, Self::LEN)?;
        w.u32(6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label)?;
        w.u16(self.payload_len)?;
        w.u8(self.next_header)?;
        w.u8(self.hop_limit)?;
        w.put(self.src)?;
        w.put(self.dst)?;
        Ok(Self::LEN)
    }
}

/// An IP header of either version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ip {
    /// IPv4.
    V4(Ipv4),
    /// IPv6.
    V6(Ipv6),
}

impl From<Ipv4> for Ip {
    fn from(ip: Ipv4) -> Self {
        Self::V4(ip)
    }
}

impl From<Ipv6> for Ip {
    fn from(ip: Ipv6) -> Self {
        Self::V6(ip)
    }
}

impl Ip {
    /// Creates an IP header for UDP between two GIDs: IPv4 if and only if both map IPv4 addresses.
    ///
    /// For IPv4, `flow_label` is ignored, `dont_fragment` is set and the identification is 0 (RFC
    /// 6864 section 4.1). For IPv6, only the low 20 bits of `flow_label` are used, because verbs
    /// accept larger values. Lengths are those of an empty payload; see [`Ip::set_payload_len`].
    pub fn from_gids(
        src: Gid,
        dst: Gid,
        traffic_class: u8,
        flow_label: u32,
        hop_limit: u8,
    ) -> Self {
        match (src.to_ipv4(), dst.to_ipv4()) {
            (Some(src), Some(dst)) => Self::V4(Ipv4 {
                src,
                dst,
                dscp: traffic_class >> 2,
                ecn: traffic_class & 3,
                ttl: hop_limit,
                identification: 0,
                dont_fragment: true,
                protocol: PROTOCOL_UDP,
                total_len: Ipv4::LEN_FIELD,
            }),
            _ => Self::V6(Ipv6 {
                src: src.0,
                dst: dst.0,
                traffic_class,
                flow_label: flow_label & 0xf_ffff,
                hop_limit,
                next_header: PROTOCOL_UDP,
                payload_len: 0,
            }),
        }
    }

    /// Reads a header of the version in its first four bits; returns it and its length.
    #[inline(always)]
    pub fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        Self::parse_start(buf, buf.len())
    }

    /// The same for the start of a packet: `buf` has its first bytes, and the packet has `available` bytes.
    #[inline(always)]
    pub fn parse_start(buf: &[u8], available: usize) -> Result<(Self, usize), WireError> {
        match buf.first().map(|byte| byte >> 4) {
            Some(4) => Ipv4::parse_start(buf, available).map(|(ip, len)| (Self::V4(ip), len)),
            Some(6) => Ipv6::parse_start(buf, available).map(|(ip, len)| (Self::V6(ip), len)),
            Some(version) => Err(WireError::BadVersion(version)),
            None => Err(WireError::Truncated { need: 1, have: 0 }),
        }
    }

    /// Writes the header; returns its length.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        match self {
            Self::V4(ip) => ip.emit(out),
            Self::V6(ip) => ip.emit(out),
        }
    }

    /// The sum of the pseudo header of UDP and TCP checksums (RFC 9293 section 3.1, RFC 8200 section 8.1). `len` is the number of bytes
    /// after this header.
    #[inline]
    pub fn pseudo_header(&self, protocol: u8, len: usize) -> InternetSum {
        let mut sum = InternetSum::default();
        match self {
            Self::V4(ip) => {
                sum.add(&ip.src);
                sum.add(&ip.dst);
            }
            Self::V6(ip) => {
                sum.add(&ip.src);
                sum.add(&ip.dst);
            }
        }
        sum.add_number(protocol.into());
        sum.add_number(len as u64);
        sum
    }

    /// Length of this header on the wire in bytes.
    #[inline]
    pub const fn header_len(&self) -> usize {
        match self {
            Self::V4(_) => Ipv4::LEN,
            Self::V6(_) => Ipv6::LEN,
        }
    }

    /// Number of bytes after this header, from its length field (0 if an IPv4 `total_len` is below
    /// the length of the header).
    #[inline]
    pub const fn payload_len(&self) -> usize {
        match self {
            Self::V4(ip) => (ip.total_len as usize).saturating_sub(Ipv4::LEN),
            Self::V6(ip) => ip.payload_len as usize,
        }
    }

    /// Sets the length field for `payload_len` bytes after this header.
    #[inline]
    pub fn set_payload_len(&mut self, payload_len: usize) -> Result<(), WireError> {
        let counted = match self {
            Self::V4(_) => payload_len.saturating_add(Ipv4::LEN),
            Self::V6(_) => payload_len,
        };
        let Ok(field) = u16::try_from(counted) else {
            return Err(WireError::BadLength {
                declared: counted,
                available: u16::MAX.into(),
            });
        };
        match self {
            Self::V4(ip) => ip.total_len = field,
            Self::V6(ip) => ip.payload_len = field,
        }
        Ok(())
    }

    /// The source as a GID.
    #[inline]
    pub const fn src_gid(&self) -> Gid {
        match self {
            Self::V4(ip) => Gid::from_ipv4(ip.src),
            Self::V6(ip) => Gid(ip.src),
        }
    }

    /// The destination as a GID.
    #[inline]
    pub const fn dst_gid(&self) -> Gid {
        match self {
            Self::V4(ip) => Gid::from_ipv4(ip.dst),
            Self::V6(ip) => Gid(ip.dst),
        }
    }

    /// The traffic class (IPv4: the former type of service): DSCP and ECN.
    #[inline]
    pub const fn traffic_class(&self) -> u8 {
        match self {
            Self::V4(ip) => ip.dscp << 2 | ip.ecn & 3,
            Self::V6(ip) => ip.traffic_class,
        }
    }

    /// The ECN bits: 0 not capable, 1 and 2 capable, 3 congestion experienced (RFC 3168).
    #[inline]
    pub const fn ecn(&self) -> u8 {
        self.traffic_class() & 3
    }

    /// Sets the traffic class: DSCP and ECN.
    #[inline]
    pub fn set_traffic_class(&mut self, class: u8) {
        match self {
            Self::V4(ip) => (ip.dscp, ip.ecn) = (class >> 2, class & 3),
            Self::V6(ip) => ip.traffic_class = class,
        }
    }

    /// Sets the ECN bits; only the low two bits of `ecn` are used.
    #[inline]
    pub fn set_ecn(&mut self, ecn: u8) {
        match self {
            Self::V4(ip) => ip.ecn = ecn & 3,
            Self::V6(ip) => ip.traffic_class = ip.traffic_class & !3 | ecn & 3,
        }
    }

    /// The flow label; 0 for IPv4, which has none.
    #[inline]
    pub const fn flow_label(&self) -> u32 {
        match self {
            Self::V4(_) => 0,
            Self::V6(ip) => ip.flow_label,
        }
    }

    /// The hop limit (IPv4: time to live).
    #[inline]
    pub const fn hop_limit(&self) -> u8 {
        match self {
            Self::V4(ip) => ip.ttl,
            Self::V6(ip) => ip.hop_limit,
        }
    }

    /// The protocol of the payload (IPv6: next header).
    #[inline]
    pub const fn protocol(&self) -> u8 {
        match self {
            Self::V4(ip) => ip.protocol,
            Self::V6(ip) => ip.next_header,
        }
    }
}

/// ECN codepoint "congestion experienced" (RFC 3168, section 5).
pub const CONGESTION_EXPERIENCED: u8 = 3;

/// Sets the mark of congestion in an Ethernet frame of IP, with at most one VLAN tag, if its sender is capable of it. Returns
/// true if the frame has the mark now. The iCRC does not cover these bits.
pub fn mark_congestion(frame: &mut [u8]) -> bool {
    let (ethertype, at) = match frame.get(12..14) {
        Some([0x81, 0x00]) => (frame.get(16..18), 18),
        ethertype => (ethertype, 14),
    };
    let is_v4 = ethertype == Some(&[0x08, 0x00]);
    let is_v6 = ethertype == Some(&[0x86, 0xdd]);
    let Some(ip) = frame.get_mut(at..) else {
        return false;
    };
    match ip {
        [first, tos, ..] if is_v4 && *first >> 4 == 4 && *tos & 3 != 0 => {
            *tos |= CONGESTION_EXPERIENCED;
            let length = usize::from(*first & 0xf).saturating_mul(4);
            if let Some(header) = ip.get_mut(..length)
                && let Some(sum) = header.get_mut(10..12)
            {
                sum.fill(0);
                let mut whole = InternetSum::default();
                whole.add(header);
                let checksum = whole.checksum().to_be_bytes();
                if let Some(sum) = header.get_mut(10..12) {
                    sum.copy_from_slice(&checksum);
                }
            }
            true
        }
        // The traffic class lies across two octets; ECN is in the upper half of the second.
        [first, second, ..] if is_v6 && *first >> 4 == 6 && *second & 0x30 != 0 => {
            *second |= CONGESTION_EXPERIENCED << 4;
            true
        }
        _ => false,
    }
}
