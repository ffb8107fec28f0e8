//! iWARP: a conversation over TCP without findings, and each rule violated by one change of it.

mod tolerance;

use std::collections::BTreeSet;

use faultline_checker::{Checker, Frame, Place, QueuePair, Rule};
use faultline_wire::ddp::{DDP_VERSION, Ddp, DdpTarget};
use faultline_wire::ip::PROTOCOL_TCP;
use faultline_wire::mpa::{Crc32c, EnhancedSetup, Fpdu, MpaFlags, MpaRole, MpaSetup};
use faultline_wire::rdmap::{RdmapControl, RdmapOpcode, ReadRequest, Terminate, TerminateCode};
use faultline_wire::{EtherType, Ethernet, Ip, Seq, Tcp, TcpFlags, Timestamps};

use crate::talk::{gid, mac};

/// Initial sequence numbers: those of the active end wrap soon.
const ISN: [u32; 2] = [0xffff_fe00, 7000];
const PORTS: [u16; 2] = [40_000, 4791];
const MSS: u16 = 1460;
/// Window in octets, without scale.
const WINDOW: u16 = 60_000;
/// READs that each end serves at once.
const IRD: u16 = 2;
const STAG: u32 = 0x1234;

/// Changes the header and the data of a segment.
type Change = dyn FnOnce(&mut Tcp, &mut Vec<u8>);
/// Changes octets.
type Spoil = dyn FnOnce(&mut Vec<u8>);
/// An end, and a change of its setup frame.
type SetupCase = (usize, fn(&mut Vec<u8>));

/// Two ends, which the checker sees.
struct Stream {
    checker: Checker,
    place: Place,
    /// Octets of data that each end has sent.
    sent: [u32; 2],
    msns: [[u32; 4]; 2],
    /// The ends that demand markers.
    demands: [bool; 2],
    known: Option<usize>,
    /// Changes the next segment.
    change: Option<Box<Change>>,
    /// Changes the octets of the next frame.
    spoil: Option<Box<Spoil>>,
    has_pair: bool,
}

fn frame(from: usize, tcp: &Tcp, data: &[u8]) -> Vec<u8> {
    let to = 1 - from;
    let ethernet = Ethernet {
        dst: mac(to),
        src: mac(from),
        vlan: None,
        ethertype: EtherType::IPV4,
    };
    let mut ip = Ip::from_gids(gid(from), gid(to), 0, 0, 64);
    let Ip::V4(v4) = &mut ip else { unreachable!() };
    v4.protocol = PROTOCOL_TCP;
    let len = tcp.header_len();
    ip.set_payload_len(len + data.len()).unwrap();
    let mut out = vec![0; 14 + 20 + len];
    ethernet.emit(&mut out).unwrap();
    ip.emit(&mut out[14..]).unwrap();
    let mut tcp = *tcp;
    tcp.checksum = 0;
    tcp.emit(&mut out[34..]).unwrap();
    let sum = Tcp::checksum(&ip, &out[34..], std::iter::once(data));
    out[34 + 16..34 + 18].copy_from_slice(&sum.to_be_bytes());
    out.extend_from_slice(data);
    out
}

fn setup(role: MpaRole) -> Vec<u8> {
    let fixed = MpaSetup {
        role,
        flags: MpaFlags::CRC | MpaFlags::ENHANCED,
        revision: 2,
        private_data_len: 4,
    };
    let depths = EnhancedSetup {
        ird: IRD,
        ord: IRD,
        ..EnhancedSetup::default()
    };
    let mut out = vec![0; 24];
    fixed.emit(&mut out).unwrap();
    depths.emit(&mut out[20..]).unwrap();
    out
}

fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let fpdu = Fpdu {
        ulpdu_len: ulpdu.len().try_into().unwrap(),
    };
    let mut out = vec![0; 2];
    fpdu.emit(&mut out).unwrap();
    out.extend_from_slice(ulpdu);
    out.resize(out.len() + fpdu.pad_len(), 0);
    seal(&mut out);
    out
}

/// Appends the CRC.
fn seal(out: &mut Vec<u8>) {
    let mut crc = Crc32c::default();
    crc.update(out);
    out.extend_from_slice(&crc.finish().to_le_bytes());
}

/// Writes the CRC of an FPDU anew.
fn seal_again(out: &mut Vec<u8>) {
    out.truncate(out.len() - 4);
    seal(out);
}

