//! READY between two processes: who gets it, and what a peer that lies can cause.

use faultline_abi::admin::Counter;
use faultline_abi::cqe::RNR_RETRY_EXC_ERR;
use faultline_abi::qp::{QP_ATTR_STATE, QPS_RESET, QPT_RC, QpAttr};
use faultline_nic::ReadyMode;
use faultline_simulation::process::Processes;
use faultline_wire::packet::{RoceHeader, parse_trusted};
use faultline_wire::{
    Aeth, Bth, Ethernet, Gid, Ip, MacAddr, Opcode, PeerQuery, Psn, QueryEnd, Syndrome,
};

use crate::common::{
    Absent, At, Connect, End, Expect, MS, US, connected, join, nic_and_port, wired_with_configs,
};

/// The requester, and the responder whose pages are absent.
const A: At = (0, 0);
const B: At = (1, 0);
const LEN: u64 = 64 << 10;
const PAGE: u64 = 4096;
/// Time of the service of a fault.
const SERVICE: u64 = 3 * MS;
/// Longest time from a repair to a completion without a wait.
const AT_ONCE: u64 = 50 * US;
const SECOND: u64 = 1000 * MS;

/// Two processes, and a connection of their NICs.
struct Pair {
    world: Processes,
    a: End,
    b: End,
    absent: Absent,
    pages: u64,
}

impl Pair {
    /// `modes`: setting `ready` of both.
    fn new(modes: [ReadyMode; 2]) -> Self {
        let shape = nic_and_port();
        let mut world = wired_with_configs([&shape; 2], &|process, config| {
            config.ready = modes[process]
        });
        world.crossed = Some(Vec::new());
        let [a, b] = connected(&mut world, [A, B], QPT_RC, (4, LEN), |path| path);
        let absent = Absent::new(&mut world, B);
        Self {
            world,
            a,
            b,
            absent,
            pages: 0,
        }
    }

    /// A WRITE to the next absent page. Returns the time from the repair to the completion.
    #[track_caller]
    fn write(&mut self) -> u64 {
        self.post();
        let fault = self.absent.fault(&mut self.world);
        self.world.run_for(SERVICE);
        self.absent.repair(&mut self.world, &fault);
        let start = self.world.now();
        self.a.await_good(&mut self.world, 1);
        self.world.now() - start
    }

    fn post(&mut self) {
        let at = self.absent.va + self.pages * PAGE;
        self.pages += 1;
        self.a.write_to(&mut self.world, (at, self.absent.key), 64);
    }

    /// Most of the times of several WRITEs.
    fn longest(&mut self) -> u64 {
        (0..8).map(|_| self.write()).max().unwrap()
    }

    /// READY sent by B, accepted by A, refused by A.
    fn counts(&mut self) -> [u64; 3] {
        [
            self.world.counter(B, Counter::ready_notices),
            self.world.counter(A, Counter::ready_received),
            self.world.counter(A, Counter::ready_refused),
        ]
    }

    /// The frames on the wire since the last call.
    fn crossed(&mut self) -> Vec<(usize, Vec<u8>)> {
        self.world.crossed.replace(Vec::new()).unwrap()
    }

    /// The peer queries on the wire since the last call: who has sent them, whether they ask, whether they answer.
    fn queries(&mut self) -> Vec<(usize, bool, bool)> {
        let crossed = self.crossed();
        let query = |(from, frame): &(usize, Vec<u8>)| {
            let (_, query) = PeerQuery::parse(frame)?;
            Some((*from, query.nonce != 0, query.echo != 0))
        };
        crossed.iter().filter_map(query).collect()
    }

    /// A frame that says that it is from A to B.
    fn forged(&mut self, nonce: u64, echo: u64) -> (Ethernet, PeerQuery) {
        let [(mac_a, a), (mac_b, b)] = [&self.a, &self.b].map(|end| {
            let host = self.world.all[end.at.0].hosts.get(end.at.1).unwrap();
            let qpn = end.qp.qpn;
            (host.mac, QueryEnd { gid: host.gid, qpn })
        });
        let ethernet = Ethernet {
            dst: mac_b,
            src: mac_a,
            vlan: None,
            ethertype: 0x88b6,
        };
        let query = PeerQuery {
            from: a,
            to: b,
            nonce,
            echo,
        };
        (ethernet, query)
    }

