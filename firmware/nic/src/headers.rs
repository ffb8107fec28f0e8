//! Positions of the headers of a frame, for steering, checksums and segmentation.
//!
//! Parses Ethernet with at most one VLAN tag, IPv4 (RFC 791) with options, IPv6 (RFC 8200) without extension headers,
//! TCP (RFC 9293) and UDP (RFC 768). Any other header counts as absent.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "offsets and lengths are in the first bytes of a frame and its length, both below 2^17"
)]

use faultline_abi::steering::{
    FLOW_HAS_ETH, FLOW_HAS_IPV4, FLOW_HAS_IPV6, FLOW_HAS_TCP, FLOW_HAS_UDP, FlowFields,
};
use faultline_abi::wqe::MAX_RAW_HEADERS;
use faultline_wire::ethernet::{EtherType, Ethernet, VlanTag};
use faultline_wire::ip::{Ipv6, PROTOCOL_UDP};
use smallvec::SmallVec;

/// Bytes of the longest headers that are parsed: tagged Ethernet, IPv4 and TCP with all options.
pub(crate) const MAX_HEADERS: usize = Ethernet::MAX_LEN + 60 + 60;

/// Headers of one frame, copied or written by the NIC. A switch may push a tag in front of them.
pub(crate) type Head = SmallVec<[u8; MAX_HEADERS + VlanTag::LEN]>;

const PROTOCOL_TCP: u8 = 6;
const UDP_LEN: usize = 8;
const TCP_LEN: usize = 20;

const _: () = assert!(MAX_HEADERS == MAX_RAW_HEADERS as usize);

/// Version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IpVersion {
    V4,
    V6,
}

/// Transport over IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

impl Transport {
    /// Its number in an IP header.
    pub(crate) fn protocol(self) -> u8 {
        match self {
            Self::Tcp => PROTOCOL_TCP,
            Self::Udp => PROTOCOL_UDP,
        }
    }

    /// Offset of the checksum in its header.
    pub(crate) fn checksum_at(self) -> usize {
        match self {
            Self::Tcp => 16,
            Self::Udp => 6,
        }
    }
}

/// The headers of a frame, by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParsedHeaders {
    /// Where the IP header begins.
    pub ip_at: usize,
    pub ip: Option<IpVersion>,
    /// Where the IP packet ends; the frame may be padded.
    pub ip_end: usize,
    /// Offset of the transport's header, at the end of the IP header.
    pub transport_at: usize,
    /// None in fragments but the first.
    pub transport: Option<Transport>,
    /// Where the transport's header ends.
    pub payload_at: usize,
    /// The packet is one of several fragments.
    pub is_fragment: bool,
}

pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u16::from_be_bytes)
}

