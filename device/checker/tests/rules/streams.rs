//! Good streams of packets as in a capture from an unknown network: each opcode of each service, between two unknown adapters.

use Opcode::*;
use faultline_wire::packet::{RoceHeader, seal};
use faultline_wire::{
    GSI_QKEY, GSI_QPN, Gid, Ip, MULTICAST_QPN, MacAddr, NakCode, Opcode, Psn, Service, Syndrome,
    VlanTag, XrcEth,
};

use crate::talk::{MTU, header};

/// Octets of a management datagram.
const MAD_LEN: usize = 256;

/// A packet of a stream.
pub(crate) struct Sent {
    pub(crate) header: RoceHeader,
    pub(crate) frame: Vec<u8>,
}

/// Packets in the order in which they pass.
pub(crate) struct Stream {
    pub(crate) name: &'static str,
    pub(crate) packets: Vec<Sent>,
    /// Number of packets before the last ones, which reveal errors in earlier packets.
    pub(crate) judged: usize,
    service: Service,
    is_ipv6: bool,
    /// PSN of the next request.
    psn: u32,
    /// Messages that are completed.
    msn: u32,
}

/// Addresses of IPv6.
fn gid(adapter: usize) -> Gid {
    let last = u8::try_from(adapter).unwrap() + 1;
    Gid::link_local(MacAddr([2, 0, 0, 0, 0, last]))
}

/// A group, over either version of IP.
fn group(is_ipv6: bool) -> Gid {
    match is_ipv6 {
        true => Gid([0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]),
        false => Gid::from_ipv4([239, 1, 2, 3]),
    }
}

impl Stream {
    fn new(name: &'static str, service: Service, is_ipv6: bool) -> Self {
        Self {
            name,
            packets: Vec::new(),
            judged: 0,
            service,
            is_ipv6,
            psn: 0x00ff_fff0,
            msn: 0,
        }
    }

    /// All streams.
    pub(crate) fn all() -> Vec<Self> {
        let mut connected = Self::new("RC over IPv4 in a VLAN", Service::Rc, false);
        connected.reliable();
        connected.end();
        let mut extended = Self::new("XRC over IPv6", Service::Xrc, true);
        extended.reliable();
        extended.end();
        let mut unreliable = Self::new("UC over IPv4", Service::Uc, false);
        unreliable.messages();
        unreliable.end();
        let mut streams = vec![connected, extended, unreliable];
        for (name, is_ipv6) in [("UD over IPv4", false), ("UD over IPv6", true)] {
            let mut datagrams = Self::new(name, Service::Ud, is_ipv6);
            datagrams.datagrams();
            datagrams.judged = datagrams.packets.len();
            streams.push(datagrams);
        }
        streams
    }

    /// True if a packet is the first one of its side. A CNP is of no side.
    pub(crate) fn is_first(&self, index: usize) -> bool {
        let source = |sent: &Sent| sent.header.ip.src_gid();
        let own = source(&self.packets[index]);
        self.packets[..index].iter().all(|sent| source(sent) != own)
    }

    /// True if a request is sent more than once.
    pub(crate) fn is_repeated(&self, index: usize) -> bool {
        let own = &self.packets[index].header.bth;
        let same = |sent: &&Sent| {
            let bth = &sent.header.bth;
            bth.opcode.is_request() && (bth.dest_qp, bth.psn) == (own.dest_qp, own.psn)
        };
        self.packets.iter().filter(same).count() > 1
    }

    /// The opcode of this service for one of RC.
    fn of(&self, opcode: Opcode) -> Opcode {
        let base = match self.service {
            Service::Uc => 0x20,
            Service::Xrc => 0xa0,
            _ => 0,
        };
        Opcode::from_u8(base | opcode.to_u8()).unwrap()
    }

    fn header(&self, from: usize, opcode: Opcode, psn: u32) -> RoceHeader {
        let mut header = header(from, opcode, psn);
        if self.is_ipv6 {
            header.ip = Ip::from_gids(gid(from), gid(1 - from), 0, 0, 64);
        }
        if self.service == Service::Rc {
            header.ethernet.vlan = Some(VlanTag {
                pcp: 3,
                dei: false,
                vid: 100,
            });
        }
        header.xrceth = opcode
            .has(faultline_wire::Headers::XRCETH)
            .then_some(XrcEth { srqn: 0x77 });
        header
    }

    fn push(&mut self, header: RoceHeader, payload: usize) {
        let mut frame = vec![0; header.frame_len(payload)];
        let at = header.emit(payload, &mut frame).unwrap();
        // No octet is zero, as pad octets are, except in a CNP.
        let value = if header.bth.opcode == Cnp { 0 } else { 0x5a };
        frame[at..at + payload].fill(value);
        seal(&mut frame).unwrap();
        self.packets.push(Sent { header, frame });
    }

    fn step(&mut self, count: u32) {
        self.psn = Psn::new(self.psn).add(count).get();
    }

    /// A request packet with this payload. `length`: that of its RETH.
    fn request(&mut self, opcode: Opcode, payload: usize, length: u32) {
        let opcode = self.of(opcode);
        let mut header = self.header(0, opcode, self.psn);
        let is_reliable = self.service != Service::Uc;
        header.bth.ack_req = is_reliable && opcode.is_last_or_only();
        if let Some(reth) = &mut header.reth {
            reth.len = length;
        }
        self.push(header, payload);
    }

