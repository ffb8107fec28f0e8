//! iWARP: FPDUs with markers to a peer that demands them (RFC 5044 section 4.3).
//!
//! The peer is written here, from TCP to MPA: it counts positions octet by octet, and shares no code with the NIC's markers.

use std::collections::BTreeMap;

use faultline_abi::qp::QPS_RTS;
use faultline_abi::{cqe, event, wqe as wr};
use faultline_checker::{Checker, Place};
use faultline_simulation::{Cq, Mr, Private, Qp, Rng, Send};
use faultline_simulator::World;
use faultline_wire::ddp::{DDP_VERSION, Ddp, DdpTarget, queue};
use faultline_wire::ip::PROTOCOL_TCP;
use faultline_wire::mpa::{Crc32c, EnhancedSetup, Fpdu, MpaFlags, MpaRole, MpaSetup};
use faultline_wire::rdmap::{RdmapControl, RdmapOpcode, ReadRequest, Terminate, TerminateCode};
use faultline_wire::{EtherType, Ethernet, Ip, Seq, Tcp, TcpFlags};

use crate::common::state;
use crate::iwarp::{any, path, qp_in_init, world};

const PORT: u16 = 4791;
const ACTIVE: u16 = 40_000;
const MS: u64 = 1_000_000;
/// STag of the peer's memory.
const STAG: u32 = 0x5500;
const REGION: u64 = 5 << 20;

/// The end of the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// The NIC opens the connection.
    Active,
    /// The peer opens it.
    Passive,
}

/// What the peer does with segments.
#[derive(Clone, Copy, Debug, Default)]
struct Habits {
    /// The peer demands markers.
    pub markers: bool,
    /// Maximum segment size of its SYN.
    pub mss: u16,
    /// Per mille of segments that are lost.
    pub loss: u32,
    /// Per mille of segments that it accepts only in part.
    pub cut: u32,
    /// Longest window; each acknowledgment announces a random one up to this.
    pub window: Option<u16>,
}

/// An FPDU that has arrived.
#[derive(Debug)]
pub struct Found {
    /// Offset in the stream.
    start: usize,
    /// Octets, markers included.
    len: usize,
    /// FPDUPTR of each marker.
    pub pointers: Vec<u16>,
}

/// A peer of the NIC of host 1.
pub struct Peer {
    role: Role,
    habits: Habits,
    rng: Rng,
    seq: Seq,
    /// Sequence number of the first octet of the NIC.
    first: Option<Seq>,
    /// Octets in order.
    received: Vec<u8>,
    early: BTreeMap<usize, Vec<u8>>,
    /// Offset and length of the data of each segment of the NIC.
    segments: Vec<(usize, usize)>,
    window: u16,
    /// Nothing arrives.
    is_deaf: bool,
    is_finished: bool,
    /// Octets of the NIC's setup frame.
    setup_len: usize,
    /// Offset of the next FPDU.
    next: usize,
    pub fpdus: Vec<Found>,
    /// A message that has begun: its type, the offset of its first octet, its octets.
    begun: Option<(RdmapOpcode, u64, Vec<u8>)>,
    messages: Vec<(RdmapOpcode, Vec<u8>)>,
    msns: [u32; 4],
    /// Frames in both directions, with their sender.
    pub log: Vec<(usize, Vec<u8>)>,
}

/// A queue pair of the NIC.
struct Target {
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

/// Data that depend on their position, without a period of a power of two.
fn data(len: usize) -> Vec<u8> {
    let octet = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (0..len as u64).map(octet).collect()
}

/// The FPDU of a ULPDU, without markers.
fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let fpdu = Fpdu {
        ulpdu_len: ulpdu.len() as u16,
    };
    let mut out = vec![0; fpdu.len()];
    let at = fpdu.emit(&mut out).unwrap();
    out[at..at + ulpdu.len()].copy_from_slice(ulpdu);
    let end = out.len() - 4;
    let mut crc = Crc32c::default();
    crc.update(&out[..end]);
    out[end..].copy_from_slice(&crc.finish().to_le_bytes());
    out
}

