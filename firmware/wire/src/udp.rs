//! UDP header (RFC 768) as RoCEv2 uses it (IBTA volume 1, annex A17.3).
//!
//! RoCEv2 senders write checksum zero over IPv4 and, like Linux `rdma_rxe`, over IPv6 too (RFC 6935 and RFC
//! 6936 allow this for encapsulations with their own check, here the iCRC). Some senders write a checksum.
//! [`Udp::parse`] accepts any value; [`Udp::is_intact`] verifies it.
//!
//! # Panics
//!
//! Nothing here panics, whatever the bytes or the field values are.

use crate::cursor::{Reader, Writer};
use crate::ip::PROTOCOL_UDP;
use crate::{Ip, WireError};

/// Destination port of RoCEv2 (IANA `roce`).
pub const ROCE_V2_PORT: u16 = 4791;

/// A UDP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Udp {
    /// Source port; RoCEv2 uses it as flow entropy only.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Length of header and payload in bytes.
    pub len: u16,
    /// Checksum on the wire; 0 means no checksum.
    pub checksum: u16,
}

impl Udp {
    /// Length of the header in bytes.
    pub const LEN: usize = 8;

    /// Reads a header; returns it and its length. The caller checks that `len`
    /// fits the enclosing IP packet.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        let mut r = Reader::new(buf, Self::LEN)?;
        let udp = Self {
            src_port: r.u16()?,
            dst_port: r.u16()?,
            len: r.u16()?,
            checksum: r.u16()?,
        };
        if usize::from(udp.len) < Self::LEN {
            let declared = udp.len.into();
            return Err(WireError::BadLength {
                declared,
                available: Self::LEN,
            });
        }
        Ok((udp, Self::LEN))
    }

    /// True if the checksum is zero (none), or right for the datagram `l4`, this header included, in an IP packet
    /// with header `ip`.
    #[inline]
    pub fn is_intact(&self, ip: &Ip, l4: &[u8]) -> bool {
        self.checksum == 0 || is_right(ip, l4)
    }

    /// Writes the header; returns its length.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let mut w = Writer::new(out, Self::LEN)?;
        w.u16(self.src_port)?;
        w.u16(self.dst_port)?;
        w.u16(self.len)?;
        w.u16(self.checksum)?;
        Ok(Self::LEN)
    }
}

/// True if the checksum of a UDP datagram is right.
#[cold]
fn is_right(ip: &Ip, l4: &[u8]) -> bool {
    let mut sum = ip.pseudo_header(PROTOCOL_UDP, l4.len());
    sum.add(l4);
    sum.is_right()
}

/// The 20-bit flow label of a queue pair whose address vector has none: the same at both ends, because
/// it is a hash of the product of the two QP numbers (Linux `rdma_calc_flow_label`).
pub const fn flow_label_for_qpns(local: u32, remote: u32) -> u32 {
    let mut mixed = (local as u64).wrapping_mul(remote as u64);
    mixed ^= mixed >> 20;
    mixed ^= mixed >> 40;
    (mixed & 0xf_ffff) as u32
}

/// The source port of packets from one queue pair to another: that of the flow label, or of the QP numbers if
/// the flow label is 0 (Linux `rdma_get_udp_sport`).
pub const fn src_port(flow_label: u32, local: u32, remote: u32) -> u16 {
    match flow_label {
        0 => src_port_for_flow_label(flow_label_for_qpns(local, remote)),
        _ => src_port_for_flow_label(flow_label),
    }
}

/// The source port for a 20-bit flow label, in 0xc000..=0xffff: the hash recommended for RoCEv2 (annex
/// A17, as in Linux `rdma_flow_label_to_udp_sport`).
pub const fn src_port_for_flow_label(flow_label: u32) -> u16 {
    let low = flow_label & 0x3fff;
    let high = (flow_label >> 14) & 0x3f;
    ((low ^ high) & 0x3fff) as u16 | 0xc000
}
