//! Whole RoCEv2 packets: Ethernet, IP, UDP, BTH, extended headers, payload, pad, iCRC (IBTA volume
//! 1, chapter 5.2 and annex A17.3).
//!
//! What parsing refuses, a receiver drops silently (chapter 9.6.1: packet validation at the
//! BTH). What needs a QP to judge is not judged here: P_Key, Q_Key, PSN, whether the payload
//! length suits the opcode and the path MTU. The iCRC is verified but a mismatch is reported, not
//! refused, so that it can be counted by itself.
//!
//! # Panics
//!
//! Nothing here panics, whatever the bytes or the field values are.

use crate::cursor::{tail, tail_mut};
use crate::icrc::{ICRC_LEN, icrc};
use crate::ip::PROTOCOL_UDP;
use crate::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, EtherType, Ethernet, Feth, Headers, Ieth, ImmDt, Ip,
    Ipv4, Ipv6, ROCE_V2_PORT, Reth, Udp, WireError, XrcEth,
};

/// The most bytes that BTH and extended headers take: an XRC atomic.
pub const MAX_TRANSPORT_LEN: usize = Bth::LEN + XrcEth::LEN + AtomicEth::LEN;

/// The most bytes that headers take, from Ethernet (tagged) to the last extended header.
pub const MAX_HEADER_LEN: usize = Ethernet::MAX_LEN + Ipv6::LEN + Udp::LEN + MAX_TRANSPORT_LEN;

/// The most pad bytes behind a payload.
pub const MAX_PAD: usize = 3;

/// All headers of a packet.
///
/// Which of the optional ones are present is decided by `bth.opcode`: [`RoceHeader::emit`] refuses
/// others. Length and pad fields (`ip`, `bth.pad`) are what parsing found, and are ignored by
/// `emit`, which knows them better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RoceHeader {
    /// Ethernet. The `ethertype` is ignored by `emit`: it follows from `ip`.
    pub ethernet: Ethernet,
    /// IP.
    pub ip: Ip,
    /// UDP source port: flow entropy.
    pub udp_src_port: u16,
    /// Base transport header.
    pub bth: Bth,
    /// Datagram header.
    pub deth: Option<Deth>,
    /// RDMA header.
    pub reth: Option<Reth>,
    /// ACK header.
    pub aeth: Option<Aeth>,
    /// Atomic request.
    pub atomic: Option<AtomicEth>,
    /// Atomic acknowledgment.
    pub atomic_ack: Option<AtomicAckEth>,
    /// Immediate data, in the order of the wire read as big-endian.
    pub imm: Option<u32>,
    /// R_Key to invalidate.
    pub ieth: Option<u32>,
    /// XRC header.
    pub xrceth: Option<XrcEth>,
    /// Flush header.
    pub feth: Option<Feth>,
}

/// A packet taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed<'a> {
    /// All headers.
    pub header: RoceHeader,
    /// The payload without pad and iCRC. Present also where the opcode should have none.
    pub payload: &'a [u8],
    /// The iCRC that the packet carries (on the wire: `to_le_bytes` of this).
    pub icrc: u32,
    /// Whether it is right; `true` from [`parse_trusted`], which does not look.
    pub icrc_ok: bool,
}

/// Pad bytes for a payload of `payload_len` bytes.
#[inline]
pub const fn pad_len(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}

impl RoceHeader {
    /// A header with the given identity, no extended headers and no VLAN.
    pub const fn new(dst: crate::MacAddr, src: crate::MacAddr, ip: Ip, bth: Bth) -> Self {
        let ethertype = match ip {
            Ip::V4(_) => EtherType::IPV4,
            Ip::V6(_) => EtherType::IPV6,
        };
        Self {
            ethernet: Ethernet {
                dst,
                src,
                vlan: None,
                ethertype,
            },
            ip,
            udp_src_port: 0xc000,
            bth,
            deth: None,
            reth: None,
            aeth: None,
            atomic: None,
            atomic_ack: None,
            imm: None,
            ieth: None,
            xrceth: None,
            feth: None,
        }
    }

