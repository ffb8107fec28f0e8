//! Paths of QPs and address handles: the headers in front of their payloads.

use faultline_abi::Status;
use faultline_abi::qp::AddressVector;
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::ethernet::VlanTag;
use faultline_wire::ip::Ip;
use faultline_wire::opcode::Opcode;
use faultline_wire::packet::RoceHeader;
use faultline_wire::priority;
use faultline_wire::{Gid, MacAddr, udp};

use crate::gid_table::{GidEntry, GidTable, Source};

/// ECN bits of a sender that reacts to congestion (RFC 3168).
const ECT_0: u8 = 2;
/// Hop limit if the address vector has none.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// A resolved address vector.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    dst: MacAddr,
    /// The entry of the GID table when the path was set.
    entry: GidEntry,
    source: Source,
    ip: Ip,
    sl: u8,
    /// Kept for IPv4 as well, although its packets do not carry it.
    flow_label: u32,
    udp_src_port: u16,
    /// MigReq of its packets.
    mig_req: bool,
}

impl Path {
    /// Resolves an address vector. `mig_req` is the bit MigReq of the packets.
    pub(crate) fn resolve(
        av: &AddressVector,
        gids: &GidTable,
        mig_req: bool,
    ) -> Result<Self, Status> {
        if av.reserved != [0; 8] {
            return Err(Status::ReservedNotZero);
        }
        if av.port != 1 || av.sl > 15 || av.flow_label.get() >> 20 != 0 {
            return Err(Status::BadAttribute);
        }
        // Software has not resolved the address, so packets would reach no host.
        if MacAddr(av.dmac) == MacAddr([0; 6]) {
            return Err(Status::BadAttribute);
        }
        let (entry, source) = gids.get(av.sgid_index.get()).ok_or(Status::BadGid)?;
        let dgid = Gid(av.dgid);
        if dgid == Gid::ZERO || dgid.is_ipv4_mapped() != entry.gid.is_ipv4_mapped() {
            return Err(Status::BadGid);
        }
        let hop_limit = if av.hop_limit == 0 {
            DEFAULT_HOP_LIMIT
        } else {
            av.hop_limit
        };
        Ok(Self {
            dst: MacAddr(av.dmac),
            entry,
            source,
            ip: Ip::from_gids(
                entry.gid,
                dgid,
                av.traffic_class,
                av.flow_label.get(),
                hop_limit,
            ),
            sl: av.sl,
            flow_label: av.flow_label.get(),
            udp_src_port: udp::src_port(av.flow_label.get(), 0, 0),
            mig_req,
        })
    }

    /// Sets the UDP source port of packets from queue pair `local` to queue pair `remote`. Zero: the port that follows from
    /// the flow label or from these numbers.
    pub(crate) fn set_udp_port(&mut self, port: u16, local: u32, remote: u32) {
        self.udp_src_port = match port {
            0 => udp::src_port(self.flow_label, local, remote),
            port => port,
        };
    }

    /// Headers of a datagram from queue pair `src_qp`.
    #[inline]
    pub(crate) fn datagram_header(
        &self,
        opcode: Opcode,
        (src_qp, dest_qp): (u32, u32),
        psn: Psn,
    ) -> RoceHeader {
        let mut header = self.header(opcode, dest_qp, psn);
        header.udp_src_port = udp::src_port(self.flow_label, src_qp, dest_qp);
        header
    }

    /// Headers of a packet on this path; extension headers are left to the caller.
    #[inline]
    pub(crate) fn header(&self, opcode: Opcode, dest_qp: u32, psn: Psn) -> RoceHeader {
        let bth = Bth {
            migration: self.mig_req,
            ..Bth::new(opcode, dest_qp, psn)
        };
        let mut header = RoceHeader::new(self.dst, self.entry.mac, self.ip, bth);
        header.udp_src_port = self.udp_src_port;
        header.ethernet.vlan = self.entry.vlan.map(|vid| VlanTag {
            pcp: self.sl & 7,
            dei: false,
            vid,
        });
        header
    }

    /// Marks its packets as those of a sender that reacts to congestion (ECT(0)), unless the address vector has other ECN bits.
    pub(crate) fn set_ecn_capable(&mut self) {
        if self.ip.ecn() == 0 {
            self.ip.set_ecn(ECT_0);
        }
    }

    /// Headers of a congestion notification packet for queue pair `dest_qp` (annex A17.9.3). It is not marked itself.
    pub(crate) fn congestion_notification(&self, dest_qp: u32, dscp: u8) -> RoceHeader {
        let mut header = self.header(Opcode::Cnp, dest_qp, Psn::new(0));
        header.bth.becn = true;
        header.ip.set_traffic_class(dscp << 2);
        header
    }

    /// Priority of its packets.
    #[inline]
    pub(crate) fn priority(&self) -> u8 {
        self.priority_of(self.ip.traffic_class())
    }

    /// Priority of its congestion notification packets.
    pub(crate) fn priority_of_notification(&self, dscp: u8) -> u8 {
        self.priority_of(dscp << 2)
    }

    /// Priority of a packet with this traffic class.
    fn priority_of(&self, class: u8) -> u8 {
        match self.entry.vlan {
            Some(_) => self.sl & 7,
            None => priority::of_traffic_class(class),
        }
    }

    /// GID of the far end.
    pub(crate) fn dgid(&self) -> Gid {
        self.ip.dst_gid()
    }

    /// GID of this end.
    pub(crate) fn sgid(&self) -> Gid {
        self.entry.gid
    }

    /// True if a packet with this IP header is from the far end to this one.
    #[inline]
    pub(crate) fn is_way_back(&self, ip: &Ip) -> bool {
        match (&self.ip, ip) {
            (Ip::V4(own), Ip::V4(other)) => own.dst == other.src && own.src == other.dst,
            (Ip::V6(own), Ip::V6(other)) => own.dst == other.src && own.src == other.dst,
            (Ip::V4(_), Ip::V6(_)) | (Ip::V6(_), Ip::V4(_)) => false,
        }
    }

    /// MAC address of the far end.
    #[inline]
    pub(crate) fn dmac(&self) -> MacAddr {
        self.dst
    }

    /// The entry of the GID table from which its packets are sent.
    #[inline]
    pub(crate) fn source(&self) -> Source {
        self.source
    }
}