fn ulpdu(opcode: RdmapOpcode, target: DdpTarget, last: bool, payload: &[u8]) -> Vec<u8> {
    let ddp = Ddp {
        last,
        version: DDP_VERSION,
        upper_control: RdmapControl::new(opcode).to_u8(),
        target,
    };
    let mut out = vec![0; ddp.header_len()];
    ddp.emit(&mut out).unwrap();
    out.extend_from_slice(payload);
    out
}

impl Stream {
    fn new() -> Self {
        Self::at(Place::Adapter)
    }

    fn at(place: Place) -> Self {
        Self {
            checker: Checker::new(place),
            place,
            sent: [0; 2],
            msns: [[1; 4]; 2],
            demands: [false; 2],
            known: None,
            change: None,
            spoil: None,
            has_pair: false,
        }
    }

    /// A connection whose setup is over.
    fn open() -> Self {
        let mut stream = Self::new();
        stream.set_up();
        stream
    }

    fn set_up(&mut self) {
        self.handshake();
        for (from, role) in [(0, MpaRole::Request), (1, MpaRole::Reply)] {
            let mut frame = setup(role);
            frame[16] |= u8::from(self.demands[from]) << 7;
            self.data(from, &frame);
        }
        self.write(0, 0, &[], true);
    }

    fn handshake(&mut self) {
        self.syn(0);
        self.syn(1);
        self.data(0, &[]);
    }

    fn syn(&mut self, from: usize) {
        let mut tcp = self.header(from);
        tcp.seq = Seq(ISN[from]);
        tcp.flags = TcpFlags::SYN;
        tcp.options.mss = Some(MSS);
        tcp.options.window_scale = Some(0);
        tcp.options.sack_permitted = true;
        if from == 1 {
            tcp.flags |= TcpFlags::ACK;
        }
        self.pass(from, tcp, &[]);
    }

    fn header(&self, from: usize) -> Tcp {
        let next = |end: usize| Seq(ISN[end]).add(self.sent[end] + 1);
        Tcp {
            src_port: PORTS[from],
            dst_port: PORTS[1 - from],
            seq: next(from),
            ack: next(1 - from),
            flags: TcpFlags::ACK,
            window: WINDOW,
            ..Tcp::default()
        }
    }

