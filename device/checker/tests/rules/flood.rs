//! Adapters that fill the checker's memory: it respects its budget, discards without false findings, and discards no data of other
//! adapters.

use Opcode::*;
use faultline_checker::{Checker, Place, QueuePair, Rule};
use faultline_wire::packet::RoceHeader;
use faultline_wire::{Opcode, Syndrome};

use crate::streams::Stream;
use crate::talk::{QPN, bytes, gid, mac, request, response};

/// Memory of the checker in most tests.
const LIMIT: usize = 2 << 20;
/// The adapters that flood the checker with packets to each other.
const NOISY: [usize; 2] = [0, 1];
/// Their neighbours.
const QUIET: [usize; 2] = [2, 3];

/// Adapters of a running process, some of which flood the checker.
struct Process {
    checker: Checker,
    /// Memory of the checker.
    limit: usize,
    /// Maximum number of bytes in use.
    most: usize,
}

impl Process {
    fn new(limit: usize) -> Self {
        let mut checker = Checker::new(Place::Link);
        checker.limit_memory(limit);
        Self {
            checker,
            limit,
            most: 0,
        }
    }

    /// A packet from an end of a connection to the other one. The numbers of its queue pairs are `qpns`.
    fn pass(
        &mut self,
        [from, to]: [usize; 2],
        qpns: [u32; 2],
        (mut header, payload): (RoceHeader, usize),
    ) {
        let mut gids = RoceHeader::new(mac(to), mac(from), header.ip, header.bth);
        gids.ip = faultline_wire::Ip::from_gids(gid(from), gid(to), 0, 0, 64);
        (header.ethernet, header.ip) = (gids.ethernet, gids.ip);
        header.bth.dest_qp = qpns[1];
        let frame = bytes(&header, payload);
        let sender = QueuePair {
            qpn: qpns[0],
            mtu: Some(1024),
            read_limit: None,
        };
        self.checker.sent(0, from, Some(sender), &frame);
        self.check();
        self.checker.received(0, to, &frame);
        self.check();
    }

    fn request(&mut self, between: [usize; 2], qpns: [u32; 2], opcode: Opcode, psn: u32) {
        self.pass(between, qpns, request(opcode, psn, 8));
    }

    /// The responder of a connection acknowledges a request.
    fn ack(&mut self, [from, to]: [usize; 2], [own, other]: [u32; 2], psn: u32, msn: u32) {
        let ack = response(RcAcknowledge, psn, Syndrome::ACK, msn);
        self.pass([to, from], [other, own], (ack, 0));
    }

    fn check(&mut self) {
        let bytes = self.checker.bytes();
        assert!(bytes <= self.limit, "{bytes} bytes");
        self.most = self.most.max(bytes);
    }

    #[track_caller]
    fn found(&self, expected: &[Rule]) {
        let found = self.checker.violations();
        let rules: Vec<Rule> = found.iter().map(|violation| violation.rule).collect();
        let first: Vec<String> = found.iter().take(5).map(ToString::to_string).collect();
        assert!(rules == expected, "{} found: {first:#?}", rules.len());
    }
}

/// The queue pairs of a connection.
fn pair(connection: u32) -> [u32; 2] {
    [QPN[0] + 2 * connection, QPN[1] + 2 * connection]
}

#[test]
fn requests_of_many_connections_respect_the_memory_budget() {
    const CONNECTIONS: u32 = 300;
    let mut process = Process::new(LIMIT);
    for psn in 0..20 {
        process.request(QUIET, pair(0), RcSendOnly, psn);
    }
    process.ack(QUIET, pair(0), 9, 10);
    // None of them is answered.
    for psn in 0..100 {
        for connection in 0..CONNECTIONS {
            process.request(NOISY, pair(connection), RcReadRequest, psn);
        }
    }
    let forgotten = process.checker.forgotten();
    assert!(forgotten > u64::from(CONNECTIONS), "{forgotten}");
    assert!(process.most > LIMIT / 8 * 5, "{} bytes", process.most);
    // They continue, some with repetitions of discarded requests, and are answered.
    for connection in 0..CONNECTIONS {
        let first = [100, 95, 3][connection as usize % 3];
        for psn in first..110 {
            process.request(NOISY, pair(connection), RcReadRequest, psn);
        }
        for psn in 0..110 {
            let read = response(RcReadResponseOnly, psn, Syndrome::ACK, psn + 1);
            let [own, other] = pair(connection);
            process.pass([1, 0], [other, own], (read, 8));
        }
    }
    process.found(&[]);
    // No data of the neighbours was discarded: neither the start of their connection with PSN 0 nor its requests.
    process.ack(QUIET, pair(0), 5, 6);
    process.ack(QUIET, pair(0), 30, 31);
    process.request(QUIET, pair(0), RcWriteOnly, 3);
    process.found(&[Rule::AckOrder, Rule::ResponsePsn, Rule::Repetition]);
    let of_noisy = NOISY.map(|adapter| process.checker.count_of(Some(adapter)));
    assert_eq!(of_noisy, [0, 0]);
}