fn ulpdu(opcode: RdmapOpcode, target: DdpTarget, payload: &[u8]) -> Vec<u8> {
    let ddp = Ddp {
        last: true,
        version: DDP_VERSION,
        upper_control: RdmapControl::new(opcode).to_u8(),
        target,
    };
    let mut out = vec![0; ddp.header_len()];
    ddp.emit(&mut out).unwrap();
    out.extend_from_slice(payload);
    out
}

impl Peer {
    fn new(role: Role, habits: Habits, seed: u64) -> Self {
        Self {
            role,
            habits,
            rng: Rng::new(seed),
            seq: Seq(0xffff_ff00),
            first: None,
            received: Vec::new(),
            early: BTreeMap::new(),
            segments: Vec::new(),
            window: habits.window.unwrap_or(0xffff),
            is_deaf: false,
            is_finished: false,
            setup_len: 0,
            next: 0,
            fpdus: Vec::new(),
            begun: None,
            messages: Vec::new(),
            msns: [0; 4],
            log: Vec::new(),
        }
    }

    fn ports(&self) -> [u16; 2] {
        match self.role {
            Role::Active => [PORT, ACTIVE],
            Role::Passive => [ACTIVE, PORT],
        }
    }

    /// Sends a segment.
    fn send(&mut self, world: &World, flags: TcpFlags, octets: &[u8]) {
        let (from, to) = (&world.hosts[0], &world.hosts[1]);
        let [src_port, dst_port] = self.ports();
        let ack = self.first.map_or(Seq(0), |first| {
            let end = self.received.len() + usize::from(self.is_finished);
            first.add(end as u32)
        });
        let mut tcp = Tcp {
            src_port,
            dst_port,
            seq: self.seq,
            ack,
            flags,
            window: self.window,
            ..Tcp::default()
        };
        tcp.options.mss = flags.contains(TcpFlags::SYN).then_some(self.habits.mss);
        let mut ip = Ip::from_gids(from.gid, to.gid, 0, 0, 64);
        if let Ip::V4(ip) = &mut ip {
            ip.protocol = PROTOCOL_TCP;
        }
        let len = tcp.header_len();
        ip.set_payload_len(len + octets.len()).unwrap();
        let ethernet = Ethernet {
            dst: to.mac,
            src: from.mac,
            vlan: None,
            ethertype: EtherType::IPV4,
        };
        let mut out = vec![0; 14 + 20 + len];
        ethernet.emit(&mut out).unwrap();
        ip.emit(&mut out[14..]).unwrap();
        tcp.emit(&mut out[34..]).unwrap();
        let sum = Tcp::checksum(&ip, &out[34..], std::iter::once(octets));
        out[34 + 16..34 + 18].copy_from_slice(&sum.to_be_bytes());
        out.extend_from_slice(octets);
        let syn = u32::from(flags.contains(TcpFlags::SYN));
        self.seq = self.seq.add(octets.len() as u32 + syn);
        self.log.push((0, out.clone()));
        world.inject(0, out);
    }

    fn send_fpdu(&mut self, world: &World, ulpdu: &[u8]) {
        self.send(world, TcpFlags::ACK | TcpFlags::PSH, &fpdu(ulpdu));
    }

    /// READs memory of the NIC.
    fn read(&mut self, world: &World, len: u32, source: (u32, u64)) {
        let request = ReadRequest {
            sink: (STAG, 0x1000),
            len,
            source,
        };
        let mut octets = [0; ReadRequest::LEN];
        request.emit(&mut octets).unwrap();
        self.msns[1] += 1;
        let target = DdpTarget::Untagged {
            upper: 0,
            queue: queue::READ_REQUEST,
            msn: self.msns[1],
            offset: 0,
        };
        self.send_fpdu(world, &ulpdu(RdmapOpcode::ReadRequest, target, &octets));
    }