    fn pass(&mut self, from: usize, mut tcp: Tcp, data: &[u8]) {
        let mut data = data.to_vec();
        if let Some(change) = self.change.take() {
            change(&mut tcp, &mut data);
        }
        let mut octets = frame(from, &tcp, &data);
        if let Some(spoil) = self.spoil.take() {
            spoil(&mut octets);
        }
        let known = self.known.unwrap_or(octets.len());
        let mut cut = octets.clone();
        if known < cut.len() {
            cut[known..].fill(0);
        }
        let seen: Frame<'_> = match known < octets.len() {
            true => Frame::cut(&cut, known),
            false => (&octets).into(),
        };
        let pair = QueuePair {
            qpn: 17,
            mtu: None,
            read_limit: None,
        };
        match self.place {
            Place::Adapter => {
                let pair = self.has_pair.then_some(pair);
                self.checker.sent(0, from, pair, seen);
                self.checker.received(0, 1 - from, seen);
            }
            Place::Link => self.checker.passed(0, seen),
        }
    }

    /// Sends new data.
    fn data(&mut self, from: usize, data: &[u8]) {
        let tcp = self.header(from);
        self.sent[from] += u32::try_from(data.len()).unwrap();
        self.pass(from, tcp, data);
    }

    /// Sends data again that begins `back` octets before the new one.
    fn again(&mut self, from: usize, back: u32, data: &[u8]) {
        let mut tcp = self.header(from);
        tcp.seq = tcp.seq.add(back.wrapping_neg());
        self.pass(from, tcp, data);
    }

    /// The next FPDU of an end, with markers if the other one demands them.
    fn fpdu(&self, from: usize, ulpdu: &[u8]) -> Vec<u8> {
        let plain = fpdu(ulpdu);
        if !self.demands[1 - from] {
            return plain;
        }
        let first = usize::try_from(self.sent[from]).unwrap() - setup(MpaRole::Reply).len();
        let (mut out, mut header) = (Vec::new(), None);
        for octet in &plain {
            if (first + out.len()).is_multiple_of(512) {
                let distance = header.map_or(0, |header| out.len() - header);
                out.extend_from_slice(&u32::try_from(distance).unwrap().to_be_bytes());
            }
            header = header.or(Some(out.len()));
            out.push(*octet);
        }
        seal_again(&mut out);
        out
    }

    fn send_fpdu(&mut self, from: usize, octets: &[u8]) {
        self.data(from, &self.fpdu(from, octets));
    }

    fn untagged(&mut self, from: usize, opcode: RdmapOpcode, payload: &[u8]) -> Vec<u8> {
        let queue = opcode.queue().unwrap();
        let next = &mut self.msns[from][queue as usize];
        let msn = *next;
        *next += 1;
        let target = DdpTarget::Untagged {
            upper: 0,
            queue,
            msn,
            offset: 0,
        };
        ulpdu(opcode, target, true, payload)
    }

    fn message(&mut self, from: usize, opcode: RdmapOpcode, payload: &[u8]) {
        let octets = self.untagged(from, opcode, payload);
        self.send_fpdu(from, &octets);
    }

    fn send(&mut self, from: usize) {
        self.message(from, RdmapOpcode::Send, &[7; 101]);
    }

    fn write(&mut self, from: usize, offset: u64, payload: &[u8], last: bool) {
        let target = DdpTarget::Tagged { stag: STAG, offset };
        self.send_fpdu(from, &ulpdu(RdmapOpcode::Write, target, last, payload));
    }

    fn read(&mut self, from: usize, len: u32) {
        let request = ReadRequest {
            sink: (STAG, 0x1000),
            len,
            source: (5, 0),
        };
        let mut octets = [0; ReadRequest::LEN];
        request.emit(&mut octets).unwrap();
        self.message(from, RdmapOpcode::ReadRequest, &octets);
    }

    fn respond(&mut self, from: usize, offset: u64, len: usize, last: bool) {
        let target = DdpTarget::Tagged { stag: STAG, offset };
        let octets = ulpdu(RdmapOpcode::ReadResponse, target, last, &vec![1; len]);
        self.send_fpdu(from, &octets);
    }

    fn terminate(&mut self, from: usize, code: TerminateCode) {
        let terminate = Terminate {
            code,
            segment_len: None,
            ddp_header: &[],
            rdmap_header: &[],
        };
        let mut octets = vec![0; terminate.message_len()];
        terminate.emit(&mut octets).unwrap();
        self.message(from, RdmapOpcode::Terminate, &octets);
    }

    fn fin(&mut self, from: usize) {
        let mut tcp = self.header(from);
        tcp.flags |= TcpFlags::FIN;
        self.pass(from, tcp, &[]);
        self.sent[from] += 1;
    }

    fn change(&mut self, change: impl FnOnce(&mut Tcp, &mut Vec<u8>) + 'static) {
        self.change = Some(Box::new(change));
    }

    fn rules(&self) -> BTreeSet<Rule> {
        self.checker.counts().keys().copied().collect()
    }

    #[track_caller]
    fn violates(&self, rule: Rule) {
        assert_eq!(
            self.rules(),
            [rule].into(),
            "{:?}",
            self.checker.violations()
        );
    }

    #[track_caller]
    fn is_clean(&self) {
        assert_eq!(self.rules(), [].into(), "{:?}", self.checker.violations());
    }
}

/// All kinds of messages, in whole and in cut frames, at adapters and on a link.
fn talk(stream: &mut Stream) {
    stream.set_up();
    stream.send(0);
    stream.send(1);
    stream.write(1, 0x2000, &[3; 1400], false);
    stream.write(1, 0x2000 + 1400, &[3; 5], true);
    stream.read(0, 1300);
    stream.respond(1, 0x1000, 1000, false);
    stream.respond(1, 0x1000 + 1000, 300, true);
    stream.read(0, 0);
    stream.respond(1, 0x1000, 0, true);
    // An FPDU in two segments, and its end again with the next one.
    let message = stream.untagged(0, RdmapOpcode::SendSolicited, &[9; 700]);
    let octets = stream.fpdu(0, &message);
    stream.data(0, &octets[..400]);
    stream.data(0, &octets[400..]);
    let message = stream.untagged(0, RdmapOpcode::Send, &[1]);
    let next = stream.fpdu(0, &message);
    let both = [&octets[600..], &next[..]].concat();
    let back = u32::try_from(octets.len() - 600).unwrap();
    let tcp = stream.header(0);
    stream.sent[0] += u32::try_from(next.len()).unwrap();
    let tcp = Tcp {
        seq: tcp.seq.add(back.wrapping_neg()),
        ..tcp
    };
    stream.pass(0, tcp, &both);
    stream.again(0, u32::try_from(next.len()).unwrap(), &next);
    stream.terminate(1, TerminateCode::DDP_TAGGED_BOUNDS);
    stream.fin(1);
    stream.fin(0);
    stream.data(1, &[]);
}