    /// The set of extended headers that are present.
    #[inline]
    pub const fn extended(&self) -> Headers {
        const fn one(present: bool, header: Headers) -> Headers {
            if present { header } else { Headers::empty() }
        }
        one(self.deth.is_some(), Headers::DETH)
            .union(one(self.reth.is_some(), Headers::RETH))
            .union(one(self.aeth.is_some(), Headers::AETH))
            .union(one(self.atomic.is_some(), Headers::ATOMIC_ETH))
            .union(one(self.atomic_ack.is_some(), Headers::ATOMIC_ACK_ETH))
            .union(one(self.imm.is_some(), Headers::IMM))
            .union(one(self.ieth.is_some(), Headers::IETH))
            .union(one(self.xrceth.is_some(), Headers::XRCETH))
            .union(one(self.feth.is_some(), Headers::FETH))
    }

    /// Bytes from the BTH to the end of the extended headers, as the opcode has them.
    #[inline]
    pub const fn transport_len(&self) -> usize {
        self.bth.opcode.info().transport_len
    }

    /// Bytes of all headers: where the payload starts in the frame.
    #[inline]
    pub const fn header_len(&self) -> usize {
        self.ethernet.header_len() + self.ip.header_len() + Udp::LEN + self.transport_len()
    }

    /// Bytes of the frame with `payload_len` bytes of payload, pad and iCRC included; without the
    /// padding to 60 bytes and the check sequence of Ethernet.
    #[inline]
    pub const fn frame_len(&self, payload_len: usize) -> usize {
        self.header_len()
            .saturating_add(payload_len)
            .saturating_add(pad_len(payload_len))
            .saturating_add(ICRC_LEN)
    }

    /// Bytes of UDP header, transport headers, payload, pad and iCRC.
    const fn udp_len(&self, payload_len: usize) -> usize {
        (Udp::LEN + self.transport_len() + ICRC_LEN)
            .saturating_add(payload_len)
            .saturating_add(pad_len(payload_len))
    }

    /// The IP header of the packet with `payload_len` bytes of payload: `ip` with its length and protocol.
    pub fn emitted_ip(&self, payload_len: usize) -> Result<Ip, WireError> {
        let mut ip = self.ip;
        ip.set_payload_len(self.udp_len(payload_len))?;
        match &mut ip {
            Ip::V4(ip) => ip.protocol = PROTOCOL_UDP,
            Ip::V6(ip) => ip.next_header = PROTOCOL_UDP,
        }
        Ok(ip)
    }

    /// Writes all headers for a payload of `payload_len` bytes; returns their length, which is
    /// [`RoceHeader::header_len`].
    ///
    /// EtherType, IP and UDP lengths, UDP port, IP protocol and pad count are set here. `out` need
    /// only hold the headers. The caller then writes the payload behind them, and [`seal`] does
    /// pad and iCRC.
    pub fn emit(&self, payload_len: usize, out: &mut [u8]) -> Result<usize, WireError> {
        let opcode = self.bth.opcode;
        if self.extended() != opcode.info().headers {
            return Err(WireError::WrongHeaders(opcode.to_u8()));
        }
        let have = out.len();
        let need = self.header_len();
        let Some(out) = out.get_mut(..need) else {
            return Err(WireError::BufferTooSmall { need, have });
        };

        let ip = self.emitted_ip(payload_len)?;
        let ethertype = match ip {
            Ip::V4(_) => EtherType::IPV4,
            Ip::V6(_) => EtherType::IPV6,
        };
        let udp = Udp {
            src_port: self.udp_src_port,
            dst_port: ROCE_V2_PORT,
            // Checked by set_payload_len, whose field is as wide and counts at least as much.
            len: self.udp_len(payload_len) as u16,
            checksum: 0,
        };
        let bth = Bth {
            pad: pad_len(payload_len) as u8,
            ..self.bth
        };

        let mut at = Ethernet {
            ethertype,
            ..self.ethernet
        }
        .emit(out)?;
        at += ip.emit(tail_mut(out, at))?;
        at += udp.emit(tail_mut(out, at))?;
        at += bth.emit(tail_mut(out, at))?;
        self.emit_extended(tail_mut(out, at))?;
        Ok(need)
    }