    /// A frame comes in at a process, as if the other one had sent it.
    fn inject(&mut self, process: usize, frame: Vec<u8>) {
        let port = self.world.all[process].peer(0).unwrap();
        port.send(frame);
        self.world.settle();
    }

    fn inject_query(&mut self, (ethernet, query): &(Ethernet, PeerQuery)) {
        self.inject(1, octets(ethernet, query));
    }
}

fn octets(ethernet: &Ethernet, query: &PeerQuery) -> Vec<u8> {
    let mut frame = vec![0; Ethernet::LEN + PeerQuery::LEN];
    let at = ethernet.emit(&mut frame).unwrap();
    query.emit(&mut frame[at..]).unwrap();
    frame
}

/// A RoCE packet without payload, with its invariant CRC.
fn packet(header: &RoceHeader) -> Vec<u8> {
    let mut frame = vec![0; header.frame_len(0)];
    header.emit(0, &mut frame).unwrap();
    header.seal(0, &mut frame).unwrap();
    frame
}

fn is_query(frame: &[u8]) -> bool {
    PeerQuery::parse(frame).is_some()
}

const KNOWN: [ReadyMode; 2] = [ReadyMode::Known; 2];
/// A behaves like an adapter of another make.
const FOREIGN: [ReadyMode; 2] = [ReadyMode::Never, ReadyMode::Known];

#[test]
fn two_processes_exchange_ready_from_the_first_fault_on() {
    let mut pair = Pair::new(KNOWN);
    for count in 1..4 {
        let took = pair.write();
        assert!(took < AT_ONCE, "{took} ns");
        assert_eq!(pair.counts(), [count, count, 0]);
        // Each end asks once, and the frame of A answers as well.
        let expected = match count {
            1 => &[(1, true, false), (0, true, true), (1, false, true)][..],
            _ => &[],
        };
        assert_eq!(pair.queries(), expected);
    }
    pair.world.expect_legal();
}

#[test]
fn without_faults_nothing_is_asked() {
    let mut pair = Pair::new(KNOWN);
    let Pair { world, a, b, .. } = &mut pair;
    a.write(world, &b.mr, LEN);
    a.await_good(world, 1);
    pair.world.run_for(10 * SECOND);
    assert_eq!(pair.queries(), []);
}

#[test]
fn another_adapter_gets_a_few_queries_and_no_ready() {
    let mut pair = Pair::new(FOREIGN);
    let longest = pair.longest();
    assert!(longest > 2 * AT_ONCE, "{longest} ns");
    for seconds in 1..8 {
        let asked = pair.queries();
        assert!(asked.iter().all(|found| *found == (1, true, false)));
        assert_eq!(asked.len(), usize::from(seconds <= 4), "{seconds}");
        pair.world.run_for(SECOND);
        // Several faults in the same second.
        for _ in 0..4 {
            pair.write();
        }
    }
    assert_eq!(pair.counts(), [0, 0, 0]);
    pair.world.expect_legal();
}

#[test]
fn a_responder_without_ready_does_not_ask() {
    let mut pair = Pair::new([ReadyMode::Known, ReadyMode::Never]);
    let longest = pair.longest();
    assert!(longest > 2 * AT_ONCE, "{longest} ns");
    assert_eq!(pair.queries(), []);
    assert_eq!(pair.counts(), [0, 0, 0]);
}

/// The requester refuses READY until it has an answer of its own, and asks when it refuses one.
#[test]
fn a_lost_answer_costs_rnr_waits_only() {
    let mut pair = Pair::new(KNOWN);
    pair.world.wires[1].loses = |frame| is_query(frame) && frame[70..78] != [0; 8];
    pair.write();
    assert_eq!(pair.counts(), [1, 0, 1]);
    pair.world.wires[1].loses = |_| false;
    pair.world.run_for(SECOND);
    pair.queries();
    pair.write();
    assert_eq!(pair.counts(), [2, 0, 2]);
    assert_eq!(pair.queries(), [(0, true, false), (1, false, true)]);
    assert!(pair.write() < AT_ONCE);
    assert_eq!(pair.counts(), [3, 1, 2]);
}