#[test]
fn a_conversation_has_no_findings() {
    for place in [Place::Adapter, Place::Link] {
        for (known, demands) in [
            (None, [false, false]),
            (Some(300), [false, false]),
            (None, [true, false]),
            (Some(300), [false, true]),
            (None, [true, true]),
        ] {
            let mut stream = Stream::at(place);
            (stream.known, stream.demands) = (known, demands);
            talk(&mut stream);
            stream.is_clean();
            // The handshake is before the MPA request.
            assert_eq!(stream.checker.segments(), 20);
            assert_eq!(stream.checker.unjudged_segments(), 0);
        }
    }
}

/// Other TCP connections are not judged, whatever they send.
#[test]
fn other_connections_are_not_judged() {
    for early in [false, true] {
        let mut stream = Stream::new();
        stream.handshake();
        if early {
            stream.data(1, b"220 mail server");
        }
        stream.data(0, b"GET / HTTP/1.1");
        stream.change(|tcp, _| tcp.seq = tcp.seq.add(1 << 20));
        stream.data(1, b"HTTP/1.1 200 OK");
        stream.is_clean();
        assert_eq!(
            (stream.checker.segments(), stream.checker.packets()),
            (0, 0)
        );
    }
}

/// A connection whose beginning was not seen is noted and not judged, if it can be known.
#[test]
fn a_connection_without_its_beginning_is_not_judged() {
    for has_pair in [false, true] {
        let mut stream = Stream::new();
        stream.has_pair = has_pair;
        stream.sent = [1000, 2000];
        stream.send(0);
        stream.msns = [[9; 4]; 2];
        stream.send(0);
        stream.send(1);
        stream.violates(Rule::UnjudgedStream);
        assert!(stream.checker.violations().is_empty());
        assert_eq!(stream.checker.unjudged_segments(), 3);
        // The next connection of these ends is judged.
        stream.sent = [0; 2];
        stream.msns = [[1; 4]; 2];
        stream.set_up();
        stream.send(0);
        assert!(stream.checker.segments() > 0);
    }
}

/// On a link, segments are late or missing: nothing false is found.
#[test]
fn late_and_missing_segments_of_a_link_are_no_violations() {
    // Two segments in the wrong order.
    let mut stream = Stream::at(Place::Link);
    stream.set_up();
    let first = fpdu(&stream.untagged(0, RdmapOpcode::Send, &[1; 50]));
    let second = fpdu(&stream.untagged(0, RdmapOpcode::Send, &[2; 60]));
    let tcp = stream.header(0);
    let len = |octets: &[u8]| u32::try_from(octets.len()).unwrap();
    let later = Tcp {
        seq: tcp.seq.add(len(&first)),
        ..tcp
    };
    stream.pass(0, later, &second);
    stream.pass(0, tcp, &first);
    stream.sent[0] += len(&first) + len(&second);
    stream.send(0);
    stream.is_clean();
    // A wrong MSN shows that the stream is followed.
    stream.msns[0][0] = 77;
    stream.send(0);
    stream.violates(Rule::DdpMsn);
    // One is missing, and the peer has it.
    let mut stream = Stream::at(Place::Link);
    stream.set_up();
    stream.sent[0] += 100;
    stream.data(1, &[]);
    stream.msns[0][0] = 77;
    stream.send(0);
    stream.send(1);
    stream.violates(Rule::UnjudgedStream);
}

/// A change of a good segment, and the rule that it violates.
type Case = (Rule, fn(&mut Stream));

fn change_data(stream: &mut Stream, change: impl FnOnce(&mut Vec<u8>) + 'static) {
    stream.change(move |_, data| {
        change(data);
        seal_again(data);
    });
}

