//! Addresses of a connection, and the headers of its segments.

use faultline_abi::iwarp::ConnectionPath;
use faultline_abi::{Status, U16};
use faultline_tcp::{Config as TcpConfig, Nanos as TcpNanos, Transmit, Tuple};
use faultline_wire::ip::PROTOCOL_TCP;
use faultline_wire::{
    EtherType, Ethernet, Gid, Ip, Ipv4, Ipv6, MacAddr, Tcp, VlanTag, WireError, priority,
};

use super::arrived::Arrived;
use crate::frame::{FrameKind, TxFrame};
use crate::gid_table::{GidTable, MAX_VLAN, NO_VLAN, Source};
use crate::headers::{Head, MAX_HEADERS};
use crate::number::len16;

/// Smallest MTU of a path: a datagram of this length reaches each IPv4 host (RFC 1122 section 3.3.2). For IPv6 too, although its links have 1280.
const MIN_MTU: u16 = 576;
/// Hop limit if the driver gives none.
const DEFAULT_HOP_LIMIT: u8 = 64;
/// ECN bits of a segment of a sender that reacts to congestion (RFC 3168).
const ECT_0: u8 = 2;
/// Offset of the checksum in a TCP header.
const CHECKSUM: usize = 16;

/// The way of a connection from this NIC to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamPath {
    /// Both ends.
    pub tuple: Tuple,
    /// The entry of the GID table with the own address.
    pub source: Source,
    smac: MacAddr,
    dmac: MacAddr,
    /// Another one, from which the last segment of the peer has come.
    next_dmac: Option<MacAddr>,
    vlan: Option<VlanTag>,
    /// Traffic class without ECN bits.
    class: u8,
    hop_limit: u8,
    /// Longest IP packet in octets.
    mtu: u16,
}

/// An address that a connection can have, or [`Status::BadAddress`].
fn unicast(address: [u8; 16]) -> Result<Gid, Status> {
    let gid = Gid(address);
    let is_none = gid == Gid::ZERO || gid.to_ipv4() == Some([0; 4]);
    match is_none || gid.is_multicast() || gid.to_ipv4() == Some([0xff; 4]) {
        true => Err(Status::BadAddress),
        false => Ok(gid),
    }
}

impl StreamPath {
    /// The way that CONNECT names. Its own address must be in the table. `mtu` is that of the interface.
    pub(crate) fn parse(path: &ConnectionPath, gids: &GidTable, mtu: u16) -> Result<Self, Status> {
        if path.reserved0 != 0 || path.reserved1 != [0; 6] {
            return Err(Status::ReservedNotZero);
        }
        let (local, remote) = (unicast(path.local_ip)?, unicast(path.remote_ip)?);
        let (local_port, remote_port) = (path.local_port.get(), path.remote_port.get());
        let dmac = MacAddr(path.dmac);
        let same_family = local.is_ipv4_mapped() == remote.is_ipv4_mapped();
        if !same_family || local_port == 0 || remote_port == 0 {
            return Err(Status::BadAddress);
        }
        let vid = path.vlan.get();
        let bad_mtu = path.mtu.get() != 0 && path.mtu.get() < MIN_MTU;
        let bad_vlan = vid != NO_VLAN && vid > MAX_VLAN;
        if dmac == MacAddr([0; 6]) || dmac.is_multicast() || bad_vlan || bad_mtu || path.sl > 7 {
            return Err(Status::BadAttribute);
        }
        let tagged = (vid != NO_VLAN && vid != 0).then_some(vid);
        let (entry, source) = gids.find(local, tagged).ok_or(Status::BadAddress)?;
        Ok(Self {
            source,
            smac: entry.mac,
            tuple: Tuple {
                local,
                local_port,
                remote,
                remote_port,
            },
            dmac,
            next_dmac: None,
            vlan: tagged.map(|vid| VlanTag {
                pcp: path.sl,
                dei: false,
                vid,
            }),
            class: path.traffic_class & !3,
            hop_limit: match path.hop_limit {
                0 => DEFAULT_HOP_LIMIT,
                limit => limit,
            },
            mtu: match path.mtu.get() {
                0 => mtu,
                own => own.min(mtu),
            },
        })
    }

    /// The way back to the sender of a segment. `source` is the entry with its destination, `mtu` that of the interface. `None`: no host can
    /// have these addresses (RFC 1122 section 4.2.3.10). From its own address the NIC takes only segments that it may have sent itself, to
    /// another port.
    pub(crate) fn back(arrived: &Arrived, source: Source, mtu: u16) -> Option<Self> {
        let (tuple, smac) = (&arrived.tuple, arrived.ethernet.src);
        let remote = unicast(tuple.remote.0).ok()?;
        if smac.is_multicast() || smac == MacAddr([0; 6]) {
            return None;
        }
        let is_own = smac == arrived.ethernet.dst && tuple.remote_port != tuple.local_port;
        if remote == tuple.local && !is_own {
            return None;
        }
        Some(Self {
            tuple: arrived.tuple,
            source,
            smac: arrived.ethernet.dst,
            dmac: arrived.ethernet.src,
            next_dmac: None,
            vlan: arrived.ethernet.vlan,
            class: arrived.class & !3,
            hop_limit: DEFAULT_HOP_LIMIT,
            mtu,
        })
    }

    /// The same for the driver.
    pub(crate) fn to_abi(self) -> ConnectionPath {
        ConnectionPath {
            local_ip: self.tuple.local.0,
            remote_ip: self.tuple.remote.0,
            local_port: U16::new(self.tuple.local_port),
            remote_port: U16::new(self.tuple.remote_port),
            dmac: self.dmac.0,
            vlan: U16::new(self.vlan.map_or(NO_VLAN, |tag| tag.vid)),
            sl: self.vlan.map_or(0, |tag| tag.pcp),
            traffic_class: self.class,
            hop_limit: self.hop_limit,
            reserved0: 0,
            mtu: U16::new(self.mtu),
            reserved1: [0; 6],
        }
    }