    /// A WRITE without data to this STag.
    fn write(&mut self, world: &World, stag: u32, payload: &[u8]) {
        let target = DdpTarget::Tagged { stag, offset: 0 };
        self.send_fpdu(world, &ulpdu(RdmapOpcode::Write, target, payload));
    }

    /// The own setup frame.
    fn send_setup(&mut self, world: &World) {
        let depths = EnhancedSetup {
            ird: 4,
            ord: 4,
            peer_to_peer: true,
            rtr_write: true,
            ..EnhancedSetup::default()
        };
        let mut flags = MpaFlags::CRC | MpaFlags::ENHANCED;
        flags.set(MpaFlags::MARKERS, self.habits.markers);
        let setup = MpaSetup {
            role: match self.role {
                Role::Active => MpaRole::Reply,
                Role::Passive => MpaRole::Request,
            },
            flags,
            revision: 2,
            private_data_len: 7,
        };
        let mut out = vec![0; 20 + 4];
        setup.emit(&mut out).unwrap();
        depths.emit(&mut out[20..]).unwrap();
        // So that FPDUs are at no multiple of four octets.
        out.extend_from_slice(b"odd");
        self.send(world, TcpFlags::ACK, &out);
    }

    /// Lets time pass, and takes what the NIC has sent. Without a frame, a timer of the NIC may be due.
    fn turn(&mut self, world: &World) {
        world.run_for(5_000);
        let frames = world.take_capture();
        let of_nic = frames.into_iter().filter(|(host, _)| *host == 1);
        let heard = of_nic.filter(|(_, frame)| self.hear(world, frame)).count();
        if heard == 0 {
            world.run_for(20 * MS);
        }
    }

    /// Turns until something has happened.
    #[track_caller]
    fn until(&mut self, world: &World, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..50_000 {
            if is_so(self) {
                return;
            }
            self.turn(world);
        }
        panic!("{} octets, {:?}", self.received.len(), self.fpdus.last());
    }

    fn has_messages(&mut self, world: &World, count: usize) {
        self.until(world, |peer| peer.messages.len() >= count);
        assert_eq!(self.messages.len(), count);
    }

    /// Takes a frame. Returns false if it is of no interest.
    fn hear(&mut self, world: &World, frame: &[u8]) -> bool {
        let (_, at_ip) = Ethernet::parse(frame).unwrap();
        let (ip, ip_len) = Ip::parse(&frame[at_ip..]).unwrap();
        let at_tcp = at_ip + ip_len;
        let (tcp, tcp_len) = Tcp::parse(&frame[at_tcp..]).unwrap();
        assert_eq!(tcp.dst_port, self.ports()[0]);
        self.log.push((1, frame.to_vec()));
        assert!(!tcp.flags.contains(TcpFlags::RST), "a reset");
        if tcp.flags.contains(TcpFlags::SYN) {
            self.first = Some(tcp.seq.add(1));
            return true;
        }
        let octets = &frame[at_tcp + tcp_len..at_tcp + ip.payload_len()];
        let first = self.first.expect("a SYN comes first");
        let at = tcp.seq.diff(first) as usize;
        let is_fin = tcp.flags.contains(TcpFlags::FIN);
        if octets.is_empty() && !is_fin {
            return false;
        }
        assert!(octets.len() <= usize::from(self.habits.mss));
        self.segments.push((at, octets.len()));
        if self.is_deaf || self.rng.chance(self.habits.loss) {
            return true;
        }
        let taken = match self.rng.chance(self.habits.cut) {
            true => self.rng.below(octets.len() as u64 + 1) as usize,
            false => octets.len(),
        };
        self.take(at, &octets[..taken]);
        self.is_finished |= is_fin && self.received.len() == at + octets.len();
        if let Some(longest) = self.habits.window {
            self.window = self.rng.below(longest.into()) as u16 + 1;
        }
        self.send(world, TcpFlags::ACK, &[]);
        true
    }