const CASES: &[Case] = &[
    (Rule::TcpSegment, |stream| {
        stream.spoil = Some(Box::new(|octets| octets[34 + 16] ^= 1));
        stream.send(0);
    }),
    (Rule::TcpSegment, |stream| {
        // The header is longer than the segment.
        stream.spoil = Some(Box::new(|octets| octets[34 + 12] = 0x10));
        stream.send(0);
    }),
    (Rule::TcpOption, |stream| {
        stream.change(|tcp, _| tcp.options.mss = Some(MSS));
        stream.send(0);
    }),
    (Rule::TcpOption, |stream| {
        stream.change(|tcp, _| tcp.options.timestamps = Some(Timestamps::default()));
        stream.send(0);
    }),
    (Rule::TcpMss, |stream| {
        let message = fpdu(&stream.untagged(0, RdmapOpcode::Send, &[7; 800]));
        let other = fpdu(&stream.untagged(0, RdmapOpcode::Send, &[7; 800]));
        stream.data(0, &[message, other].concat());
    }),
    (Rule::TcpSequence, |stream| {
        stream.change(|tcp, _| tcp.seq = tcp.seq.add(1));
        stream.data(0, &[1]);
    }),
    (Rule::TcpAck, |stream| {
        stream.change(|tcp, _| tcp.ack = tcp.ack.add(1));
        stream.data(1, &[]);
    }),
    (Rule::TcpAck, |stream| {
        stream.data(1, &[]);
        stream.change(|tcp, _| tcp.ack = tcp.ack.add(u32::MAX));
        stream.data(1, &[]);
    }),
    (Rule::TcpAck, |stream| {
        stream.change(|tcp, _| {
            let (left, right) = (tcp.ack.add(10), tcp.ack.add(20));
            tcp.options.sack.push(left, right);
        });
        stream.data(1, &[]);
    }),
    (Rule::TcpWindow, |stream| {
        for n in 0..50 {
            stream.write(0, 1400 * n, &[1; 1400], true);
        }
    }),
    (Rule::TcpRepetition, |stream| {
        stream.send(0);
        let octets = fpdu(&stream.untagged(0, RdmapOpcode::SendSolicited, &[7; 101]));
        stream.again(0, u32::try_from(octets.len()).unwrap(), &octets);
    }),
    (Rule::MpaCrc, |stream| {
        stream.send(0);
        stream.msns[0][0] -= 1;
        let mut octets = fpdu(&stream.untagged(0, RdmapOpcode::Send, &[7; 101]));
        octets[60] ^= 1;
        stream.again(0, u32::try_from(octets.len()).unwrap(), &octets);
    }),
    (Rule::TcpAfterEnd, |stream| {
        stream.fin(0);
        stream.send(0);
    }),
    (Rule::TcpAfterEnd, |stream| {
        stream.change(|tcp, _| tcp.flags = TcpFlags::RST);
        stream.data(0, &[]);
        stream.data(0, &[]);
    }),
    (Rule::MpaCrc, |stream| {
        stream.change(|_, data| data[40] ^= 1);
        stream.send(0);
    }),
    (Rule::MpaLength, |stream| {
        // A pad octet is not zero.
        change_data(stream, |data| {
            let at = data.len() - 5;
            data[at] = 1;
        });
        stream.message(0, RdmapOpcode::Send, &[7; 1]);
    }),
    (Rule::MpaLength, |stream| {
        let octets = fpdu(&stream.untagged(0, RdmapOpcode::Send, &[7; 1500]));
        stream.data(0, &octets[..1000]);
        stream.data(0, &octets[1000..]);
    }),
    (Rule::DdpHeader, |stream| {
        change_data(stream, |data| data[2] |= 4);
        stream.send(0);
    }),
    (Rule::DdpHeader, |stream| {
        stream.send_fpdu(0, &[0x41, 0x43, 0])
    }),
    (Rule::DdpMsn, |stream| {
        stream.msns[0][0] += 1;
        stream.send(0);
    }),
    (Rule::DdpOffset, |stream| {
        stream.write(0, 0, &[1; 100], false);
        stream.write(0, 104, &[1; 100], true);
    }),
    (Rule::DdpOffset, |stream| {
        change_data(stream, |data| data[2 + 17] = 4);
        stream.send(0);
    }),
    (Rule::RdmapHeader, |stream| {
        // The wrong version.
        change_data(stream, |data| data[3] ^= 0xc0);
        stream.send(0);
    }),
    (Rule::RdmapHeader, |stream| {
        // A reserved message type.
        change_data(stream, |data| data[3] |= 0xf);
        stream.send(0);
    }),
    (Rule::RdmapHeader, |stream| {
        // A SEND to the queue of READ requests.
        change_data(stream, |data| data[2 + 9] = 1);
        stream.send(0);
    }),
    (Rule::RdmapHeader, |stream| {
        // It invalidates no STag.
        change_data(stream, |data| data[2 + 5] = 1);
        stream.send(0);
    }),
    (Rule::RdmapLength, |stream| {
        stream.message(0, RdmapOpcode::ReadRequest, &[0; 27]);
    }),
    (Rule::RdmapResponse, |stream| {
        stream.respond(1, 0x1000, 10, true)
    }),
    (Rule::RdmapResponse, |stream| {
        stream.read(0, 10);
        stream.respond(1, 0x1004, 10, true);
    }),
    (Rule::RdmapResponse, |stream| {
        stream.read(0, 10);
        stream.respond(1, 0x1000, 9, true);
    }),
    (Rule::RdmapResponse, |stream| {
        stream.message(1, RdmapOpcode::AtomicResponse, &[0; 12]);
    }),
    (Rule::RdmapReadLimit, |stream| {
        (0..=IRD).for_each(|_| stream.read(0, 10));
    }),
    (Rule::RdmapTerminate, |stream| {
        let unknown = TerminateCode {
            layer: 9,
            error_type: 0,
            code: 0,
        };
        stream.terminate(0, unknown);
    }),
    (Rule::RdmapAfterTerminate, |stream| {
        stream.terminate(0, TerminateCode::MPA_CRC);
        stream.send(0);
    }),
];

