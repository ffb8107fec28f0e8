//! Paths of QPs and address handles: the headers in front of their payloads.

use faultline_abi::Status;
use faultline_abi::qp::AddressVector;
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::ethernet::VlanTag;
use faultline_wire::ip::Ip;
use faultline_wire::opcode::Opcode;
use faultline_wire::packet::RoceHeader;
use faultline_wire::{Gid, MacAddr};

/// Hop limit if the address vector has none.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// An entry of the GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GidEntry {
    /// The GID; IPv4 addresses are mapped.
    pub gid: Gid,
    /// Source MAC address of packets sent from it.
    pub mac: MacAddr,
    /// VLAN id.
    pub vlan: Option<u16>,
}

/// A resolved address vector.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    dst: MacAddr,
    source: GidEntry,
    ip: Ip,
    sl: u8,
    flow: u32,
    udp_src_port: u16,
}

impl Path {
    /// Resolves an address vector. `flow` selects the UDP source port (IBTA A17.9.2 leaves the choice to us).
    pub(crate) fn resolve(
        av: &AddressVector,
        gids: &[Option<GidEntry>],
        flow: u32,
    ) -> Result<Self, Status> {
        if av.reserved != [0; 8] {
            return Err(Status::ReservedNotZero);
        }
        if av.port != 1 || av.sl > 15 || av.flow_label.get() >> 20 != 0 {
            return Err(Status::BadAttribute);
        }
        let index = usize::from(av.sgid_index.get());
        let source = gids.get(index).copied().flatten().ok_or(Status::BadGid)?;
        let dgid = Gid(av.dgid);
        if dgid == Gid::ZERO || dgid.is_ipv4_mapped() != source.gid.is_ipv4_mapped() {
            return Err(Status::BadGid);
        }
        let hop_limit = if av.hop_limit == 0 {
            DEFAULT_HOP_LIMIT
        } else {
            av.hop_limit
        };
        Ok(Self {
            dst: MacAddr(av.dmac),
            source,
            ip: Ip::from_gids(
                source.gid,
                dgid,
                av.traffic_class,
                av.flow_label.get(),
                hop_limit,
            ),
            sl: av.sl,
            flow,
            udp_src_port: udp_port(flow),
        })
    }

    /// Sets the UDP source port. Zero: the port that follows from the flow.
    pub(crate) fn set_udp_port(&mut self, port: u16) {
        self.udp_src_port = match port {
            0 => udp_port(self.flow),
            port => port,
        };
    }

    /// Headers of a packet on this path; extension headers are left to the caller.
    #[inline]
    pub(crate) fn header(&self, opcode: Opcode, dest_qp: u32, psn: Psn) -> RoceHeader {
        let bth = Bth::new(opcode, dest_qp, psn);
        let mut header = RoceHeader::new(self.dst, self.source.mac, self.ip, bth);
        header.udp_src_port = self.udp_src_port;
        header.ethernet.vlan = self.source.vlan.map(|vid| VlanTag {
            pcp: self.sl & 7,
            dei: false,
            vid,
        });
        header
    }

    /// GID of the far end.
    pub(crate) fn dgid(&self) -> Gid {
        self.ip.dst_gid()
    }

    /// GID of this end.
    pub(crate) fn sgid(&self) -> Gid {
        self.source.gid
    }
}

/// A port from the dynamic range for a flow.
fn udp_port(flow: u32) -> u16 {
    let mixed = flow.wrapping_mul(0x9e37_79b1) >> 16;
    0xc000 | (mixed as u16 & 0x3fff)
}
