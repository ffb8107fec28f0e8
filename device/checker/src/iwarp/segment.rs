//! TCP segments in frames.

use std::fmt;

use faultline_wire::ip::PROTOCOL_TCP;
use faultline_wire::{EtherType, Ethernet, Gid, Ip, Tcp, WireError};

use crate::frame::Frame;

/// One end of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct End {
    /// Its IP address.
    pub address: Gid,
    /// Its TCP port.
    pub port: u16,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, port } = self;
        write!(f, "{address} port {port}")
    }
}

/// The segment of a [`Finding`](crate::Finding).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The sending end.
    pub from: End,
    /// The receiving end.
    pub to: End,
    /// Sequence number.
    pub seq: u32,
}

/// A TCP segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'a> {
    pub ends: [End; 2],
    pub tcp: Tcp,
    /// Octets of its data that are known: the first ones, or all.
    pub data: &'a [u8],
    /// Number of octets of its data.
    pub len: usize,
    /// The checksum is right; `None`: octets are missing.
    pub is_intact: Option<bool>,
}

/// The header cannot be parsed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Malformed {
    pub ends: [End; 2],
    pub seq: u32,
    pub error: WireError,
    /// The checksum is right; `None`: octets are missing.
    pub is_intact: Option<bool>,
}

impl Segment<'_> {
    pub(crate) fn header(&self) -> SegmentHeader {
        let [from, to] = self.ends;
        let seq = self.tcp.seq.0;
        SegmentHeader { from, to, seq }
    }
}

impl<'a> Segment<'a> {
    /// Parses a frame. `None`: it has no TCP segment.
    pub(crate) fn parse(frame: Frame<'a>) -> Option<Result<Self, Malformed>> {
        let octets = frame.octets();
        let (ethernet, at_ip) = Ethernet::parse(octets).ok()?;
        if !matches!(ethernet.ethertype, EtherType::IPV4 | EtherType::IPV6) {
            return None;
        }
        let (ip, ip_len) = Ip::parse(octets.get(at_ip..)?).ok()?;
        if ip.protocol() != PROTOCOL_TCP {
            return None;
        }
        let at_tcp = at_ip.checked_add(ip_len)?;
        let end = at_tcp.checked_add(ip.payload_len())?;
        // The frame may have padding.
        let l4 = octets.get(at_tcp..end)?;
        let field = |at: usize| l4.get(at..).and_then(<[u8]>::first_chunk::<2>);
        let port = |at: usize| field(at).map(|port| u16::from_be_bytes(*port));
        let end_of = |address, port| End { address, port };
        let from = end_of(ip.src_gid(), port(0)?);
        let to = end_of(ip.dst_gid(), port(2)?);
        let known = octets.get(..frame.known().min(end))?;
        let is_intact = (known.len() == end).then(|| Tcp::is_intact(&ip, l4));
        let (tcp, tcp_len) = match Tcp::parse(l4) {
            Ok(parsed) => parsed,
            Err(error) => {
                let seq = l4.get(4..).and_then(<[u8]>::first_chunk::<4>);
                return Some(Err(Malformed {
                    ends: [from, to],
                    seq: seq.map_or(0, |seq| u32::from_be_bytes(*seq)),
                    error,
                    is_intact,
                }));
            }
        };
        let at_data = at_tcp.checked_add(tcp_len)?;
        Some(Ok(Self {
            ends: [from, to],
            tcp,
            data: known.get(at_data..).unwrap_or_default(),
            len: end.saturating_sub(at_data),
            is_intact,
        }))
    }

    /// The part of its data from `skip` octets on.
    pub(crate) fn rest(&self, skip: usize) -> Octets<'a> {
        Octets {
            known: self.data.get(skip..).unwrap_or_default(),
            len: self.len.saturating_sub(skip),
        }
    }
}

/// Octets of a stream; the first ones are known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Octets<'a> {
    pub known: &'a [u8],
    pub len: usize,
}

impl<'a> Octets<'a> {
    /// Takes the first `len` octets.
    pub(crate) fn take(&mut self, len: usize) -> Self {
        let len = len.min(self.len);
        let (first, rest) = self.known.split_at(len.min(self.known.len()));
        self.known = rest;
        self.len = self.len.saturating_sub(len);
        Octets { known: first, len }
    }

    /// True if all of them are known.
    pub(crate) fn is_whole(&self) -> bool {
        self.known.len() == self.len
    }
}