    /// In the order of chapter 5.2.1: XRCETH or DETH, then FETH and RETH or ATOMICETH, AETH and
    /// ATOMICACKETH, IMMDT or IETH.
    #[inline]
    fn emit_extended(&self, out: &mut [u8]) -> Result<(), WireError> {
        let mut at = 0;
        if let Some(header) = self.xrceth {
            at += header.emit(tail_mut(out, at))?;
        }
        if let Some(header) = self.deth {
            at += header.emit(tail_mut(out, at))?;
        }
        if let Some(header) = self.feth {
            at += header.emit(tail_mut(out, at))?;
        }
        if let Some(header) = self.reth {
            at += header.emit(tail_mut(out, at))?;
        }
        if let Some(header) = self.atomic {
            at += header.emit(tail_mut(out, at))?;
        }
        if let Some(header) = self.aeth {
            at += header.emit(tail_mut(out, at))?;
        }
        if let Some(header) = self.atomic_ack {
            at += header.emit(tail_mut(out, at))?;
        }
        if let Some(imm) = self.imm {
            at += ImmDt(imm).emit(tail_mut(out, at))?;
        }
        if let Some(rkey) = self.ieth {
            Ieth(rkey).emit(tail_mut(out, at))?;
        }
        Ok(())
    }

    /// The inverse of `emit_extended`: fills in what the opcode says is there.
    #[inline]
    fn parse_extended(&mut self, buf: &[u8]) -> Result<(), WireError> {
        let mut at = 0;
        let headers = self.bth.opcode.info().headers;
        macro_rules! take {
            ($flag:ident, $header:ty) => {
                if headers.contains(Headers::$flag) {
                    let (header, len) = <$header>::parse(tail(buf, at))?;
                    at += len;
                    Some(header)
                } else {
                    None
                }
            };
        }
        self.xrceth = take!(XRCETH, XrcEth);
        self.deth = take!(DETH, Deth);
        self.feth = take!(FETH, Feth);
        self.reth = take!(RETH, Reth);
        self.atomic = take!(ATOMIC_ETH, AtomicEth);
        self.aeth = take!(AETH, Aeth);
        self.atomic_ack = take!(ATOMIC_ACK_ETH, AtomicAckEth);
        self.imm = take!(IMM, ImmDt).map(|imm| imm.0);
        self.ieth = take!(IETH, Ieth).map(|ieth| ieth.0);
        let _ = at;
        Ok(())
    }
}

/// Takes a frame apart and verifies its iCRC.
///
/// `frame` starts at the Ethernet header and may have trailing Ethernet padding. Anything that is
/// not recognisably UDP to port 4791 is [`WireError::NotRoce`] and belongs to the network stack:
/// other protocols, IP fragments (a whole datagram is needed to tell), IPv6 extension headers,
/// two VLAN tags, and frames too short or too broken to find a UDP port in. Other errors are
/// RoCEv2 packets to be dropped.
pub fn parse(frame: &[u8]) -> Result<Parsed<'_>, WireError> {
    dissect(frame, true)
}

/// As [`parse`], without computing the iCRC: for frames that never left the process.
pub fn parse_trusted(frame: &[u8]) -> Result<Parsed<'_>, WireError> {
    dissect(frame, false)
}

/// Whether a frame would be RoCEv2: UDP to port 4791, unfragmented. Nothing else is verified.
pub fn is_roce(frame: &[u8]) -> bool {
    let Ok((ethernet, at)) = Ethernet::parse(frame) else {
        return false;
    };
    udp_dst_port(&ethernet, tail(frame, at)) == Some(ROCE_V2_PORT)
}

/// The destination port of an unfragmented UDP datagram, looked up leniently: IPv4 options are
/// skipped, checksums and lengths ignored.
#[inline]
fn udp_dst_port(ethernet: &Ethernet, l3: &[u8]) -> Option<u16> {
    let first = *l3.first()?;
    let udp_at = match (ethernet.ethertype, first >> 4) {
        (EtherType::IPV4, 4) => {
            let fragment = u16::from_be_bytes(*tail(l3, 6).first_chunk()?);
            if *l3.get(9)? != PROTOCOL_UDP || fragment & 0x3fff != 0 {
                return None;
            }
            usize::from(first & 0xf) * 4
        }
        (EtherType::IPV6, 6) if *l3.get(6)? == PROTOCOL_UDP => Ipv6::LEN,
        _ => return None,
    };
    if udp_at < Ipv4::LEN {
        return None;
    }
    Some(u16::from_be_bytes(*tail(l3, udp_at + 2).first_chunk()?))
}

/// The parts of a RoCEv2 frame, by position.
struct Layout<'a> {
    ethernet: Ethernet,
    ip: Ip,
    udp: Udp,
    bth: Bth,
    /// IP header up to the iCRC.
    covered: &'a [u8],
    /// Extended headers.
    extended: &'a [u8],
    /// Payload and pad.
    padded: &'a [u8],
    icrc: u32,
}