#[test]
fn each_change_violates_its_rule() {
    let mut seen = BTreeSet::new();
    for (rule, violate) in CASES {
        let mut stream = Stream::open();
        stream.is_clean();
        violate(&mut stream);
        stream.violates(*rule);
        seen.insert(*rule);
    }
    // The tests below have the rules of the setup.
    let all = Rule::ALL.iter().copied();
    let of_iwarp = all.skip_while(|rule| *rule != Rule::TcpSegment);
    let missing: Vec<Rule> = of_iwarp.filter(|rule| !seen.contains(rule)).collect();
    let of_others = [
        Rule::MpaSetup,
        Rule::MpaOrder,
        Rule::MpaMarker,
        Rule::UnjudgedStream,
    ];
    assert_eq!(missing, of_others);
}

/// A connection in which the passive end demands markers, and the active one sends SENDs until a marker is in the next one; its place.
fn before_a_marker() -> (Stream, usize) {
    let mut stream = Stream::new();
    stream.demands = [false, true];
    stream.set_up();
    loop {
        let position = usize::try_from(stream.sent[0]).unwrap() - setup(MpaRole::Reply).len();
        match position.next_multiple_of(512) - position {
            // Not in the headers.
            at if (24..120).contains(&at) => return (stream, at),
            _ => stream.send(0),
        }
    }
}

#[test]
fn markers_point_to_their_fpdu() {
    // FPDUPTR, and the reserved half.
    for (octet, bit) in [(3, 4), (2, 1), (1, 1), (0, 0x80)] {
        let (mut stream, at) = before_a_marker();
        stream.is_clean();
        change_data(&mut stream, move |data| data[at + octet] ^= bit);
        stream.send(0);
        stream.violates(Rule::MpaMarker);
    }
    // A marker between two FPDUs is zero.
    let mut stream = Stream::new();
    stream.demands = [true, false];
    stream.set_up();
    change_data(&mut stream, |data| data[3] = 4);
    stream.send(1);
    stream.violates(Rule::MpaMarker);
    // An FPDU that is sent again.
    let (mut stream, at) = before_a_marker();
    let message = stream.untagged(0, RdmapOpcode::Send, &[7; 101]);
    let octets = stream.fpdu(0, &message);
    stream.data(0, &octets);
    let len = u32::try_from(octets.len()).unwrap();
    stream.again(0, len, &octets);
    stream.is_clean();
    change_data(&mut stream, move |data| data[at + 3] ^= 8);
    stream.again(0, len, &octets);
    stream.violates(Rule::MpaMarker);
}