/// More connections than the limit replace neither connections of the neighbours nor the responses of a queue pair.
#[test]
fn many_connections_replace_no_neighbour() {
    let mut process = Process::new(32 * LIMIT);
    process.request(QUIET, pair(0), RcReadRequest, 0);
    for connection in 0..2 * u32::try_from(faultline_checker::FLOW_LIMIT).unwrap() {
        process.request(NOISY, pair(connection), RcSendOnly, 0);
        process.ack(NOISY, pair(connection), 0, 1);
    }
    assert!(process.checker.forgotten() > 0);
    process.found(&[]);
    process.ack(QUIET, pair(0), 7, 1);
    process.found(&[Rule::ResponsePsn]);
}

/// Answered requests are discarded before connections: later findings show that the connections are still judged.
#[test]
fn answered_requests_are_discarded_first() {
    const CONNECTIONS: u32 = 8;
    let mut process = Process::new(LIMIT);
    for psn in 0..4000 {
        for connection in 0..CONNECTIONS {
            process.request(NOISY, pair(connection), RcReadRequest, psn);
            let read = response(RcReadResponseOnly, psn, Syndrome::ACK, psn + 1);
            let [own, other] = pair(connection);
            process.pass([1, 0], [other, own], (read, 8));
        }
    }
    assert!(process.checker.forgotten() > 0);
    // The network duplicates an old request that was discarded, and the responder answers it again, or refuses it.
    let old = request(RcReadRequest, 5, 8);
    let [own, other] = pair(0);
    process.pass(NOISY, [own, other], old);
    let read = response(RcReadResponseOnly, 5, Syndrome::ACK, 6);
    process.pass([1, 0], [other, own], (read, 8));
    let refused = response(RcAcknowledge, 6, Syndrome::RnrNak { timer: 1 }, 6);
    process.pass([1, 0], [other, own], (refused, 0));
    let atomic = response(RcAtomicAcknowledge, 7, Syndrome::ACK, 7);
    process.pass([1, 0], [other, own], (atomic, 0));
    process.found(&[]);
    for connection in 0..CONNECTIONS {
        process.ack(NOISY, pair(connection), 4100, 4000);
    }
    process.found(&[Rule::ResponsePsn; CONNECTIONS as usize]);
}

/// Violations of one adapter leave room for those of another.
#[test]
fn violations_respect_the_memory_budget() {
    let mut process = Process::new(LIMIT);
    let wrong = |process: &mut Process, from: usize| {
        let (mut header, payload) = request(RcSendOnly, 0, 8);
        header.bth.pad = 0;
        header.bth.becn = true;
        process.pass([from, 9], pair(0), (header, payload));
    };
    for from in 0..8 {
        for _ in 0..400 {
            wrong(&mut process, from);
        }
    }
    for from in 0..8 {
        assert_eq!(process.checker.count_of(Some(from)), 400);
        let violations = process.checker.violations().iter();
        let kept = violations.filter(|of| of.adapter == Some(from)).count();
        assert!((100..400).contains(&kept), "{kept} of adapter {from}");
    }
}

/// Discarding data after any packet of a good stream causes no findings in its rest.
#[test]
fn discarded_data_causes_no_findings() {
    for stream in Stream::all() {
        for knows_senders in [false, true] {
            for at in 0..stream.packets.len() {
                let mut checker = Checker::new(Place::Link);
                for (number, sent) in stream.packets.iter().enumerate() {
                    checker.limit_memory(if number == at { 0 } else { LIMIT });
                    let from = usize::from(sent.header.ethernet.src != mac(0));
                    match knows_senders {
                        false => checker.passed(0, &sent.frame),
                        true => {
                            checker.sent(0, from, None, &sent.frame);
                            checker.received(0, 1 - from, &sent.frame);
                        }
                    }
                }
                let found = checker.violations();
                assert!(found.is_empty(), "{} at {at}: {found:#?}", stream.name);
            }
        }
    }
}