/// Finds the parts and checks all lengths against each other.
#[inline]
fn layout(frame: &[u8]) -> Result<Layout<'_>, WireError> {
    let (ethernet, at) = Ethernet::parse(frame).map_err(|_| WireError::NotRoce)?;
    let l3 = tail(frame, at);
    if udp_dst_port(&ethernet, l3) != Some(ROCE_V2_PORT) {
        return Err(WireError::NotRoce);
    }
    let (ip, ip_len) = Ip::parse(l3)?;
    let l3_len = ip_len + ip.payload_len();
    let Some(l3) = l3.get(..l3_len) else {
        return Err(WireError::Truncated {
            need: l3_len,
            have: l3.len(),
        });
    };
    let l4 = tail(l3, ip_len);
    let (udp, udp_len) = Udp::parse(l4)?;
    if usize::from(udp.len) != l4.len() {
        return Err(WireError::BadLength {
            declared: udp.len.into(),
            available: l4.len(),
        });
    }
    let Some((covered, icrc)) = l3.split_last_chunk::<ICRC_LEN>() else {
        return Err(WireError::Truncated {
            need: ICRC_LEN,
            have: l3.len(),
        });
    };
    let transport = tail(covered, ip_len + udp_len);
    let (bth, bth_len) = Bth::parse(transport)?;
    // Chapter 9.6.1: a transport version other than zero is dropped.
    if bth.version != 0 {
        return Err(WireError::BadVersion(bth.version));
    }
    let transport_len = bth.opcode.info().transport_len;
    let Some((headers, padded)) = transport.split_at_checked(transport_len) else {
        return Err(WireError::Truncated {
            need: transport_len,
            have: transport.len(),
        });
    };
    Ok(Layout {
        ethernet,
        ip,
        udp,
        bth,
        covered,
        extended: tail(headers, bth_len),
        padded,
        icrc: u32::from_le_bytes(*icrc),
    })
}

#[inline]
fn dissect(frame: &[u8], verify: bool) -> Result<Parsed<'_>, WireError> {
    let l = layout(frame)?;
    // Chapter 9.2: payload and pad together are a multiple of four bytes.
    let pad = usize::from(l.bth.pad);
    let payload = match l.padded.len().checked_sub(pad) {
        Some(len) if l.padded.len() % 4 == 0 => l.padded.get(..len).unwrap_or_default(),
        _ => {
            return Err(WireError::BadLength {
                declared: pad,
                available: l.padded.len(),
            });
        }
    };
    let mut header = RoceHeader::new(l.ethernet.dst, l.ethernet.src, l.ip, l.bth);
    header.ethernet = l.ethernet;
    header.udp_src_port = l.udp.src_port;
    header.parse_extended(l.extended)?;
    let icrc_ok = !verify || icrc(l.covered)? == l.icrc;
    Ok(Parsed {
        header,
        payload,
        icrc: l.icrc,
        icrc_ok,
    })
}

/// Finishes a frame whose headers and payload are written: zeroes the pad bytes, then computes the
/// iCRC into the last four.
///
/// `frame` is exactly [`RoceHeader::frame_len`] bytes long, without Ethernet padding.
pub fn seal(frame: &mut [u8]) -> Result<(), WireError> {
    let l = layout(frame)?;
    let pad = usize::from(l.bth.pad);
    if pad > l.padded.len() {
        return Err(WireError::BadLength {
            declared: pad,
            available: l.padded.len(),
        });
    }
    let l3_at = l.ethernet.header_len();
    let end = l3_at + l.covered.len() + ICRC_LEN;
    if end != frame.len() {
        return Err(WireError::BadLength {
            declared: end,
            available: frame.len(),
        });
    }
    let covered_len = l.covered.len();
    let l3 = tail_mut(frame, l3_at);
    let Some((covered, icrc_out)) = l3.split_last_chunk_mut::<ICRC_LEN>() else {
        return Err(WireError::Truncated {
            need: ICRC_LEN,
            have: covered_len,
        });
    };
    // A pooled buffer must not leak what it held before.
    if let Some(bytes) = covered.get_mut(covered_len.saturating_sub(pad)..) {
        bytes.fill(0);
    }
    *icrc_out = icrc(covered)?.to_le_bytes();
    Ok(())
}
