//! Whole RoCEv2 packets: Ethernet, IP, UDP, BTH, extended headers, payload, pad, iCRC (IBTA volume
//! 1, chapter 5.2 and annex A17.3).
//!
//! A receiver silently drops packets that parsing refuses (chapter 9.6.1: packet validation at the
//! BTH). Parsing does not check values that depend on a QP: P_Key, Q_Key, PSN, and the payload length
//! for the opcode and the path MTU. It verifies the iCRC, but reports a mismatch in
//! [`Parsed::icrc_ok`] instead of an error, so that the caller can count it separately.
//!
//! # Panics
//!
//! Nothing here panics, whatever the bytes or the field values are.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "the headers of a packet are below 2^8 bytes in all, and lengths of packets have 16 bits"
)]

mod reserved;

pub use reserved::parse_reserved;

use crate::cursor::{tail, tail_mut};
use crate::icrc::{ICRC_LEN, icrc};
use crate::ip::PROTOCOL_UDP;
use crate::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, EtherType, Ethernet, Feth, Headers, Ieth, ImmDt, Ip,
    Ipv4, Ipv6, ROCE_V2_PORT, Reth, Udp, WireError, XrcEth,
};

/// Maximum length of BTH and extended headers in bytes: an XRC atomic.
pub const MAX_TRANSPORT_LEN: usize = Bth::LEN + XrcEth::LEN + AtomicEth::LEN;

/// Maximum length in bytes from the tagged Ethernet header to the last extended header.
pub const MAX_HEADER_LEN: usize = Ethernet::MAX_LEN + Ipv6::LEN + Udp::LEN + MAX_TRANSPORT_LEN;

/// All headers of a packet.
///
/// `bth.opcode` determines which optional headers must be present: [`RoceHeader::emit`] refuses any
/// other set. Length and pad fields (`ip`, `bth.pad`) are set by `parse`; `emit` ignores them and
/// computes them from the payload length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RoceHeader {
    /// Ethernet header. `emit` ignores `ethertype` and derives it from `ip`.
    pub ethernet: Ethernet,
    /// IP header.
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
    /// Immediate data.
    pub imm: Option<u32>,
    /// R_Key to invalidate.
    pub ieth: Option<u32>,
    /// XRC header.
    pub xrceth: Option<XrcEth>,
    /// Flush header.
    pub feth: Option<Feth>,
}

/// A parsed packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed<'a> {
    /// All headers.
    pub header: RoceHeader,
    /// The payload without pad and iCRC. It can be non-empty even if the opcode has no payload.
    pub payload: &'a [u8],
    /// The iCRC of the packet (on the wire: `to_le_bytes`).
    pub icrc: u32,
    /// True if the iCRC is correct. [`parse_trusted`] does not verify it and always sets `true`.
    pub icrc_ok: bool,
}

/// Number of pad bytes for a payload of `payload_len` bytes.
#[inline]
pub const fn pad_len(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}

impl RoceHeader {
    /// Creates a header with the given values, no extended headers and no VLAN.
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

    /// Length in bytes of BTH and the extended headers of the opcode.
    #[inline]
    pub const fn transport_len(&self) -> usize {
        self.bth.opcode.info().transport_len
    }

    /// Length of all headers in bytes: the offset of the payload in the frame.
    #[inline]
    pub const fn header_len(&self) -> usize {
        self.ethernet.header_len() + self.ip.header_len() + Udp::LEN + self.transport_len()
    }

    /// Length in bytes of the frame with `payload_len` bytes of payload, including pad and iCRC,
    /// without Ethernet padding (to 60 bytes) and frame check sequence.
    #[inline]
    pub const fn frame_len(&self, payload_len: usize) -> usize {
        self.header_len()
            .saturating_add(payload_len)
            .saturating_add(pad_len(payload_len))
            .saturating_add(ICRC_LEN)
    }

    /// Length in bytes of UDP header, transport headers, payload, pad and iCRC.
    const fn udp_len(&self, payload_len: usize) -> usize {
        (Udp::LEN + self.transport_len() + ICRC_LEN)
            .saturating_add(payload_len)
            .saturating_add(pad_len(payload_len))
    }