/// A new connection of the same queue pairs may have another peer. Frames of the old one prove nothing.
#[test]
fn a_reset_forgets_the_answer_and_old_frames_are_void() {
    let mut pair = Pair::new(KNOWN);
    pair.write();
    let old = pair.crossed();
    let old = old.into_iter().filter(|(_, frame)| is_query(frame));
    let (old_a, old_b): (Vec<_>, Vec<_>) = old.partition(|(from, _)| *from == 0);
    for end in [&mut pair.a, &mut pair.b] {
        let attr = QpAttr {
            mask: QP_ATTR_STATE.into(),
            state: QPS_RESET,
            ..QpAttr::default()
        };
        let driver = &mut pair.world.at(end.at).driver;
        driver.modify_qp(end.qp.qpn, &attr).unwrap();
        end.qp.reset();
    }
    join(&mut pair.world, [&pair.a, &pair.b], |path| path);
    // The peer is another adapter now, which does not answer.
    pair.world.wires[0].loses = is_query;
    pair.post();
    let fault = pair.absent.fault(&mut pair.world);
    pair.world.run_for(MS);
    assert_eq!(pair.queries()[0], (1, true, false));
    for (_, frame) in &old_a {
        pair.inject(1, frame.clone());
    }
    pair.world.run_for(SERVICE);
    pair.absent.repair(&mut pair.world, &fault);
    pair.a.await_good(&mut pair.world, 1);
    // That of the first connection.
    assert_eq!(pair.counts(), [1, 1, 0]);
    // The same at the requester, which was asked by the new connection.
    for (_, frame) in old_b {
        pair.inject(0, frame);
    }
    pair.world.run_for(SECOND);
    pair.write();
    assert_eq!(pair.counts(), [1, 1, 0]);
}

/// A host that has not seen the query cannot answer it, and only the peer gets an answer.
#[test]
fn forged_answers_and_queries_of_others_have_no_effect() {
    let mut pair = Pair::new(FOREIGN);
    pair.post();
    let fault = pair.absent.fault(&mut pair.world);
    pair.world.run_for(MS);
    assert_eq!(pair.queries(), [(1, true, false)]);
    for echo in [1, u64::MAX] {
        let forged = pair.forged(0, echo);
        pair.inject_query(&forged);
    }
    let others: [fn(&mut (Ethernet, PeerQuery)); 7] = [
        |(ethernet, _)| ethernet.src = MacAddr([2, 0, 0, 0, 9, 9]),
        |(ethernet, _)| ethernet.dst = MacAddr([0xff; 6]),
        |(_, query)| query.from.qpn ^= 1,
        |(_, query)| query.from.gid = Gid::from_ipv4([10, 0, 0, 99]),
        |(_, query)| query.to.qpn ^= 0x10_0000,
        |(_, query)| query.to.qpn = u32::MAX,
        |(_, query)| query.to.gid = Gid::from_ipv4([10, 0, 0, 99]),
    ];
    for change in others {
        let mut forged = pair.forged(7, 0);
        change(&mut forged);
        pair.inject_query(&forged);
    }
    pair.world.run_for(SERVICE);
    assert_eq!(pair.queries(), []);
    pair.absent.repair(&mut pair.world, &fault);
    pair.a.await_good(&mut pair.world, 1);
    assert_eq!(pair.counts(), [0, 0, 0]);
}