impl ParsedHeaders {
    /// Parses the first bytes of a frame; [`MAX_HEADERS`] of them are always enough. Returns `None` if they are shorter
    /// than an Ethernet header.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (ethernet, ip_at) = Ethernet::parse(bytes).ok()?;
        let mut found = Self {
            ip_at,
            ip: None,
            ip_end: ip_at,
            transport_at: ip_at,
            transport: None,
            payload_at: ip_at,
            is_fragment: false,
        };
        // A header that is truncated or contradicts itself counts as absent.
        match ethernet.ethertype {
            EtherType::IPV4 => drop(found.parse_ipv4(bytes)),
            EtherType::IPV6 => drop(found.parse_ipv6(bytes)),
            _ => {}
        }
        Some(found)
    }

    /// Parses the headers of a TCP packet for segmentation: `bytes` has exactly these headers. Length fields are ignored, because those of
    /// the segments differ.
    pub(crate) fn parse_template(bytes: &[u8]) -> Option<Self> {
        let found = Self::parse(bytes)?;
        let is_tcp = found.transport == Some(Transport::Tcp) && !found.is_fragment;
        (is_tcp && found.payload_at == bytes.len()).then_some(found)
    }

    fn parse_ipv4(&mut self, bytes: &[u8]) -> Option<()> {
        let at = self.ip_at;
        let first = *bytes.get(at)?;
        let len = usize::from(first & 0xf) * 4;
        let total = usize::from(be16(bytes, at + 2)?);
        if first >> 4 != 4 || len < 20 || total < len || bytes.len() < at + len {
            return None;
        }
        let fragment = be16(bytes, at + 6)?;
        self.ip = Some(IpVersion::V4);
        self.ip_end = at + total;
        self.transport_at = at + len;
        self.payload_at = at + len;
        self.is_fragment = fragment & 0x3fff != 0;
        if fragment & 0x1fff != 0 {
            return None;
        }
        self.parse_transport(bytes, *bytes.get(at + 9)?)
    }

    fn parse_ipv6(&mut self, bytes: &[u8]) -> Option<()> {
        let at = self.ip_at;
        if *bytes.get(at)? >> 4 != 6 || bytes.len() < at + Ipv6::LEN {
            return None;
        }
        self.ip = Some(IpVersion::V6);
        self.transport_at = at + Ipv6::LEN;
        self.payload_at = self.transport_at;
        self.ip_end = self.transport_at + usize::from(be16(bytes, at + 4)?);
        self.parse_transport(bytes, *bytes.get(at + 6)?)
    }

    fn parse_transport(&mut self, bytes: &[u8], protocol: u8) -> Option<()> {
        let at = self.transport_at;
        let (transport, len) = match protocol {
            PROTOCOL_UDP => (Transport::Udp, UDP_LEN),
            PROTOCOL_TCP => (Transport::Tcp, usize::from(bytes.get(at + 12)? >> 4) * 4),
            _ => return None,
        };
        let least = match transport {
            Transport::Udp => UDP_LEN,
            Transport::Tcp => TCP_LEN,
        };
        if len < least || bytes.len() < at + len || self.ip_end < at + len {
            return None;
        }
        self.transport = Some(transport);
        self.payload_at = at + len;
        Some(())
    }

    /// The `FLOW_HAS_*` bits.
    pub(crate) fn bits(&self) -> u32 {
        let ip = match self.ip {
            Some(IpVersion::V4) => FLOW_HAS_IPV4,
            Some(IpVersion::V6) => FLOW_HAS_IPV6,
            None => 0,
        };
        let transport = match self.transport {
            Some(Transport::Tcp) => FLOW_HAS_TCP,
            Some(Transport::Udp) => FLOW_HAS_UDP,
            None => 0,
        };
        FLOW_HAS_ETH | ip | transport
    }

    /// The fields of the headers, in the layout of flows. `bytes` are those that [`ParsedHeaders::parse`] has parsed.
    pub(crate) fn fields(&self, bytes: &[u8]) -> FlowFields {
        let mut fields = FlowFields::default();
        let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
        let copy = |to: &mut [u8], at: usize| {
            for (n, to) in to.iter_mut().enumerate() {
                *to = byte(at + n);
            }
        };
        copy(&mut fields.dmac, 0);
        copy(&mut fields.smac, 6);
        copy(&mut fields.ether_type, self.ip_at - 2);
        if self.ip_at == Ethernet::MAX_LEN {
            copy(&mut fields.vlan_tci, Ethernet::LEN);
        }
        let at = self.ip_at;
        match self.ip {
            Some(IpVersion::V4) => {
                copy(&mut fields.src_ip[12..], at + 12);
                copy(&mut fields.dst_ip[12..], at + 16);
                fields.protocol = byte(at + 9);
                fields.traffic_class = byte(at + 1);
                fields.hop_limit = byte(at + 8);
                fields.ip_flags = byte(at + 6) >> 5;
            }
            Some(IpVersion::V6) => {
                copy(&mut fields.src_ip, at + 8);
                copy(&mut fields.dst_ip, at + 24);
                copy(&mut fields.flow_label, at);
                fields.flow_label[0] = 0;
                fields.flow_label[1] &= 0xf;
                fields.protocol = byte(at + 6);
                fields.traffic_class = byte(at) << 4 | byte(at + 1) >> 4;
                fields.hop_limit = byte(at + 7);
            }
            None => {}
        }
        if self.transport.is_some() {
            copy(&mut fields.src_port, self.transport_at);
            copy(&mut fields.dst_port, self.transport_at + 2);
        }
        fields
    }
}