    /// The IP header of the packet with `payload_len` bytes of payload: `ip` with length and protocol set.
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
    /// Sets EtherType, IP and UDP lengths, UDP port, IP protocol and pad count. `out` must hold at
    /// least the headers. The caller then writes the payload after them, and [`RoceHeader::seal`] writes pad
    /// and iCRC.
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
            // `set_payload_len` has checked this length against a field of the same width.
            len: u16::try_from(self.udp_len(payload_len)).unwrap_or(u16::MAX),
            checksum: 0,
        };
        let bth = Bth {
            pad: u8::try_from(pad_len(payload_len)).unwrap_or(0),
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

    /// Completes a frame that [`RoceHeader::emit`] has begun with this header, after its `payload_len` bytes of payload are
    /// written: zeroes the pad bytes and writes the iCRC.
    ///
    /// `frame` must be exactly [`RoceHeader::frame_len`] bytes long, without Ethernet padding.
    #[inline]
    pub fn seal(&self, payload_len: usize, frame: &mut [u8]) -> Result<(), WireError> {
        let declared = self.frame_len(payload_len);
        if declared != frame.len() {
            return Err(WireError::BadLength {
                declared,
                available: frame.len(),
            });
        }
        let l3 = tail_mut(frame, self.ethernet.header_len());
        seal_from(l3, pad_len(payload_len))
    }

    /// Writes the extended headers in the order of chapter 5.2.1: XRCETH or DETH, then FETH and RETH or ATOMICETH, AETH and
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
}

/// Parses a frame and verifies its iCRC, and its UDP checksum if that is not zero.
///
/// `frame` starts at the Ethernet header and may have trailing Ethernet padding. A frame without
/// UDP destination port 4791 gives [`WireError::NotRoce`] and belongs to the network stack: other
/// protocols, IP fragments, IPv6 extension headers, two VLAN tags, and frames too short or too
/// malformed to contain a UDP port. Any other error means a RoCEv2 packet to drop.
pub fn parse(frame: &[u8]) -> Result<Parsed<'_>, WireError> {
    dissect(frame, true)
}

/// Like [`parse`], but verifies neither iCRC nor UDP checksum: for frames that never left the process.
pub fn parse_trusted(frame: &[u8]) -> Result<Parsed<'_>, WireError> {
    dissect(frame, false)
}

/// True if a frame is unfragmented UDP to port 4791. Verifies nothing else.
pub fn is_roce(frame: &[u8]) -> bool {
    let Ok((ethernet, at)) = Ethernet::parse(frame) else {
        return false;
    };
    udp_dst_port(&ethernet, tail(frame, at)) == Some(ROCE_V2_PORT)
}

/// The destination port of an unfragmented UDP datagram. Skips IPv4 options; ignores checksums and
/// lengths.
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

/// Headers and byte ranges of a RoCEv2 frame.
struct Layout<'a, H> {
    ethernet: Ethernet,
    ip: H,
    udp: Udp,
    /// The UDP datagram.
    l4: &'a [u8],
    bth: Bth,
    /// The bytes that the iCRC covers: from the IP header to the pad.
    covered: &'a [u8],
    /// Extended headers.
    extended: &'a [u8],
    /// Payload and pad.
    padded: &'a [u8],
    icrc: u32,
}

impl<H> Layout<'_, H> {
    /// Lengths in bytes: of the part that the iCRC covers, of payload and pad together, and of the pad by the BTH.
    fn extent(&self) -> (usize, usize, usize) {
        let pad = usize::from(self.bth.pad);
        (self.covered.len(), self.padded.len(), pad)
    }
}

/// An IP header of one version. Code for each version is faster than an [`Ip`] between (see "Speed" of the crate).
trait IpHeader: Copy + Into<Ip> {
    fn parse(buf: &[u8]) -> Result<(Self, usize), WireError>;
}

impl IpHeader for Ipv4 {
    #[inline(always)]
    fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        Self::parse(buf)
    }
}

impl IpHeader for Ipv6 {
    #[inline(always)]
    fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        Self::parse(buf)
    }
}

/// Parses the headers of a frame with IP header `H`, up to the BTH, and checks that all lengths are consistent.
#[inline(always)]
fn layout<H: IpHeader>((ethernet, l3): (Ethernet, &[u8])) -> Result<Layout<'_, H>, WireError> {
    let (ip, ip_len) = H::parse(l3)?;
    let l3_len = ip_len + ip.into().payload_len();
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
    // Chapter 9.6.1: a packet with a transport version other than zero is dropped.
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
        l4,
        bth,
        covered,
        extended: tail(headers, bth_len),
        padded,
        icrc: u32::from_le_bytes(*icrc),
    })
}