    fn take(&mut self, at: usize, octets: &[u8]) {
        let early = self.early.entry(at).or_default();
        if early.len() < octets.len() {
            *early = octets.to_vec();
        }
        while let Some(first) = self.early.first_entry()
            && *first.key() <= self.received.len()
        {
            let (at, octets) = first.remove_entry();
            // What is sent again is what was sent.
            let have = (self.received.len() - at).min(octets.len());
            assert!(self.received[at..at + have] == octets[..have], "at {at}");
            self.received.extend_from_slice(&octets[have..]);
        }
        if self.setup_len == 0 {
            self.take_setup();
        }
        while self.setup_len > 0 && self.take_fpdu() {}
    }

    fn take_setup(&mut self) {
        let Ok((setup, at)) = MpaSetup::parse(&self.received) else {
            return;
        };
        let len = at + usize::from(setup.private_data_len);
        if self.received.len() < len {
            return;
        }
        // The NIC never demands markers.
        assert!(!setup.flags.contains(MpaFlags::MARKERS));
        (self.setup_len, self.next) = (len, len);
    }

    /// Takes an FPDU apart, octet by octet. Returns false if it is not whole.
    fn take_fpdu(&mut self) -> bool {
        let (mut plain, mut at, mut header, mut pointers) =
            (Vec::new(), self.next, None, Vec::new());
        let mut len = 2;
        while plain.len() < len {
            let position = at - self.setup_len;
            if self.habits.markers && position.is_multiple_of(512) {
                let Some(marker) = self.received[at..].first_chunk::<4>() else {
                    return false;
                };
                let distance = header.map_or(0, |header| at - header) as u16;
                let [high, low] = distance.to_be_bytes();
                assert_eq!(*marker, [0, 0, high, low], "the marker at {position}");
                pointers.push(distance);
                at += 4;
            }
            let Some(octet) = self.received.get(at) else {
                return false;
            };
            header.get_or_insert(at);
            plain.push(*octet);
            at += 1;
            if let [a, b] = plain[..] {
                let ulpdu_len = u16::from_be_bytes([a, b]);
                len = Fpdu { ulpdu_len }.len();
            }
        }
        let mut crc = Crc32c::default();
        crc.update(&self.received[self.next..at - 4]);
        let (covered, found) = plain.split_at(len - 4);
        assert_eq!(crc.finish().to_le_bytes(), found, "the CRC");
        self.fpdus.push(Found {
            start: self.next,
            len: at - self.next,
            pointers,
        });
        self.next = at;
        let ulpdu_len = usize::from(u16::from_be_bytes([plain[0], plain[1]]));
        assert!(covered[2 + ulpdu_len..].iter().all(|pad| *pad == 0));
        self.take_segment(&covered[2..2 + ulpdu_len]);
        true
    }

    /// Takes a DDP segment.
    fn take_segment(&mut self, ulpdu: &[u8]) {
        let (ddp, at) = Ddp::parse(ulpdu).unwrap();
        let opcode = RdmapControl::from_u8(ddp.upper_control).opcode;
        let opcode = RdmapOpcode::from_u8(opcode).unwrap();
        let offset = match ddp.target {
            DdpTarget::Tagged { offset, .. } => offset,
            DdpTarget::Untagged { offset, .. } => offset.into(),
        };
        let begun = self.begun.take();
        let (of, first, mut octets) = begun.unwrap_or((opcode, offset, Vec::new()));
        assert_eq!((of, first + octets.len() as u64), (opcode, offset));
        octets.extend_from_slice(&ulpdu[at..]);
        match ddp.last {
            true => self.messages.push((opcode, octets)),
            false => self.begun = Some((opcode, first, octets)),
        }
    }