#[test]
fn markers_that_are_missing_or_not_demanded_are_noticed() {
    for demands in [[false, true], [false, false]] {
        let mut stream = Stream::new();
        stream.demands = demands;
        stream.set_up();
        stream.demands = [false, !demands[1]];
        (0..5).for_each(|_| stream.send(0));
        assert!(!stream.rules().is_empty());
    }
}

/// The first FPDU may be seen before the reply that demands markers: then its end is not judged.
#[test]
fn a_late_demand_for_markers_is_noted() {
    let mut stream = Stream::at(Place::Link);
    stream.handshake();
    stream.data(0, &setup(MpaRole::Request));
    stream.write(0, 0, &[], true);
    let mut reply = setup(MpaRole::Reply);
    reply[16] |= 0x80;
    stream.data(1, &reply);
    assert!(stream.rules().contains(&Rule::UnjudgedStream));
}

#[test]
fn setup_frames() {
    let wrong: [SetupCase; 6] = [
        (0, |frame| frame[16] |= 1),
        (0, |frame| frame[17] = 3),
        (0, |frame| frame[16] |= 0x20),
        (1, |frame| frame[17] = 3),
        (1, |frame| frame[0] = b'X'),
        (1, |frame| frame[9] = b'q'),
    ];
    for (end, spoil) in wrong {
        let mut stream = Stream::new();
        stream.handshake();
        for (from, role) in [(0, MpaRole::Request), (1, MpaRole::Reply)] {
            let mut frame = setup(role);
            if from == end {
                spoil(&mut frame);
            }
            stream.data(from, &frame);
        }
        stream.violates(Rule::MpaSetup);
    }
    // Private data in a segment of its own.
    let mut stream = Stream::new();
    stream.handshake();
    let frame = setup(MpaRole::Request);
    stream.data(0, &frame[..7]);
    stream.data(0, &frame[7..21]);
    stream.data(0, &frame[21..]);
    stream.data(1, &setup(MpaRole::Reply));
    stream.is_clean();
}

#[test]
fn the_order_of_the_setup() {
    // The passive end sends first.
    let mut stream = Stream::new();
    stream.handshake();
    stream.data(0, &setup(MpaRole::Request));
    stream.data(1, &setup(MpaRole::Reply));
    stream.send(1);
    stream.violates(Rule::MpaOrder);
    // The active end does not wait for the reply.
    let mut stream = Stream::new();
    stream.handshake();
    stream.data(0, &setup(MpaRole::Request));
    stream.send(0);
    stream.violates(Rule::MpaOrder);
    // A rejected one goes on.
    let mut stream = Stream::new();
    stream.handshake();
    stream.data(0, &setup(MpaRole::Request));
    let mut reply = setup(MpaRole::Reply);
    reply[16] |= 0x20;
    stream.data(1, &reply);
    stream.is_clean();
    stream.send(0);
    stream.violates(Rule::MpaOrder);
}

/// Another adapter sends with the addresses and ports of a connection: nothing is found, and nothing is judged.
#[test]
fn a_forged_segment_is_not_charged_to_the_connection() {
    let mut stream = Stream::open();
    let forged = frame(0, &stream.header(0), &fpdu(&[0x41, 0x43, 1]));
    stream.checker.sent(0, 7, None, &forged);
    stream.send(0);
    stream.data(1, &[1, 2, 3]);
    stream.is_clean();
    assert!(stream.checker.unjudged_segments() > 0);
}

/// Connections of one adapter take no more than the memory, and a connection of another adapter stays.
#[test]
fn connections_keep_to_their_memory() {
    const MEMORY: usize = 1 << 20;
    let mut stream = Stream::open();
    stream.checker.limit_memory(MEMORY);
    for port in 0..3000 {
        let tcp = Tcp {
            src_port: port,
            dst_port: 9,
            flags: TcpFlags::SYN,
            ..Tcp::default()
        };
        stream.checker.sent(0, 1, None, &frame(1, &tcp, &[]));
        assert!(stream.checker.bytes() <= MEMORY);
    }
    stream.send(0);
    stream.msns[0][0] = 99;
    stream.send(0);
    stream.violates(Rule::DdpMsn);
}