    /// Parameters of the connection.
    pub(crate) fn tcp_config(&self) -> TcpConfig {
        TcpConfig {
            mss: self.mss(),
            // Work requests complete by acknowledgments, which must not wait.
            delayed_ack: TcpNanos(0),
            ..TcpConfig::default()
        }
    }

    /// Takes over the MAC address of segments that the peer has sent, as far as their sequence numbers tell. The peer may have another one
    /// since the connection was opened: another host has its address now, or another router leads to it. One segment is not enough, because
    /// no checksum of the NIC covers its address. The first one counts again when the peer sends it again.
    pub(super) fn follow_peer(&mut self, mac: MacAddr) {
        if mac == self.dmac || mac.is_multicast() || mac == MacAddr([0; 6]) {
            self.next_dmac = None;
        } else if self.next_dmac == Some(mac) {
            self.dmac = mac;
            self.next_dmac = None;
        } else {
            self.next_dmac = Some(mac);
        }
    }

    /// Maximum segment size of the connection (RFC 6691).
    pub(super) fn mss(&self) -> u16 {
        let ip = match self.tuple.local.is_ipv4_mapped() {
            true => Ipv4::LEN,
            false => Ipv6::LEN,
        };
        self.mtu.saturating_sub(len16(ip.saturating_add(Tcp::LEN)))
    }

    /// Priority of its frames.
    pub(crate) fn priority(&self) -> u8 {
        match self.vlan {
            Some(tag) => tag.pcp,
            None => priority::of_traffic_class(self.class),
        }
    }

    /// Takes a change of the interface over: its address may have another MAC address, and its packets may be smaller. Returns the maximum
    /// segment size if it has changed.
    pub(crate) fn follow(&mut self, gids: &GidTable, mtu: u16) -> Option<u16> {
        let vlan = self.vlan.map(|tag| tag.vid);
        if !gids.is_current(self.source)
            && let Some((entry, source)) = gids.find(self.tuple.local, vlan)
        {
            (self.source, self.smac) = (source, entry.mac);
        }
        let is_smaller = mtu < self.mtu;
        self.mtu = self.mtu.min(mtu);
        is_smaller.then(|| self.mss())
    }

    /// True if the frame came in the VLAN of the connection.
    pub(crate) fn is_way_back(&self, ethernet: &Ethernet) -> bool {
        let vid = |tag: Option<VlanTag>| tag.map(|tag| tag.vid);
        vid(self.vlan) == vid(ethernet.vlan)
    }

    /// Replaces `out` by a segment with `data`, as octets of a frame with right checksums.
    pub(crate) fn write(&self, transmit: &Transmit, data: &[u8], out: &mut Vec<u8>) {
        let ethernet = Ethernet {
            dst: self.dmac,
            src: self.smac,
            vlan: self.vlan,
            ethertype: match self.tuple.local.is_ipv4_mapped() {
                true => EtherType::IPV4,
                false => EtherType::IPV6,
            },
        };
        let ecn = if transmit.ecn_capable { ECT_0 } else { 0 };
        let class = self.class | ecn;
        let Tuple { local, remote, .. } = self.tuple;
        let mut ip = Ip::from_gids(local, remote, class, 0, self.hop_limit);
        match &mut ip {
            Ip::V4(ip) => ip.protocol = PROTOCOL_TCP,
            Ip::V6(ip) => ip.next_header = PROTOCOL_TCP,
        }
        let tcp_len = transmit.header.header_len();
        // A segment is not longer than the MTU.
        let _ = ip.set_payload_len(tcp_len.saturating_add(data.len()));
        let at_ip = ethernet.header_len();
        let at_tcp = at_ip.saturating_add(ip.header_len());
        let at_data = at_tcp.saturating_add(tcp_len);
        out.clear();
        out.resize(at_data, 0);
        // The buffer has room for all headers.
        let put = |out: &mut Vec<u8>, at: usize, emit: &dyn Fn(&mut [u8]) -> Emitted| {
            let _ = out.get_mut(at..).map(emit);
        };
        put(out, 0, &|part| ethernet.emit(part));
        put(out, at_ip, &|part| ip.emit(part));
        put(out, at_tcp, &|part| transmit.header.emit(part));
        let header = out.get(at_tcp..).unwrap_or_default();
        let sum = Tcp::checksum(&ip, header, std::iter::once(data));
        let at = at_tcp.saturating_add(CHECKSUM);
        if let Some(field) = out.get_mut(at..at.saturating_add(2)) {
            field.copy_from_slice(&sum.to_be_bytes());
        }
        out.extend_from_slice(data);
    }
}

/// Result of writing a header.
type Emitted = Result<usize, WireError>;

/// Makes `frame` one with these octets, whose checksums are right.
pub(crate) fn set_octets(frame: &mut TxFrame, octets: &[u8]) {
    frame.clear_payload();
    let mac = |at: usize| octets.get(at..).and_then(|rest| rest.first_chunk::<6>());
    let head = octets.get(..MAX_HEADERS).unwrap_or(octets);
    frame.payload_len = octets.len().saturating_sub(head.len());
    frame.kind = FrameKind::Raw {
        dst: MacAddr(mac(0).copied().unwrap_or_default()),
        src: MacAddr(mac(6).copied().unwrap_or_default()),
        head: Head::from_slice(head),
        checked: true,
    };
    frame.own.extend_from_slice(octets);
}