    /// Messages of a type, in order.
    fn of(&self, opcode: RdmapOpcode) -> Vec<&[u8]> {
        let all = self.messages.iter();
        all.filter(|(of, _)| *of == opcode)
            .map(|(_, octets)| &octets[..])
            .collect()
    }
}

/// Connects a peer to a new queue pair of host 1, which may send then.
fn connect(world: &mut World, role: Role, habits: Habits, seed: u64) -> (Peer, Target) {
    // Host 0 has no connection, and would answer with resets.
    world.change(0, |_| None);
    world.start_capture();
    let (cq, qp) = qp_in_init(world, 1);
    let mr = world.hosts[1].mr(REGION).unwrap();
    let mut peer = Peer::new(role, habits, seed);
    match role {
        Role::Active => {
            let path = path(world, 1, false, ACTIVE);
            let driver = &mut world.hosts[1].driver;
            driver.open(qp.qpn, path, &Private::default()).unwrap();
            peer.until(world, |peer| peer.first.is_some());
            peer.send(world, TcpFlags::SYN | TcpFlags::ACK, &[]);
            peer.until(world, |peer| peer.setup_len > 0);
            peer.send_setup(world);
        }
        Role::Passive => {
            world.hosts[1].driver.listen(any(false), 4).unwrap();
            peer.send(world, TcpFlags::SYN, &[]);
            peer.until(world, |peer| peer.first.is_some());
            peer.send_setup(world);
            peer.turn(world);
            let events = world.hosts[1].driver.whole_events();
            let request = events
                .iter()
                .find(|event| event.kind == event::CONNECTION_REQUEST);
            let request = request.expect("a request").token.get() as u32;
            let driver = &mut world.hosts[1].driver;
            let own = Private {
                data: b"welcome",
                ..Private::default()
            };
            driver.accept(qp.qpn, request, &own).unwrap();
            peer.until(world, |peer| peer.setup_len > 0);
            peer.write(world, 0, &[]);
            peer.turn(world);
        }
    }
    // RTR of the NIC.
    peer.has_messages(world, usize::from(role == Role::Active));
    peer.messages.clear();
    assert_eq!(state(world, 1, &qp), QPS_RTS);
    (peer, Target { cq, qp, mr })
}

/// Posts a SEND or WRITE from an offset of the region.
fn post(world: &mut World, to: &mut Target, opcode: u8, (offset, len): (u64, u32)) {
    let send = Send {
        opcode,
        sges: &[(to.mr.va + offset, len, to.mr.key)],
        remote_addr: 0x1000,
        rkey: STAG,
        ..Send::default()
    };
    world.hosts[1].driver.post_send(&mut to.qp, &send);
}

/// Writes data to the whole region.
fn fill(world: &World, to: &Target) -> Vec<u8> {
    let all = data(REGION as usize);
    world.hosts[1].driver.write_mr(&to.mr, 0, &all);
    all
}

/// The peer refuses itself: a WRITE to a key that does not exist.
fn terminate(world: &World, peer: &mut Peer) {
    peer.messages.clear();
    peer.write(world, STAG, &[1]);
    let is_there = |peer: &Peer| !peer.of(RdmapOpcode::Terminate).is_empty();
    peer.until(world, is_there);
    let messages = peer.of(RdmapOpcode::Terminate);
    let (terminate, _) = Terminate::parse(messages[0]).unwrap();
    assert_eq!(terminate.code, TerminateCode::DDP_TAGGED_INVALID_STAG);
    peer.until(world, |peer| peer.is_finished);
}

