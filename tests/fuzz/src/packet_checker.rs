//! Packets of adapters that keep to no rule, as the packet checker sees them.

use faultline_checker::{Checker, Finding, Frame, Place, QueuePair, Severity};
use faultline_simulator::packet;
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::ip::Ip;
use faultline_wire::opcode::Opcode;
use faultline_wire::packet::RoceHeader;
use faultline_wire::{Gid, MacAddr};

use crate::input::Input;
use crate::peer::{Aim, damaged, extend};

/// Octets of a cut frame that are known: no headers are longer.
const HEADERS: usize = 192;
const ADAPTERS: usize = 3;
/// Queue pairs of each adapter, from this number on.
const FIRST_QPN: u32 = 16;
const QPNS: u32 = 4;

/// Two checkers of the same packets have the same findings, with any order of their tables, and all
/// packets are counted.
pub fn packet_checker(data: &[u8]) {
    let mut input = Input(data);
    let how = input.u8();
    let place = [Place::Adapter, Place::Link][usize::from(how) % 2];
    let mut checkers = [Checker::new(place), Checker::new(place)];
    // Enough for a few connections, or for none.
    if how & 0x80 != 0 {
        let bytes = usize::from(how & 0x7e) << 9;
        checkers
            .iter_mut()
            .for_each(|checker| checker.limit_memory(bytes));
    }
    let (mut at, mut frames) = (0, 0);
    while !input.is_empty() {
        at += u64::from(input.u16());
        let event = Event::from_input(&mut input);
        frames += event.frames();
        checkers
            .iter_mut()
            .for_each(|checker| event.show(checker, at));
    }
    let [one, other] = checkers.each_ref().map(text);
    assert!(one == other, "{one:#?}\n{other:#?}");
    let [checker, _] = checkers;
    assert!(checker.packets() <= frames);
    let adapters = std::iter::once(None).chain((0..ADAPTERS).map(Some));
    let count: u64 = adapters.map(|adapter| checker.count_of(adapter)).sum();
    assert_eq!(checker.count(Severity::Violation), count);
}

/// What a checker has found.
fn text(checker: &Checker) -> (Vec<String>, u64) {
    let found = checker.violations().iter().chain(checker.remarks());
    (
        found.map(Finding::to_string).collect(),
        checker.responses_without_flow(),
    )
}

/// Something that a checker is told.
enum Event {
    Sent(usize, Option<QueuePair>, Vec<u8>),
    SentBySoftware(usize, Vec<u8>),
    Received(usize, Vec<u8>),
    Passed(Vec<u8>),
    PassedTo(usize, Vec<u8>),
    /// It arrives at the adapter of this number, too.
    Exchanged(usize, QueuePair, usize, Vec<u8>),
    /// Only its headers are known.
    Cut(usize, Option<QueuePair>, Vec<u8>),
    Renewed(usize, u32),
    Remote(usize),
    Ready(usize),
    Lost,
}

impl Event {
    fn from_input(input: &mut Input<'_>) -> Self {
        let kind = input.u8();
        let from = usize::from(input.u8()) % ADAPTERS;
        let to = usize::from(input.u8()) % ADAPTERS;
        let sender = QueuePair {
            qpn: qpn(input),
            mtu: [None, Some(256), Some(1024), Some(0)][usize::from(kind >> 6)],
            read_limit: [None, Some(0), Some(1), Some(16)][usize::from(input.u8()) % 4],
        };
        match kind & 31 {
            0 => Self::Renewed(from, qpn(input)),
            1 => Self::Remote(from),
            2 => Self::Ready(from),
            3 => Self::Lost,
            4..=6 => Self::Passed(frame(input, from, to)),
            7..=9 => Self::Received(to, frame(input, from, to)),
            10 | 11 => Self::Sent(from, None, frame(input, from, to)),
            12..=14 => Self::Sent(from, Some(sender), frame(input, from, to)),
            15 => Self::Cut(from, Some(sender), frame(input, from, to)),
            16 | 17 => Self::PassedTo(to, frame(input, from, to)),
            18 | 19 => Self::SentBySoftware(from, frame(input, from, to)),
            _ => Self::Exchanged(from, sender, to, frame(input, from, to)),
        }
    }

    /// Frames that a checker judges.
    fn frames(&self) -> u64 {
        match self {
            Self::Sent(..) | Self::SentBySoftware(..) | Self::Passed(_) | Self::PassedTo(..) => 1,
            Self::Exchanged(..) | Self::Cut(..) => 1,
            Self::Received(..) | Self::Renewed(..) | Self::Remote(_) | Self::Ready(_) => 0,
            Self::Lost => 0,
        }
    }

    fn show(&self, checker: &mut Checker, at: u64) {
        match self {
            Self::Sent(from, sender, frame) => checker.sent(at, *from, *sender, frame),
            Self::Received(to, frame) => checker.received(at, *to, frame),
            Self::Passed(frame) => checker.passed(at, frame),
            Self::PassedTo(to, frame) => checker.passed_to(at, *to, frame),
            Self::SentBySoftware(from, frame) => checker.sent_by_software(at, *from, frame),
            Self::Exchanged(from, sender, to, frame) => {
                checker.sent(at, *from, Some(*sender), frame);
                checker.received(at, *to, frame);
            }
            Self::Cut(from, sender, frame) => {
                checker.sent(at, *from, *sender, Frame::cut(frame, HEADERS));
            }
            Self::Renewed(adapter, qpn) => checker.restart_queue_pair(*adapter, *qpn),
            Self::Remote(adapter) => checker.set_remote(*adapter),
            Self::Ready(adapter) => checker.set_ready(*adapter, true),
            Self::Lost => checker.forget(),
        }
    }
}

fn qpn(input: &mut Input<'_>) -> u32 {
    FIRST_QPN + u32::from(input.u8()) % QPNS
}

fn frame(input: &mut Input<'_>, from: usize, to: usize) -> Vec<u8> {
    let opcode = Opcode::ALL[usize::from(input.u8()) % Opcode::ALL.len()];
    let how = input.u8();
    let dest_qp = match how & 7 {
        7 => input.u32() & 0xff_ffff,
        // The connection manager.
        6 => 1,
        _ => qpn(input),
    };
    // Some are where PSNs begin again with 0.
    let psn = Psn::new(u32::from(input.u8()).wrapping_sub(8) & 0xff_ffff);
    let mut bth = Bth::new(opcode, dest_qp, psn);
    bth.ack_req = how & 8 != 0;
    let traffic_class = if how & 16 == 0 { 0 } else { 3 };
    let gid = |adapter: usize| Gid::from_ipv4([10, 0, 0, adapter as u8 + 1]);
    let mac = |adapter: usize| MacAddr([2, 0, 0, 0, 0, adapter as u8 + 1]);
    let ip = Ip::from_gids(gid(from), gid(to), traffic_class, 0, 64);
    let mut header = RoceHeader::new(mac(to), mac(from), ip, bth);
    let aim = Aim {
        qpn: dest_qp,
        srqn: 2,
        keys: vec![5],
        va: 0x1000,
    };
    extend(&mut header, input, &aim);
    let payload = match input.u8() {
        0..=63 => 0,
        64..=127 => 1024,
        128..=159 => 256,
        other => usize::from(other),
    };
    let mut octets = input.slice(payload).to_vec();
    octets.resize(payload, 0);
    damaged(packet(&header, &octets), input)
}