    /// A message of one or more packets, and its acknowledgement.
    fn message(&mut self, packets: &[(Opcode, usize)]) {
        let length: usize = packets.iter().map(|(_, payload)| payload).sum();
        for (opcode, payload) in packets {
            self.request(*opcode, *payload, u32::try_from(length).unwrap());
            self.step(1);
        }
        self.msn += 1;
        if self.service != Service::Uc {
            self.respond(
                RcAcknowledge,
                Psn::new(self.psn).prev().get(),
                Syndrome::ACK,
                0,
            );
        }
    }

    fn respond(&mut self, opcode: Opcode, psn: u32, syndrome: Syndrome, payload: usize) {
        let opcode = self.of(opcode);
        let mut header = self.header(1, opcode, psn);
        let response = crate::talk::response(opcode, psn, syndrome, self.msn);
        (header.aeth, header.atomic_ack) = (response.aeth, response.atomic_ack);
        self.push(header, payload);
    }

    /// Two messages that reveal a change in earlier packets.
    fn end(&mut self) {
        self.judged = self.packets.len();
        self.message(&[(RcSendOnly, 100)]);
        self.message(&[(RcSendOnly, 100)]);
    }

    /// SENDs and WRITEs.
    fn messages(&mut self) {
        let mtu = MTU as usize;
        self.message(&[(RcSendFirst, mtu), (RcSendMiddle, mtu), (RcSendLast, 99)]);
        self.message(&[(RcSendFirst, mtu), (RcSendLastWithImmediate, mtu)]);
        self.message(&[(RcSendOnly, 7)]);
        self.message(&[(RcSendOnlyWithImmediate, 0)]);
        self.message(&[(RcWriteFirst, mtu), (RcWriteMiddle, mtu), (RcWriteLast, 2)]);
        self.message(&[(RcWriteFirst, mtu), (RcWriteLastWithImmediate, 3)]);
        self.message(&[(RcWriteOnly, 5)]);
        self.message(&[(RcWriteOnlyWithImmediate, 8)]);
    }

    /// READs, atomics, and packets after lost or refused ones.
    fn reliable(&mut self) {
        let mtu = MTU as usize;
        self.messages();
        self.message(&[(RcSendFirst, mtu), (RcSendLastWithInvalidate, 1)]);
        self.message(&[(RcSendOnlyWithInvalidate, 40)]);
        // A READ in three packets.
        let first = self.psn;
        self.request(RcReadRequest, 0, 2 * MTU + 9);
        self.step(3);
        self.msn += 1;
        for (opcode, payload) in [
            (RcReadResponseFirst, mtu),
            (RcReadResponseMiddle, mtu),
            (RcReadResponseLast, 9),
        ] {
            let at = self.packets.len() - 1;
            let psn = match opcode {
                RcReadResponseFirst => first,
                _ => self.packets[at].header.bth.psn.next().get(),
            };
            self.respond(opcode, psn, Syndrome::ACK, payload);
        }
        let operations = [
            (RcReadRequest, 0, 200, RcReadResponseOnly, 200),
            (RcCompareSwap, 0, 0, RcAtomicAcknowledge, 0),
            (RcFetchAdd, 0, 0, RcAtomicAcknowledge, 0),
            (RcFlush, 0, 64, RcReadResponseOnly, 0),
            (RcAtomicWrite, 8, 8, RcReadResponseOnly, 0),
        ];
        for (opcode, payload, length, answer, bytes) in operations {
            let psn = self.psn;
            self.request(opcode, payload, length);
            self.step(1);
            self.msn += 1;
            self.respond(answer, psn, Syndrome::ACK, bytes);
        }
        // Refused and repeated; then lost after the capture point, and requested by a NAK.
        let refused = self.psn;
        self.request(RcSendOnly, 24, 0);
        self.respond(RcAcknowledge, refused, Syndrome::RnrNak { timer: 1 }, 0);
        self.message(&[(RcSendOnly, 24)]);
        let lost = self.psn;
        self.request(RcSendOnly, 60, 0);
        self.respond(
            RcAcknowledge,
            lost,
            Syndrome::Nak(NakCode::PsnSequenceError),
            0,
        );
        self.message(&[(RcSendOnly, 60)]);
        let notice = self.header(1, Cnp, 0);
        self.cnp(notice);
        self.message(&[(RcWriteOnly, 16)]);
    }

    fn cnp(&mut self, mut header: RoceHeader) {
        header.bth.becn = true;
        self.push(header, 16);
    }

    fn datagrams(&mut self) {
        for (opcode, payload) in [(UdSendOnly, 2), (UdSendOnlyWithImmediate, 1000)] {
            let header = self.header(0, opcode, self.psn);
            self.push(header, payload);
            self.step(1);
        }
        let mut message = self.header(0, UdSendOnly, self.psn);
        message.bth.dest_qp = GSI_QPN;
        let deth = message.deth.as_mut().unwrap();
        (deth.qkey, deth.src_qp) = (GSI_QKEY, GSI_QPN);
        self.push(message, MAD_LEN);
        self.step(1);
        let mut to_group = self.header(0, UdSendOnly, self.psn);
        let (from, group) = (to_group.ip.src_gid(), group(self.is_ipv6));
        to_group.ip = Ip::from_gids(from, group, 0, 0, 1);
        to_group.ethernet.dst = group.multicast_mac().unwrap();
        to_group.bth.dest_qp = MULTICAST_QPN;
        self.push(to_group, 30);
    }
}