/// SENDs of these lengths, a WRITE, READs of the peer, and a Terminate message: the peer finds each marker, each CRC and all data.
fn exchange(role: Role, habits: Habits, seed: u64, lengths: &[u32]) {
    let mut world = world(seed);
    let (mut peer, mut to) = connect(&mut world, role, habits, seed);
    let all = fill(&world, &to);
    let part = |offset: usize, len: u32| &all[offset..offset + len as usize];
    for (n, len) in lengths.iter().enumerate() {
        post(&mut world, &mut to, wr::WR_SEND, (n as u64 * 3, *len));
    }
    post(&mut world, &mut to, wr::WR_WRITE, (77, 5001));
    let reads = [40_003, 0, 508];
    for len in reads {
        peer.read(&world, len, (to.mr.key, to.mr.va + 5));
    }
    peer.has_messages(&world, lengths.len() + 1 + reads.len());
    let sends = peer.of(RdmapOpcode::Send);
    assert_eq!(sends.len(), lengths.len());
    for (n, (found, len)) in sends.iter().zip(lengths).enumerate() {
        assert!(*found == part(n * 3, *len), "SEND of {len} octets");
    }
    assert!(peer.of(RdmapOpcode::Write) == [part(77, 5001)]);
    let expected = reads.map(|len| part(5, len));
    assert!(peer.of(RdmapOpcode::ReadResponse) == expected);
    // The last acknowledgment arrives.
    world.run_for(MS);
    let done = world.completions(1, &mut to.cq);
    assert_eq!(done.len(), lengths.len() + 1);
    assert!(done.iter().all(|cqe| cqe.status == cqe::SUCCESS));
    terminate(&world, &mut peer);
    check_sizes(&peer);
    // The packet checker follows both directions, and agrees.
    let mut checker = Checker::new(Place::Link);
    peer.log
        .iter()
        .for_each(|(_, frame)| checker.passed(0, frame));
    assert_eq!(checker.violations(), []);
    assert_eq!(checker.unjudged_segments(), 0);
    assert!(checker.segments() > 0);
}

/// FPDUs fit into segments, and those of a long message fill them. Without a reason to cut it, each segment has one FPDU.
fn check_sizes(peer: &Peer) {
    let mss = usize::from(peer.habits.mss);
    let longest = peer.fpdus.iter().map(|fpdu| fpdu.len).max().unwrap();
    assert!((mss - 7..=mss).contains(&longest), "{longest} of {mss}");
    let markers: usize = peer.fpdus.iter().map(|fpdu| fpdu.pointers.len()).sum();
    let expected = match peer.habits.markers {
        true => (peer.next - peer.setup_len).div_ceil(512),
        false => 0,
    };
    assert_eq!(markers, expected);
    if peer.habits.loss + peer.habits.cut == 0 && peer.habits.window.is_none() {
        let fpdus = peer.fpdus.iter().map(|fpdu| (fpdu.start, fpdu.len));
        let segments = peer.segments.iter().copied();
        // The first one has the setup frame, the last one the FIN.
        let segments = segments.filter(|(at, len)| *at > 0 && *len > 0);
        assert!(fpdus.eq(segments));
    }
}

/// A peer that has opened a connection, demands markers, and has received SENDs.
pub fn received() -> Peer {
    let mut world = world(7);
    let habits = Habits {
        markers: true,
        mss: 1460,
        ..Habits::default()
    };
    let (mut peer, mut to) = connect(&mut world, Role::Passive, habits, 7);
    fill(&world, &to);
    let lengths = [100, 200, 304, 488, 1000, 1, 4000, 20];
    for len in lengths {
        post(&mut world, &mut to, wr::WR_SEND, (9, len));
    }
    peer.has_messages(&world, lengths.len());
    peer
}

const ROLES: [Role; 2] = [Role::Active, Role::Passive];

#[test]
fn a_peer_that_demands_markers_gets_them_in_all_fpdus() {
    let lengths = [
        1, 4, 20, 480, 484, 488, 504, 508, 512, 1431, 1435, 70_001, 2,
    ];
    for (seed, role) in (0..).zip(ROLES) {
        for (markers, mss) in [(true, 1460), (true, 1001), (true, 536), (false, 1460)] {
            let habits = Habits {
                markers,
                mss,
                ..Habits::default()
            };
            exchange(role, habits, seed, &lengths);
        }
    }
}