/// Parses the Ethernet header; returns it and the rest. The caller parses an IP header of the version that the
/// EtherType names.
#[inline(always)]
fn begin(frame: &[u8]) -> Result<(Ethernet, &[u8]), WireError> {
    let (ethernet, at) = Ethernet::parse(frame).map_err(|_| WireError::NotRoce)?;
    let l3 = tail(frame, at);
    match udp_dst_port(&ethernet, l3) {
        Some(ROCE_V2_PORT) => Ok((ethernet, l3)),
        _ => Err(WireError::NotRoce),
    }
}

#[inline]
fn dissect(frame: &[u8], verify: bool) -> Result<Parsed<'_>, WireError> {
    let (ethernet, l3) = begin(frame)?;
    match ethernet.ethertype {
        EtherType::IPV4 => dissect_ip::<Ipv4>((ethernet, l3), verify),
        _ => dissect_ip::<Ipv6>((ethernet, l3), verify),
    }
}

#[inline]
fn dissect_ip<H: IpHeader>(
    frame: (Ethernet, &[u8]),
    verify: bool,
) -> Result<Parsed<'_>, WireError> {
    let l = layout::<H>(frame)?;
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
    let headers = l.bth.opcode.info().headers;
    let mut rest = l.extended;
    macro_rules! take {
        ($flag:ident, $header:ty) => {
            if headers.contains(Headers::$flag) {
                let (header, len) = <$header>::parse(rest)?;
                rest = tail(rest, len);
                Some(header)
            } else {
                None
            }
        };
    }
    // In the order of `emit_extended`.
    let xrceth = take!(XRCETH, XrcEth);
    let deth = take!(DETH, Deth);
    let feth = take!(FETH, Feth);
    let reth = take!(RETH, Reth);
    let atomic = take!(ATOMIC_ETH, AtomicEth);
    let aeth = take!(AETH, Aeth);
    let atomic_ack = take!(ATOMIC_ACK_ETH, AtomicAckEth);
    let imm = take!(IMM, ImmDt).map(|imm| imm.0);
    let ieth = take!(IETH, Ieth).map(|ieth| ieth.0);
    let _ = rest;
    if verify && !l.udp.is_intact(&l.ip.into(), l.l4) {
        return Err(WireError::BadUdpChecksum);
    }
    let icrc_ok = !verify || icrc(l.covered)? == l.icrc;
    // One value at the end: moving a header that was just written in small pieces waits for its stores.
    Ok(Parsed {
        header: RoceHeader {
            ethernet: l.ethernet,
            ip: l.ip.into(),
            udp_src_port: l.udp.src_port,
            bth: l.bth,
            deth,
            reth,
            aeth,
            atomic,
            atomic_ack,
            imm,
            ieth,
            xrceth,
            feth,
        },
        payload,
        icrc: l.icrc,
        icrc_ok,
    })
}

/// Completes a frame after its headers and payload are written: zeroes the pad bytes and writes the
/// iCRC into the last four bytes. [`RoceHeader::seal`] does the same where the headers are known.
///
/// `frame` must be exactly [`RoceHeader::frame_len`] bytes long, without Ethernet padding.
pub fn seal(frame: &mut [u8]) -> Result<(), WireError> {
    let (ethernet, l3) = begin(frame)?;
    let (covered, padded, pad) = match ethernet.ethertype {
        EtherType::IPV4 => layout::<Ipv4>((ethernet, l3))?.extent(),
        _ => layout::<Ipv6>((ethernet, l3))?.extent(),
    };
    if pad > padded {
        return Err(WireError::BadLength {
            declared: pad,
            available: padded,
        });
    }
    let l3_at = ethernet.header_len();
    let end = l3_at + covered + ICRC_LEN;
    if end != frame.len() {
        return Err(WireError::BadLength {
            declared: end,
            available: frame.len(),
        });
    }
    seal_from(tail_mut(frame, l3_at), pad)
}

/// Zeroes the pad bytes of a packet from its IP header on, and writes its iCRC.
#[inline]
fn seal_from(l3: &mut [u8], pad: usize) -> Result<(), WireError> {
    let have = l3.len();
    let Some((covered, icrc_out)) = l3.split_last_chunk_mut::<ICRC_LEN>() else {
        return Err(WireError::Truncated {
            need: ICRC_LEN,
            have,
        });
    };
    // Zero the pad: a reused buffer must not disclose its previous content.
    let payload_end = covered.len().saturating_sub(pad);
    if let Some(bytes) = covered.get_mut(payload_end..) {
        bytes.fill(0);
    }
    *icrc_out = icrc(covered)?.to_le_bytes();
    Ok(())
}
