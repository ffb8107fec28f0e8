//! TCP segments that arrive, as far as their headers tell.

use faultline_tcp::{Segment, Tuple};
use faultline_wire::ip::{CONGESTION_EXPERIENCED, PROTOCOL_TCP};
use faultline_wire::{EtherType, Ethernet, Ip, Tcp};

use crate::dma::Dma;
use crate::payload::Payload;

/// The headers of a TCP segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    /// Ethernet header.
    pub ethernet: Ethernet,
    ip: Ip,
    /// Both ends, as this NIC sees them: its address is the destination.
    pub tuple: Tuple,
    /// Traffic class.
    pub class: u8,
    /// Header, and number of octets of data.
    pub segment: Segment,
    /// Offset of the TCP header in the frame.
    at: usize,
    /// Offset of the data in the frame.
    at_data: usize,
}

impl Arrived {
    /// Parses a frame; `head` are its first octets, `len` is its length. `None`: it is no TCP segment, or a malformed one.
    pub(crate) fn parse(head: &[u8], len: usize) -> Option<Self> {
        let (mut ethernet, at_ip) = Ethernet::parse(head).ok()?;
        // A priority without a VLAN (IEEE 802.1Q, 9.6).
        ethernet.vlan = ethernet.vlan.filter(|tag| tag.vid != 0);
        if !matches!(ethernet.ethertype, EtherType::IPV4 | EtherType::IPV6) {
            return None;
        }
        let (ip, ip_len) = Ip::parse_start(head.get(at_ip..)?, len.checked_sub(at_ip)?).ok()?;
        if ip.protocol() != PROTOCOL_TCP {
            return None;
        }
        let at = at_ip.checked_add(ip_len)?;
        let (header, tcp_len) = Tcp::parse(head.get(at..)?).ok()?;
        let at_data = at.checked_add(tcp_len)?;
        let data = ip.payload_len().checked_sub(tcp_len)?;
        // A frame may be padded, but not cut.
        if at_data.checked_add(data)? > len {
            return None;
        }
        Some(Self {
            ethernet,
            ip,
            tuple: Tuple {
                local: ip.dst_gid(),
                local_port: header.dst_port,
                remote: ip.src_gid(),
                remote_port: header.src_port,
            },
            class: ip.traffic_class(),
            segment: Segment {
                header,
                len: u32::try_from(data).ok()?,
                congestion_experienced: ip.ecn() == CONGESTION_EXPERIENCED,
            },
            at,
            at_data,
        })
    }

    /// The data of the segment in its frame.
    pub(crate) fn data<'a, M: Dma>(&self, frame: &Payload<'a, M>) -> Payload<'a, M> {
        frame.part(self.at_data, self.segment.len as usize)
    }

    /// True if the checksum of the segment is right. False if the frame cannot be read.
    pub(crate) fn is_intact<M: Dma>(&self, frame: &Payload<'_, M>) -> bool {
        let segment = frame.part(self.at, self.ip.payload_len());
        match segment {
            Payload::Bytes(octets) => Tcp::is_intact(&self.ip, octets),
            Payload::Guest { .. } => segment
                .to_vec()
                .is_ok_and(|octets| Tcp::is_intact(&self.ip, &octets)),
        }
    }
}