/// FPDUs of each length, so that they begin and end at each distance from a marker.
#[test]
fn a_marker_may_be_anywhere_in_an_fpdu() {
    let lengths: Vec<u32> = (0..200).map(|n| n * 4 + n % 4 + 1).collect();
    for role in ROLES {
        let habits = Habits {
            markers: true,
            mss: 1460,
            ..Habits::default()
        };
        exchange(role, habits, 5, &lengths);
    }
}

#[test]
fn a_long_message_has_markers_to_its_end() {
    for role in ROLES {
        let habits = Habits {
            markers: true,
            mss: 1460,
            loss: 2,
            ..Habits::default()
        };
        exchange(role, habits, 6, &[4 << 20, 1]);
    }
}

/// Lost segments, segments that the peer accepts only in part, and windows that end in an FPDU or in a marker.
#[test]
fn what_is_sent_again_has_the_same_markers() {
    let lengths = [3, 1000, 70_001, 1, 508, 20_000];
    for (seed, loss, cut, window) in [
        (11, 50, 0, None),
        (12, 0, 200, None),
        (13, 0, 0, Some(2000)),
        (14, 0, 0, Some(11)),
        (15, 30, 100, Some(4000)),
    ] {
        for role in ROLES {
            let lengths = match window {
                Some(11) => &lengths[..2],
                _ => &lengths[..],
            };
            let habits = Habits {
                markers: true,
                mss: 1460,
                loss,
                cut,
                window,
            };
            exchange(role, habits, seed, lengths);
        }
    }
}

/// The answer to a READ is sent again from its copy, which has its markers.
#[test]
fn a_lost_answer_is_sent_again_with_its_markers() {
    for role in ROLES {
        let mut world = world(21);
        let habits = Habits {
            markers: true,
            mss: 1460,
            ..Habits::default()
        };
        let (mut peer, to) = connect(&mut world, role, habits, 21);
        let all = fill(&world, &to);
        let before = peer.segments.len();
        peer.is_deaf = true;
        peer.read(&world, 4000, (to.mr.key, to.mr.va));
        peer.turn(&world);
        assert_eq!(peer.segments.len() - before, 3);
        assert!(peer.messages.is_empty());
        let other: Vec<u8> = all.iter().map(|octet| !octet).collect();
        world.hosts[1].driver.write_mr(&to.mr, 0, &other);
        peer.is_deaf = false;
        peer.has_messages(&world, 1);
        assert!(peer.messages[0].1 == all[..4000]);
        terminate(&world, &mut peer);
    }
}

/// The Terminate message follows the FPDU that has begun, also if only octets of the marker before it have been sent.
#[test]
fn a_terminate_message_follows_an_fpdu_that_has_begun_with_a_marker() {
    let mut world = world(22);
    let habits = Habits {
        markers: true,
        mss: 1460,
        ..Habits::default()
    };
    let (mut peer, mut to) = connect(&mut world, Role::Passive, habits, 22);
    let all = fill(&world, &to);
    // The window closes, and its probes are octets of the first marker.
    peer.window = 0;
    peer.send(&world, TcpFlags::ACK, &[]);
    peer.turn(&world);
    for _ in 0..3 {
        post(&mut world, &mut to, wr::WR_SEND, (0, 100));
    }
    let is_probed = |peer: &Peer| peer.received.len() > peer.setup_len;
    peer.until(&world, is_probed);
    assert!(peer.received.len() < peer.setup_len + 4);
    peer.window = 0xffff;
    peer.write(&world, STAG, &[1]);
    peer.until(&world, |peer| peer.is_finished);
    let kinds: Vec<_> = peer.messages.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [RdmapOpcode::Send, RdmapOpcode::Terminate]);
    assert!(peer.messages[0].1 == all[..100]);
}