/// A liar with the addresses of the peer gets one frame for each of its own, which goes to the true peer. It learns nothing.
#[test]
fn a_flood_of_queries_is_answered_one_by_one() {
    const FLOOD: usize = 5000;
    let mut pair = Pair::new(FOREIGN);
    // Of a fault, so that B has something to ask.
    pair.write();
    pair.queries();
    let flood = pair.forged(7, 0);
    for _ in 0..FLOOD {
        let port = pair.world.all[1].peer(0).unwrap();
        port.send(octets(&flood.0, &flood.1));
    }
    pair.world.run_for(10 * MS);
    let answers = pair.queries();
    assert!(!answers.is_empty() && answers.len() <= FLOOD);
    assert!(answers.iter().all(|found| *found == (1, false, true)));
    pair.world.run_for(SECOND);
    for _ in 0..10 {
        pair.inject_query(&flood);
        pair.world.run_for(SECOND);
    }
    // Four queries of a connection, one of them for the fault.
    let asked = pair.queries().into_iter().filter(|(_, asks, _)| *asks);
    assert_eq!(asked.count(), 3);
    pair.write();
    assert_eq!(pair.counts(), [0, 0, 0]);
}

/// To be asked is no proof: the requester accepts READY after an answer to its own query only.
#[test]
fn a_forged_query_does_not_make_a_requester_accept_ready() {
    let mut pair = Pair::new([ReadyMode::Known, ReadyMode::Never]);
    pair.post();
    let fault = pair.absent.fault(&mut pair.world);
    pair.world.run_for(100 * US);
    let (ethernet, query) = pair.forged(7, 0);
    let (dst, src) = (ethernet.src, ethernet.dst);
    let to_a = Ethernet {
        dst,
        src,
        ..ethernet
    };
    let query = PeerQuery {
        from: query.to,
        to: query.from,
        ..query
    };
    pair.inject(0, octets(&to_a, &query));
    let ip = Ip::from_gids(query.from.gid, query.to.gid, 0, 0, 64);
    let bth = Bth::new(Opcode::Ready, query.to.qpn, Psn::new(0));
    for _ in 0..10 {
        pair.inject(0, packet(&RoceHeader::new(dst, src, ip, bth)));
    }
    assert_eq!(pair.counts(), [0, 0, 10]);
    assert_eq!(pair.queries(), [(0, true, true)]);
    pair.absent.repair(&mut pair.world, &fault);
    pair.a.await_good(&mut pair.world, 1);
}

/// A peer that refuses and calls in turn uses up the retries of the request, as one that only refuses.
#[test]
fn a_peer_cannot_make_a_request_be_sent_without_end() {
    const RETRIES: u8 = 3;
    let mut world =
        Processes::with_config(&nic_and_port(), &|config| config.ready = ReadyMode::Always)
            .unwrap();
    let mut end = End::new(&mut world, A, QPT_RC, (4, LEN));
    let (mac, gid) = (MacAddr([2, 0, 0, 0, 9, 9]), Gid::from_ipv4([10, 0, 0, 99]));
    let path = Connect {
        rnr_retry: RETRIES,
        ..Connect::to(gid, mac, 77)
    };
    end.connect(&mut world, &path);
    end.write_to(&mut world, (0, 1), 64);
    let host = world.at(A);
    let ip = Ip::from_gids(gid, host.gid, 0, 0, 64);
    let header = |opcode| {
        let bth = Bth::new(opcode, end.qp.qpn, Psn::new(0));
        RoceHeader::new(host.mac, mac, ip, bth)
    };
    let mut nak = header(Opcode::RcAcknowledge);
    nak.aeth = Some(Aeth {
        syndrome: Syndrome::RnrNak { timer: 20 },
        msn: 0,
    });
    let (nak, ready) = (packet(&nak), packet(&header(Opcode::Ready)));
    let mut sent = 0;
    // READY ends the waits, which would be 10 ms each.
    for _ in 0..100 {
        world.run_for(10 * US);
        let port = world.all[0].peer(0).unwrap();
        let requests = std::iter::from_fn(|| port.take());
        let is_request = |frame: &Vec<u8>| {
            let parsed = parse_trusted(frame).ok();
            parsed.is_some_and(|parsed| parsed.header.bth.opcode == Opcode::RcWriteOnly)
        };
        let requests = requests.filter(is_request).count();
        sent += requests;
        if requests > 0 {
            port.send(nak.clone());
            port.send(ready.clone());
        }
    }
    assert_eq!(sent, 1 + usize::from(RETRIES));
    assert_eq!(end.statuses(&mut world), [RNR_RETRY_EXC_ERR]);
}
