//! Each rule: what violates it is found, and what comes closest to that and is legal is not.

#![cfg(test)]

use Opcode::*;
use faultline_oracle::{Frame, Oracle, Place, QueuePair, Rule, VIOLATION_LIMIT};
use faultline_wire::packet::{RoceHeader, seal};
use faultline_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Gid, Headers, Ip, MacAddr, NakCode, Opcode,
    Psn, Reth, Syndrome,
};

const MTU: u32 = 1024;
/// The queue pairs of the two adapters.
const QPN: [u32; 2] = [0x11, 0x12];
const US: u64 = 1000;

/// A conversation of two adapters, 0 (requester) and 1, which the oracle sees at both.
struct Talk {
    oracle: Oracle,
    now: u64,
    /// READs that each queue pair may have outstanding.
    read_limit: Option<u32>,
}

fn gid(adapter: usize) -> Gid {
    Gid::from_ipv4([10, 0, 0, u8::try_from(adapter).unwrap() + 1])
}

fn mac(adapter: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, u8::try_from(adapter).unwrap() + 1])
}

/// Headers of a packet from adapter `from` to the other one.
fn header(from: usize, opcode: Opcode, psn: u32) -> RoceHeader {
    let to = 1 - from;
    let ip = Ip::from_gids(gid(from), gid(to), 0, 0, 64);
    let bth = Bth {
        opcode,
        solicited: false,
        migration: true,
        pad: 0,
        version: 0,
        pkey: 0xffff,
        fecn: false,
        becn: false,
        dest_qp: QPN[to],
        ack_req: false,
        psn: Psn::new(psn),
    };
    let mut header = RoceHeader::new(mac(to), mac(from), ip, bth);
    let has = |set| opcode.has(set);
    header.reth = has(Headers::RETH).then_some(Reth {
        addr: 0x1000,
        rkey: 5,
        len: 0,
    });
    header.atomic = has(Headers::ATOMIC_ETH).then_some(AtomicEth {
        addr: 0x1000,
        rkey: 5,
        swap_add: 1,
        compare: 0,
    });
    header.deth = has(Headers::DETH).then_some(Deth {
        qkey: 1,
        src_qp: QPN[from],
    });
    header.imm = has(Headers::IMM).then_some(7);
    header.ieth = has(Headers::IETH).then_some(5);
    header.feth = has(Headers::FETH).then_some(Feth {
        selectivity: 0,
        placement: 1,
    });
    header
}

fn bytes(header: &RoceHeader, payload: usize) -> Vec<u8> {
    let mut bytes = vec![0; header.frame_len(payload)];
    header.emit(payload, &mut bytes).unwrap();
    seal(&mut bytes).unwrap();
    bytes
}

fn request(opcode: Opcode, psn: u32, len: u32) -> (RoceHeader, usize) {
    let mut header = header(0, opcode, psn);
    let payload = if opcode.info().payload { len } else { 0 };
    if let Some(reth) = &mut header.reth {
        reth.len = len;
    }
    (header, payload as usize)
}

fn response(opcode: Opcode, psn: u32, syndrome: Syndrome, msn: u32) -> RoceHeader {
    let mut header = header(1, opcode, psn);
    header.aeth = opcode.has(Headers::AETH).then_some(Aeth { syndrome, msn });
    header.atomic_ack = opcode
        .has(Headers::ATOMIC_ACK_ETH)
        .then_some(AtomicAckEth { original: 1 });
    header
}

impl Talk {
    fn new() -> Self {
        Self {
            oracle: Oracle::new(Place::Adapter),
            now: 0,
            read_limit: None,
        }
    }

    /// A frame leaves an adapter and arrives at the other one, unless it is lost.
    fn frame(&mut self, from: usize, frame: &[u8], is_lost: bool) {
        self.now += US;
        let sender = QueuePair {
            qpn: QPN[from],
            mtu: Some(MTU),
            read_limit: self.read_limit,
        };
        self.oracle.sent(self.now, from, Some(sender), frame);
        if !is_lost {
            self.now += US;
            self.oracle.received(self.now, 1 - from, frame);
        }
    }

    fn request(&mut self, opcode: Opcode, psn: u32, len: u32) {
        let (header, payload) = request(opcode, psn, len);
        self.frame(0, &bytes(&header, payload), false);
    }

    fn lost_request(&mut self, opcode: Opcode, psn: u32, len: u32) {
        let (header, payload) = request(opcode, psn, len);
        self.frame(0, &bytes(&header, payload), true);
    }

    /// A request that asks for an acknowledgement.
    fn asking_request(&mut self, opcode: Opcode, psn: u32, len: u32) {
        let (mut header, payload) = request(opcode, psn, len);
        header.bth.ack_req = true;
        self.frame(0, &bytes(&header, payload), false);
    }

    fn ack(&mut self, psn: u32, msn: u32) {
        self.respond(RcAcknowledge, psn, Syndrome::ACK, msn, 0);
    }

    /// An ACK with this credit code.
    fn credits(&mut self, psn: u32, msn: u32, credits: u8) {
        self.respond(RcAcknowledge, psn, Syndrome::Ack { credits }, msn, 0);
    }

    fn nak(&mut self, psn: u32, code: NakCode, msn: u32) {
        self.respond(RcAcknowledge, psn, Syndrome::Nak(code), msn, 0);
    }

    fn rnr(&mut self, psn: u32, msn: u32) {
        // Timer code 1: 10 microseconds.
        self.respond(RcAcknowledge, psn, Syndrome::RnrNak { timer: 1 }, msn, 0);
    }

    fn read_response(&mut self, opcode: Opcode, psn: u32, msn: u32, len: usize) {
        self.respond(opcode, psn, Syndrome::ACK, msn, len);
    }

    fn respond(&mut self, opcode: Opcode, psn: u32, syndrome: Syndrome, msn: u32, len: usize) {
        self.frame(1, &bytes(&response(opcode, psn, syndrome, msn), len), false);
    }

    /// Rules that adapter 0 has violated.
    fn of_requester(&self) -> Vec<Rule> {
        let violations = self.oracle.violations().iter();
        let own = violations.filter(|violation| violation.adapter == Some(0));
        own.map(|violation| violation.rule).collect()
    }

    #[track_caller]
    fn clean(&self) {
        let found: Vec<String> = self
            .oracle
            .violations()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert!(found.is_empty(), "{found:#?}");
    }

    /// Exactly this rule was violated.
    #[track_caller]
    fn violates(&self, rule: Rule) {
        let found = self.oracle.violations();
        assert!(
            !found.is_empty() && found.iter().all(|violation| violation.rule == rule),
            "{found:#?}"
        );
    }
}

#[test]
fn a_connection_without_faults_is_clean() {
    let mut talk = Talk::new();
    talk.request(RcSendFirst, 0xff_fffe, MTU);
    talk.request(RcSendMiddle, 0xff_ffff, MTU);
    talk.request(RcSendLast, 0, 3);
    talk.ack(0, 1);
    let (mut first, len) = request(RcWriteFirst, 1, MTU);
    first.reth.as_mut().unwrap().len = MTU + 4;
    talk.frame(0, &bytes(&first, len), false);
    talk.request(RcWriteLast, 2, 4);
    talk.request(RcReadRequest, 3, 2 * MTU + 1);
    talk.request(RcFetchAdd, 6, 0);
    talk.ack(2, 2);
    talk.read_response(RcReadResponseFirst, 3, 3, MTU as usize);
    talk.read_response(RcReadResponseMiddle, 4, 3, MTU as usize);
    talk.read_response(RcReadResponseLast, 5, 3, 1);
    talk.respond(RcAtomicAcknowledge, 6, Syndrome::ACK, 4, 0);
    talk.request(RcSendOnlyWithImmediate, 7, 0);
    talk.ack(7, 5);
    talk.clean();
    assert_eq!(talk.oracle.packets(), 15);
    assert_eq!(talk.oracle.responses_without_flow(), 0);
}

#[test]
fn losses_and_refusals_are_clean() {
    let mut talk = Talk::new();
    talk.request(RcSendOnly, 0, 8);
    talk.ack(0, 1);
    talk.lost_request(RcSendOnly, 1, 8);
    talk.request(RcSendOnly, 2, 8);
    talk.nak(1, NakCode::PsnSequenceError, 1);
    talk.request(RcSendOnly, 1, 8);
    talk.rnr(1, 1);
    talk.now += 10 * US;
    talk.request(RcSendOnly, 1, 8);
    talk.request(RcSendOnly, 2, 8);
    talk.ack(2, 3);
    // An acknowledgement that is repeated while the requester waits does not end the wait.
    talk.request(RcSendOnly, 3, 8);
    talk.rnr(3, 3);
    talk.ack(2, 3);
    talk.now += 10 * US;
    talk.request(RcSendOnly, 3, 8);
    talk.ack(3, 4);
    talk.clean();
}

#[test]
fn a_read_is_continued_where_a_response_was_lost() {
    let mut talk = Talk::new();
    talk.request(RcSendOnly, 0, 8);
    talk.ack(0, 1);
    talk.request(RcReadRequest, 1, 3 * MTU);
    talk.read_response(RcReadResponseFirst, 1, 2, MTU as usize);
    let lost = response(RcReadResponseMiddle, 2, Syndrome::ACK, 2);
    talk.frame(1, &bytes(&lost, MTU as usize), true);
    talk.read_response(RcReadResponseLast, 3, 2, MTU as usize);
    let (mut rest, _) = request(RcReadRequest, 2, 2 * MTU);
    rest.reth.as_mut().unwrap().addr += u64::from(MTU);
    talk.frame(0, &bytes(&rest, 0), false);
    talk.read_response(RcReadResponseFirst, 2, 2, MTU as usize);
    talk.read_response(RcReadResponseLast, 3, 2, MTU as usize);
    talk.clean();
    // Another address is another request.
    rest.reth.as_mut().unwrap().addr += 1;
    talk.frame(0, &bytes(&rest, 0), false);
    talk.violates(Rule::Repetition);
}

#[test]
fn packets_alone() {
    /// Changes the header of a good packet, and returns the length of its payload.
    type Change = fn(&mut RoceHeader) -> usize;
    let cases: [(Rule, Change); 8] = [
        (Rule::FixedField, |h| {
            h.ethernet.src = MacAddr([1, 0, 0, 0, 0, 1]);
            8
        }),
        (Rule::FixedField, |h| {
            h.bth.pkey = 0x8000;
            8
        }),
        (Rule::FixedField, |h| {
            h.bth.becn = true;
            8
        }),
        (Rule::FixedField, |h| {
            let Ip::V4(ip) = &mut h.ip else { panic!() };
            ip.ttl = 0;
            8
        }),
        (Rule::FixedField, |h| {
            let Ip::V4(ip) = &mut h.ip else { panic!() };
            ip.dont_fragment = false;
            8
        }),
        (Rule::PayloadLength, |h| {
            h.bth.opcode = RcSendFirst;
            1000
        }),
        (Rule::PayloadLength, |_| 4097),
        (Rule::MessageLength, |h| {
            h.bth.opcode = RcWriteOnly;
            h.reth = Some(Reth {
                addr: 0,
                rkey: 0,
                len: 9,
            });
            8
        }),
    ];
    for (rule, change) in cases {
        let mut talk = Talk::new();
        let mut header = header(0, RcSendOnly, 0);
        let len = change(&mut header);
        talk.frame(0, &bytes(&header, len), false);
        talk.violates(rule);
    }
}

#[test]
fn octets_of_packets() {
    let good = bytes(&header(0, RcSendOnly, 0), 5);
    let changes: [(Rule, usize, u8); 3] = [
        // The payload.
        (Rule::InvariantCrc, 54, 1),
        // The transport version.
        (Rule::WellFormed, 43, 1),
        // The destination of an ordinary packet: it is not RoCE, and not judged.
        (Rule::Cnp, 37, 1),
    ];
    for (rule, at, bit) in changes {
        let mut talk = Talk::new();
        let mut bad = good.clone();
        bad[at] ^= bit;
        talk.frame(0, &bad, false);
        match rule {
            Rule::Cnp => talk.clean(),
            _ => talk.violates(rule),
        }
    }
    // Pad octets with a right CRC: the CRC covers them.
    let mut bad = good.clone();
    let end = bad.len() - 4;
    bad[end - 1] = 1;
    let crc = faultline_wire::icrc::icrc(&bad[14..end]).unwrap();
    bad[end..].copy_from_slice(&crc.to_le_bytes());
    let mut talk = Talk::new();
    talk.frame(0, &bad, false);
    talk.violates(Rule::Padding);
}

#[test]
fn psns_of_requests() {
    let mut talk = Talk::new();
    talk.request(RcSendOnly, 0, 8);
    talk.request(RcSendOnly, 2, 8);
    talk.violates(Rule::RequestPsn);

    let mut talk = Talk::new();
    for psn in [0, 1, 1] {
        let (mut uc, len) = request(RcSendOnly, psn, 8);
        uc.bth.opcode = UcSendOnly;
        talk.frame(0, &bytes(&uc, len), false);
    }
    talk.violates(Rule::RequestPsn);
}

#[test]
fn sequences_of_opcodes() {
    let start = |opcode| {
        let mut talk = Talk::new();
        talk.request(RcSendOnly, 0, 8);
        talk.request(opcode, 1, MTU);
        talk
    };
    let mut talk = start(RcSendFirst);
    talk.request(RcSendOnly, 2, 8);
    talk.violates(Rule::OpcodeSequence);
    let mut talk = start(RcSendFirst);
    talk.request(RcWriteLast, 2, 8);
    talk.violates(Rule::OpcodeSequence);
    start(RcSendMiddle).violates(Rule::OpcodeSequence);
    let mut talk = Talk::new();
    let (mut first, len) = request(RcWriteFirst, 1, MTU);
    first.reth.as_mut().unwrap().len = MTU + 4;
    talk.frame(0, &bytes(&first, len), false);
    talk.request(RcWriteLast, 2, 5);
    talk.violates(Rule::MessageLength);
}

#[test]
fn repetitions() {
    let mut talk = Talk::new();
    talk.request(RcSendOnly, 0, 8);
    talk.request(RcWriteOnly, 1, 8);
    talk.request(RcWriteOnly, 1, 8);
    talk.clean();
    talk.request(RcSendOnly, 1, 8);
    talk.violates(Rule::Repetition);

    let mut talk = Talk::new();
    talk.request(RcSendOnly, 0, 8);
    talk.request(RcSendOnly, 1, 8);
    talk.ack(0, 1);
    talk.request(RcSendOnly, 0, 8);
    talk.violates(Rule::RepeatedAfterAck);

    // The acknowledgement is lost.
    let mut talk = Talk::new();
    talk.request(RcSendOnly, 0, 8);
    let lost = response(RcAcknowledge, 0, Syndrome::ACK, 1);
    talk.frame(1, &bytes(&lost, 0), true);
    talk.request(RcSendOnly, 0, 8);
    talk.ack(0, 1);
    talk.clean();
}

#[test]
fn the_window_of_psns() {
    let mut talk = Talk::new();
    let (mut big, _) = request(RcReadRequest, 0, 0);
    big.reth.as_mut().unwrap().len = 1 << 31;
    talk.frame(0, &bytes(&big, 0), true);
    talk.clean();
    // 2^21 PSNs each.
    for n in 1..4 {
        big.bth.psn = Psn::new(n << 21);
        talk.frame(0, &bytes(&big, 0), true);
    }
    talk.violates(Rule::Outstanding);
}

/// A requester that may send `credits` messages after the first one, as the ACK of that says.
fn with_credits(credits: u8) -> Talk {
    let mut talk = Talk::new();
    talk.request(RcSendOnly, 0, 8);
    talk.credits(0, 1, credits);
    talk
}

#[test]
fn messages_without_credits() {
    for opcode in [
        RcSendFirst,
        RcSendOnly,
        RcSendOnlyWithImmediate,
        RcSendOnlyWithInvalidate,
        RcWriteOnlyWithImmediate,
    ] {
        let mut talk = with_credits(2);
        talk.request(RcSendOnly, 1, 8);
        talk.request(RcSendOnlyWithImmediate, 2, 8);
        talk.clean();
        talk.request(opcode, 3, MTU);
        talk.violates(Rule::Credits);
        assert_eq!(talk.oracle.violations().len(), 1, "{opcode:?}");
    }
    // Messages that take no receive request count, and are not limited.
    let mut talk = with_credits(1);
    for (psn, opcode) in [(1, RcWriteOnly), (2, RcReadRequest), (3, RcFetchAdd)] {
        talk.request(opcode, psn, 8);
    }
    talk.clean();
    talk.request(RcSendOnly, 4, 8);
    talk.violates(Rule::Credits);
}

#[test]
fn nothing_follows_a_message_without_credits() {
    let start = || {
        let mut talk = with_credits(0);
        talk.asking_request(RcSendFirst, 1, MTU);
        talk.clean();
        talk
    };
    for (opcode, len) in [(RcSendMiddle, MTU), (RcSendLast, 8)] {
        let mut talk = start();
        talk.request(opcode, 2, len);
        talk.violates(Rule::Credits);
    }
    let mut talk = with_credits(0);
    talk.asking_request(RcSendOnly, 1, 8);
    talk.request(RcWriteOnly, 2, 8);
    talk.violates(Rule::Credits);
    // Its ACK permits the rest of the message, also without more credits. The next message is limited again.
    let mut talk = start();
    talk.request(RcSendFirst, 1, MTU);
    talk.credits(1, 1, 0);
    talk.request(RcSendMiddle, 2, MTU);
    talk.request(RcSendLast, 3, 8);
    talk.request(RcWriteOnly, 4, 8);
    talk.asking_request(RcSendOnly, 5, 8);
    talk.clean();
    talk.request(RcSendOnly, 6, 8);
    talk.violates(Rule::Credits);
    // An RNR NAK does not end the wait.
    let mut talk = start();
    talk.rnr(1, 1);
    talk.now += 10 * US;
    talk.asking_request(RcSendFirst, 1, MTU);
    talk.clean();
    talk.request(RcSendMiddle, 2, MTU);
    talk.violates(Rule::Credits);
    // More credits do.
    let mut talk = start();
    talk.credits(0, 1, 1);
    talk.request(RcSendMiddle, 2, MTU);
    talk.request(RcSendLast, 3, 8);
    talk.clean();
    talk.request(RcSendOnly, 4, 8);
    talk.violates(Rule::Credits);
}

#[test]
fn what_announces_credits() {
    // Nothing is limited before the first credits, and after the code that there are none.
    let mut talk = with_credits(0);
    talk.credits(0, 1, 31);
    for psn in 1..100 {
        talk.request(RcSendOnly, psn, 8);
    }
    talk.clean();
    talk.credits(99, 100, 1);
    talk.request(RcSendOnly, 100, 8);
    talk.clean();
    talk.request(RcSendOnly, 101, 8);
    talk.violates(Rule::Credits);
    // The limit does not go back.
    let mut talk = with_credits(2);
    talk.request(RcSendOnly, 1, 8);
    talk.credits(1, 2, 0);
    talk.request(RcSendOnly, 2, 8);
    talk.clean();
    talk.request(RcSendOnly, 3, 8);
    talk.violates(Rule::Credits);
    // Messages that have begun with credits go on, whatever comes meanwhile.
    let mut talk = with_credits(1);
    talk.request(RcSendFirst, 1, MTU);
    talk.credits(1, 1, 0);
    talk.request(RcSendMiddle, 2, MTU);
    talk.request(RcSendLast, 3, 8);
    talk.clean();
    // The message of an acknowledgement that is lost, and its credits.
    let mut talk = with_credits(1);
    talk.request(RcSendOnly, 1, 8);
    let lost = response(RcAcknowledge, 1, Syndrome::Ack { credits: 1 }, 2);
    talk.frame(1, &bytes(&lost, 0), true);
    talk.request(RcSendOnly, 2, 8);
    talk.violates(Rule::Credits);
    // A response with data may say that messages after its own are completed.
    let mut talk = with_credits(3);
    talk.request(RcReadRequest, 1, 8);
    talk.request(RcSendOnly, 2, 8);
    talk.request(RcSendOnly, 3, 8);
    let read = Syndrome::Ack { credits: 1 };
    talk.respond(RcReadResponseOnly, 1, read, 4, 8);
    talk.request(RcSendOnly, 4, 8);
    talk.clean();
    talk.request(RcSendOnly, 5, 8);
    talk.violates(Rule::Credits);
}

/// A response with data that comes before the first ACK permits messages, too.
#[test]
fn a_response_with_data_announces_credits_first() {
    let mut talk = Talk::new();
    talk.request(RcReadRequest, 0, 8);
    talk.respond(RcReadResponseOnly, 0, Syndrome::Ack { credits: 3 }, 1, 8);
    talk.request(RcSendOnly, 1, 8);
    talk.credits(1, 2, 0);
    talk.request(RcSendOnly, 2, 8);
    talk.request(RcSendOnly, 3, 8);
    talk.clean();
    talk.request(RcSendOnly, 4, 8);
    talk.violates(Rule::Credits);
}

/// Where it is not known which ACKs the requester has got, or what it has sent, no message is limited.
#[test]
fn credits_are_not_judged_where_packets_are_missing() {
    let mut link = Link::new();
    link.request(RcSendOnly, 0, 8);
    link.pass(
        1,
        &response(RcAcknowledge, 0, Syndrome::Ack { credits: 0 }, 1),
        0,
    );
    link.request(RcSendOnly, 1, 8);
    assert_eq!(link.found(), []);
    // The beginning of the first message was not seen.
    let mut talk = Talk::new();
    talk.request(RcSendLast, 0, 8);
    talk.credits(0, 1, 0);
    talk.request(RcSendOnly, 1, 8);
    talk.clean();
    let mut talk = with_credits(0);
    talk.oracle.set_remote(0);
    talk.request(RcSendOnly, 1, 8);
    talk.clean();
    // The immediate of a longer WRITE is in its last packet only.
    let mut talk = with_credits(0);
    let (mut first, len) = request(RcWriteFirst, 1, MTU);
    first.reth.as_mut().unwrap().len = MTU + 4;
    talk.frame(0, &bytes(&first, len), false);
    talk.request(RcWriteLastWithImmediate, 2, 4);
    talk.clean();
}

#[test]
fn pauses() {
    let mut talk = Talk::new();
    talk.request(RcSendOnly, 0, 8);
    talk.rnr(0, 0);
    // One microsecond too early.
    talk.now += 8 * US;
    talk.request(RcSendOnly, 0, 8);
    talk.violates(Rule::RnrWait);

    let mut talk = Talk::new();
    talk.request(RcWriteOnly, 0, 8);
    talk.nak(0, NakCode::RemoteAccessError, 0);
    talk.clean();
    talk.request(RcWriteOnly, 1, 8);
    talk.violates(Rule::SentAfterFailure);
    // After that it is another connection.
    talk.oracle.renew(0, QPN[0]);
    let before = talk.oracle.violations().len();
    talk.request(RcWriteOnly, 77, 8);
    assert_eq!(talk.oracle.violations().len(), before);
}

#[test]
fn psns_of_responses() {
    let start = || {
        let mut talk = Talk::new();
        talk.request(RcSendOnly, 0, 8);
        talk.ack(0, 1);
        talk.request(RcSendOnly, 1, 8);
        talk
    };
    let mut talk = start();
    talk.ack(2, 2);
    talk.violates(Rule::ResponsePsn);
    let mut talk = start();
    talk.lost_request(RcSendOnly, 2, 8);
    talk.rnr(2, 1);
    talk.violates(Rule::ResponsePsn);
    let mut talk = start();
    talk.ack(1, 2);
    talk.ack(0, 1);
    talk.violates(Rule::AckOrder);
    let mut talk = start();
    talk.ack(1, 2);
    talk.rnr(0, 0);
    talk.violates(Rule::AckOrder);
    let mut talk = start();
    talk.request(RcReadRequest, 2, 8);
    talk.request(RcSendOnly, 3, 8);
    talk.ack(3, 4);
    talk.violates(Rule::ResponseOrder);
    let mut talk = start();
    talk.ack(1, 3);
    talk.violates(Rule::Msn);
    let mut talk = start();
    talk.respond(RcAtomicAcknowledge, 1, Syndrome::ACK, 2, 0);
    talk.violates(Rule::ResponsePsn);
}

#[test]
fn sequence_naks() {
    let start = || {
        let mut talk = Talk::new();
        talk.request(RcSendOnly, 0, 8);
        talk.ack(0, 1);
        talk.lost_request(RcSendOnly, 1, 8);
        talk.request(RcSendOnly, 2, 8);
        talk
    };
    let mut talk = start();
    talk.nak(0, NakCode::PsnSequenceError, 0);
    talk.violates(Rule::SequenceNak);
    let mut talk = start();
    talk.nak(2, NakCode::PsnSequenceError, 1);
    talk.violates(Rule::ResponsePsn);
    let mut talk = start();
    talk.nak(1, NakCode::PsnSequenceError, 1);
    talk.clean();
    talk.nak(1, NakCode::PsnSequenceError, 1);
    talk.violates(Rule::SequenceNak);
}

#[test]
fn read_responses() {
    let start = || {
        let mut talk = Talk::new();
        talk.request(RcSendOnly, 0, 8);
        talk.ack(0, 1);
        talk.request(RcReadRequest, 1, MTU + 8);
        talk
    };
    let mtu = MTU as usize;
    let mut talk = start();
    talk.read_response(RcReadResponseFirst, 1, 2, mtu);
    talk.read_response(RcReadResponseLast, 2, 2, 7);
    talk.violates(Rule::ReadResponse);
    let mut talk = start();
    talk.read_response(RcReadResponseOnly, 1, 2, mtu);
    talk.violates(Rule::ReadResponse);
    let mut talk = start();
    talk.read_response(RcReadResponseLast, 2, 2, 8);
    talk.violates(Rule::ReadResponse);
    let mut talk = start();
    talk.read_response(RcReadResponseFirst, 0, 2, mtu);
    talk.violates(Rule::ReadResponse);
    let mut talk = start();
    talk.read_response(RcReadResponseFirst, 1, 2, mtu);
    talk.read_response(RcReadResponseFirst, 1, 2, mtu);
    talk.read_response(RcReadResponseLast, 2, 2, 8);
    talk.clean();
}

#[test]
fn gaps_of_remote_adapters_violate_nothing() {
    let start = |remote| {
        let mut talk = Talk::new();
        talk.oracle.set_remote(remote);
        talk.request(RcSendOnly, 0, 8);
        talk.ack(0, 1);
        talk
    };
    let mtu = MTU as usize;
    // A request was lost before it was seen; it is refused, and sent again.
    let mut talk = start(0);
    talk.request(RcSendOnly, 2, 8);
    talk.nak(1, NakCode::PsnSequenceError, 1);
    talk.request(RcSendOnly, 1, 8);
    talk.request(RcSendOnly, 2, 8);
    talk.ack(2, 3);
    talk.request(RcSendOnly, 3, 8);
    talk.clean();
    // Only the beginning of a message was lost.
    let mut talk = start(0);
    talk.request(RcSendLast, 2, 8);
    talk.request(RcSendOnly, 3, 8);
    talk.clean();
    // Another message follows one that has not ended: no packet is missing.
    let mut talk = start(0);
    talk.request(RcSendFirst, 1, MTU);
    talk.request(RcSendOnly, 2, 8);
    talk.violates(Rule::OpcodeSequence);
    // Responses: the first, the second and all of a READ.
    for lost in [&[1][..], &[2], &[1, 2, 3]] {
        let mut talk = start(1);
        talk.request(RcReadRequest, 1, 2 * MTU + 8);
        talk.request(RcSendOnly, 4, 8);
        for (opcode, psn, len) in [
            (RcReadResponseFirst, 1, mtu),
            (RcReadResponseMiddle, 2, mtu),
            (RcReadResponseLast, 3, 8),
        ] {
            if !lost.contains(&psn) {
                talk.read_response(opcode, psn, 2, len);
            }
        }
        talk.ack(4, 3);
        talk.clean();
        talk.ack(9, 3);
        talk.violates(Rule::ResponsePsn);
    }
}

#[test]
fn atomics_are_carried_out_once() {
    let mut talk = Talk::new();
    talk.request(RcFetchAdd, 0, 0);
    talk.respond(RcAtomicAcknowledge, 0, Syndrome::ACK, 1, 0);
    talk.request(RcFetchAdd, 0, 0);
    talk.respond(RcAtomicAcknowledge, 0, Syndrome::ACK, 1, 0);
    talk.clean();
    let mut other = response(RcAtomicAcknowledge, 0, Syndrome::ACK, 1);
    other.atomic_ack = Some(AtomicAckEth { original: 2 });
    talk.frame(1, &bytes(&other, 0), false);
    talk.violates(Rule::AtomicReplay);
}

#[test]
fn notifications_of_congestion() {
    let cnp = |talk: &mut Talk| {
        let mut cnp = header(1, Cnp, 0);
        cnp.bth.becn = true;
        talk.frame(1, &bytes(&cnp, 16), false);
    };
    let mut talk = Talk::new();
    talk.request(RcSendOnly, 0, 8);
    cnp(&mut talk);
    talk.violates(Rule::Cnp);
    let mut talk = Talk::new();
    let (mut marked, len) = request(RcSendOnly, 0, 8);
    marked.ip.set_ecn(3);
    talk.frame(0, &bytes(&marked, len), false);
    cnp(&mut talk);
    talk.clean();
}

/// On a link the senders of responses are not known, and are found by the PSNs.
#[test]
fn responses_on_a_link_find_their_requests() {
    let mut oracle = Oracle::new(Place::Link);
    let mut pass = |header: &RoceHeader, len| oracle.passed(0, &bytes(header, len));
    let (first, len) = request(RcSendOnly, 100, 8);
    pass(&first, len);
    pass(&response(RcAcknowledge, 100, Syndrome::ACK, 4), 0);
    pass(&request(RcSendOnly, 101, 8).0, 8);
    pass(&response(RcAcknowledge, 101, Syndrome::ACK, 7), 0);
    // An answer to no request.
    let mut stray = response(RcAcknowledge, 500, Syndrome::ACK, 4);
    stray.bth.dest_qp = 0x99;
    pass(&stray, 0);
    // Another connection of the same queue pair.
    pass(&request(RcSendOnly, 9_000_000, 8).0, 8);
    let rules: Vec<Rule> = oracle.violations().iter().map(|v| v.rule).collect();
    assert_eq!(rules, [Rule::Msn]);
    assert_eq!(oracle.responses_without_flow(), 1);
    let text = oracle.violations()[0].to_string();
    assert!(
        text.contains("frame 4") && text.contains("IBTA 9.7.7.1"),
        "{text}"
    );
}

/// Names are distinct, each rule has a source, and the documentation has them all.
#[test]
fn rules_have_names_and_sources() {
    let document = include_str!("../../../docs/packet-checker.md");
    let rows: Vec<&str> = document
        .lines()
        .skip_while(|line| *line != "## Rules")
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .filter(|line| line.starts_with("| `"))
        .collect();
    assert_eq!(rows.len(), Rule::ALL.len());
    for (rule, row) in Rule::ALL.iter().zip(rows) {
        let (start, end) = (
            format!("| `{}` | ", rule.name()),
            format!(" | {} |", rule.source()),
        );
        assert!(row.starts_with(&start) && row.ends_with(&end), "{row}");
    }
    let names: std::collections::BTreeSet<_> = Rule::ALL.iter().map(|rule| rule.name()).collect();
    assert_eq!(names.len(), Rule::ALL.len());
    assert!(
        Rule::ALL
            .iter()
            .all(|rule| rule.source().starts_with("IBTA"))
    );
}

/// A SEND that got an RNR NAK, then READY.
fn refused_and_ready(agreed: &[usize], ready_psn: u32) -> Talk {
    let mut talk = Talk::new();
    for adapter in agreed {
        talk.oracle.set_ready(*adapter, true);
    }
    talk.request(RcSendOnly, 5, 8);
    talk.rnr(5, 0);
    talk.respond(Ready, ready_psn, Syndrome::ACK, 0, 0);
    talk
}

#[test]
fn ready_needs_the_agreement_of_both_adapters() {
    for agreed in [&[][..], &[0], &[1]] {
        refused_and_ready(agreed, 5).violates(Rule::Ready);
    }
    let mut talk = refused_and_ready(&[0, 1], 5);
    // The requester does not wait for the 10 microseconds of the RNR NAK.
    talk.request(RcSendOnly, 5, 8);
    talk.ack(5, 1);
    talk.clean();
    // Without READY that is too early; an acknowledgement of what is before does not end the wait.
    let mut talk = Talk::new();
    talk.request(RcSendOnly, 4, 8);
    talk.ack(4, 1);
    talk.request(RcSendOnly, 5, 8);
    talk.rnr(5, 1);
    talk.ack(4, 1);
    talk.request(RcSendOnly, 5, 8);
    talk.violates(Rule::RnrWait);
    let mut talk = Talk::new();
    talk.oracle.set_all_ready();
    talk.request(RcSendOnly, 5, 8);
    talk.rnr(5, 0);
    talk.respond(Ready, 5, Syndrome::ACK, 0, 0);
    talk.clean();
}

#[test]
fn ready_is_about_a_request_that_got_an_rnr_nak() {
    refused_and_ready(&[0, 1], 4).violates(Rule::Ready);
    refused_and_ready(&[0, 1], 6).violates(Rule::Ready);
    let mut talk = Talk::new();
    talk.oracle.set_all_ready();
    talk.request(RcSendOnly, 5, 8);
    talk.respond(Ready, 5, Syndrome::ACK, 0, 0);
    talk.violates(Rule::Ready);
    // It is too late after the acknowledgement.
    let mut talk = refused_and_ready(&[0, 1], 5);
    talk.request(RcSendOnly, 5, 8);
    talk.ack(5, 1);
    talk.respond(Ready, 5, Syndrome::ACK, 0, 0);
    talk.violates(Rule::Ready);
}

/// One adapter's violations do not take the place of another's.
#[test]
fn violations_are_counted_and_kept_for_each_adapter() {
    let mut talk = Talk::new();
    let mut wrong = bytes(&header(0, RcSendOnly, 5), 0);
    *wrong.last_mut().unwrap() ^= 1;
    for _ in 0..=VIOLATION_LIMIT {
        talk.frame(0, &wrong, true);
    }
    talk.frame(1, &wrong, true);
    let kept = |adapter| {
        let violations = talk.oracle.violations().iter();
        let of_adapter = violations.filter(|violation| violation.adapter == Some(adapter));
        of_adapter.count() as u64
    };
    assert_eq!((kept(0), kept(1)), (VIOLATION_LIMIT, 1));
    assert_eq!(talk.oracle.count_of(Some(0)), VIOLATION_LIMIT + 1);
    assert_eq!(talk.oracle.count_of(Some(1)), 1);
    assert_eq!(talk.oracle.count_of(None), 0);
    let all = talk.oracle.counts()[&Rule::InvariantCrc];
    assert_eq!(all, VIOLATION_LIMIT + 2);
}

/// What is not known of a frame is not judged; its headers are.
#[test]
fn of_a_frame_without_payload_the_headers_are_judged() {
    let mut talk = Talk::new();
    for (psn, expected) in [(5, 0), (6, 0), (9, 1)] {
        let (header, payload) = request(RcSendOnly, psn, 100);
        let mut frame = bytes(&header, payload);
        let end = header.header_len();
        frame[end..].fill(0);
        talk.oracle.sent(0, 0, None, Frame::of_headers(&frame));
        let found: u64 = talk.oracle.counts().values().sum();
        assert_eq!(found, expected, "{:?}", talk.oracle.violations());
    }
}

/// On a link whose sender is known, as in a running process, whose MTU may not be.
struct Link {
    oracle: Oracle,
    /// The queue pairs that send responses are passed, too.
    knows_responder: bool,
    read_limit: Option<u32>,
}

impl Link {
    fn new() -> Self {
        Self {
            oracle: Oracle::new(Place::Link),
            knows_responder: true,
            read_limit: None,
        }
    }

    fn pass(&mut self, from: usize, header: &RoceHeader, payload: usize) {
        let is_known = from == 0 || self.knows_responder;
        let sender = is_known.then_some(QueuePair {
            qpn: QPN[from],
            mtu: None,
            read_limit: self.read_limit,
        });
        let frame = bytes(header, payload);
        self.oracle.sent(0, from, sender, &frame);
        self.oracle.received(0, 1 - from, &frame);
    }

    fn request(&mut self, opcode: Opcode, psn: u32, len: u32) {
        let (header, payload) = request(opcode, psn, len);
        self.pass(0, &header, payload);
    }

    fn ack(&mut self, psn: u32, msn: u32) {
        let ack = response(RcAcknowledge, psn, Syndrome::ACK, msn);
        self.pass(1, &ack, 0);
    }

    fn found(&self) -> Vec<Rule> {
        let violations = self.oracle.violations().iter();
        violations.map(|violation| violation.rule).collect()
    }
}

/// Without an MTU the PSNs of a READ are not known. It and what is sent until its end is known are not judged; what follows is.
#[test]
fn a_read_of_unknown_length_in_packets_is_not_judged() {
    let mut link = Link::new();
    link.request(RcSendOnly, 5, 100);
    link.ack(5, 1);
    // The only response may be as long as the MTU: one packet, or two of 512 bytes.
    link.request(RcReadRequest, 6, 1000);
    let read = response(RcReadResponseOnly, 6, Syndrome::ACK, 2);
    link.pass(1, &read, 1000);
    link.request(RcSendOnly, 7, 100);
    link.ack(7, 3);
    link.request(RcSendOnly, 8, 100);
    link.ack(8, 4);
    assert_eq!(link.found(), []);
    link.request(RcSendOnly, 9, 100);
    link.ack(9, 6);
    assert_eq!(link.found(), [Rule::Msn]);
}

/// After a gap, responses to requests that were not seen are not judged.
#[test]
fn responses_to_requests_before_a_gap_are_not_judged() {
    let mut link = Link::new();
    for psn in 5..9 {
        link.request(RcSendOnly, psn, 100);
    }
    link.oracle.forget();
    link.request(RcSendOnly, 9, 100);
    link.ack(6, 2);
    link.ack(7, 3);
    link.ack(9, 5);
    assert_eq!(link.found(), []);
    // That was acknowledged before.
    link.request(RcSendOnly, 10, 100);
    link.request(RcSendOnly, 11, 100);
    link.ack(11, 7);
    link.ack(9, 5);
    assert_eq!(link.found(), [Rule::AckOrder]);
}

/// A READ that is asked for again after a gap, while responses to the first request are still on their way: their beginning was not
/// seen, so they are not judged. What continues none later is a violation.
#[test]
fn responses_that_began_before_a_gap_are_not_judged() {
    let mut link = Link::new();
    let read = |link: &mut Link, opcode, psn| {
        let first = response(opcode, psn, Syndrome::ACK, 1);
        link.pass(1, &first, MTU as usize);
    };
    link.request(RcReadRequest, 5, 4 * MTU);
    read(&mut link, RcReadResponseFirst, 5);
    link.oracle.forget();
    // It tells the MTU.
    link.request(RcSendFirst, 3, MTU);
    link.request(RcSendLast, 4, 1);
    link.request(RcReadRequest, 5, 4 * MTU);
    read(&mut link, RcReadResponseMiddle, 6);
    read(&mut link, RcReadResponseMiddle, 7);
    read(&mut link, RcReadResponseFirst, 5);
    read(&mut link, RcReadResponseMiddle, 6);
    assert_eq!(link.found(), []);
    // The rest of a response that has left a gap is one violation.
    read(&mut link, RcReadResponseLast, 8);
    read(&mut link, RcReadResponseLast, 8);
    assert_eq!(link.found(), [Rule::ReadResponse]);
}

/// After a gap, a requester repeats what it had sent before. An acknowledgement of all of it, whose PSN was not seen, ends that: the
/// requester goes on behind it.
#[test]
fn a_repetition_of_requests_before_a_gap_may_end_early() {
    for knows_responder in [true, false] {
        repetition_that_ends_early(knows_responder);
    }
}

/// `knows_responder`: the queue pairs that send responses are passed.
fn repetition_that_ends_early(knows_responder: bool) {
    let mut link = Link {
        knows_responder,
        ..Link::new()
    };
    link.request(RcSendOnly, 385, 100);
    link.oracle.forget();
    link.request(RcSendOnly, 388, 100);
    link.request(RcSendOnly, 389, 100);
    link.ack(410, 26);
    // It was on its way.
    link.request(RcSendOnly, 390, 100);
    link.request(RcSendOnly, 411, 100);
    link.ack(410, 26);
    link.ack(411, 27);
    // A request that waits for memory is refused; the one before it was never seen.
    let refused = response(RcAcknowledge, 415, Syndrome::RnrNak { timer: 1 }, 31);
    link.pass(1, &refused, 0);
    for psn in 415..420 {
        link.request(RcSendOnly, psn, 100);
    }
    link.ack(419, 36);
    assert_eq!(link.found(), []);
    link.request(RcSendOnly, 425, 100);
    link.ack(419, 37);
    assert_eq!(link.found(), [Rule::RequestPsn, Rule::Msn]);
}

/// After a gap, an acknowledgement from an adapter behind a port may leave before the first request that is seen, and arrive after it:
/// it is of the connection of the queue pair to which it goes.
#[test]
fn an_acknowledgement_may_leave_before_the_first_request_after_a_gap() {
    let mut link = Link {
        knows_responder: false,
        ..Link::new()
    };
    link.oracle.set_remote(1);
    for psn in 5..9 {
        link.request(RcSendOnly, psn, 100);
    }
    link.oracle.forget();
    let ack = bytes(&response(RcAcknowledge, 8, Syndrome::ACK, 4), 0);
    link.oracle.sent(0, 1, None, &ack);
    link.request(RcSendOnly, 6, 100);
    link.oracle.received(0, 0, &ack);
    link.request(RcSendOnly, 9, 100);
    assert_eq!(link.found(), []);
    link.request(RcSendOnly, 11, 100);
    assert_eq!(link.found(), [Rule::RequestPsn]);
}

/// What a queue pair sends that begins its connection after the gap is judged as if there had been none.
#[test]
fn connections_that_begin_after_a_gap_are_judged_as_a_whole() {
    for has_begun_later in [false, true] {
        let mut link = Link::new();
        link.request(RcSendOnly, 3, 100);
        link.oracle.forget();
        if has_begun_later {
            link.oracle.renew(0, QPN[0]);
        }
        link.request(RcSendOnly, 5, 100);
        link.ack(7, 3);
        link.request(RcSendOnly, 8, 100);
        let expected: &[Rule] = match has_begun_later {
            true => &[Rule::ResponsePsn, Rule::RequestPsn],
            false => &[],
        };
        assert_eq!(link.found(), expected);
    }
}

/// A requester that may have `limit` READs outstanding.
fn with_read_limit(limit: u32) -> Talk {
    Talk {
        read_limit: Some(limit),
        ..Talk::new()
    }
}

/// Nothing but an ACKNOWLEDGE packet is a NAK or an RNR NAK.
#[test]
fn a_response_with_data_makes_no_requester_wait() {
    for request in [RcWriteOnly, RcReadRequest, RcFetchAdd] {
        for answer in [RcReadResponseOnly, RcAtomicAcknowledge] {
            let nak = Syndrome::Nak(NakCode::RemoteAccessError);
            for syndrome in [Syndrome::RnrNak { timer: 1 }, nak] {
                let mut talk = Talk::new();
                talk.request(request, 0, 8);
                talk.frame(1, &bytes(&response(answer, 0, syndrome, 0), 8), false);
                talk.request(request, 0, 8);
                assert_eq!(
                    talk.of_requester(),
                    [],
                    "{request:?} {answer:?} {syndrome:?}"
                );
            }
        }
    }
}

/// Whether a requester takes a response with data and the syndrome of a NAK is its choice.
#[test]
fn a_response_with_a_wrong_syndrome_may_be_taken() {
    let mut talk = Talk::new();
    talk.request(RcReadRequest, 0, 3 * MTU);
    let mtu = MTU as usize;
    talk.respond(
        RcReadResponseFirst,
        0,
        Syndrome::RnrNak { timer: 1 },
        0,
        mtu,
    );
    talk.respond(RcAcknowledge, 0, Syndrome::RnrNak { timer: 1 }, 0, 0);
    // The rest, because the response that follows is missing.
    talk.respond(RcReadResponseLast, 2, Syndrome::ACK, 1, mtu);
    let (mut rest, _) = request(RcReadRequest, 1, 2 * MTU);
    rest.reth.as_mut().unwrap().addr += u64::from(MTU);
    talk.frame(0, &bytes(&rest, 0), false);
    assert_eq!(talk.of_requester(), []);
}

/// A response to a READ shows that the requests before the READ were carried out, also if a response before it is missing.
#[test]
fn a_response_after_a_missing_one_ends_an_rnr_wait() {
    let mut talk = Talk::new();
    talk.request(RcSendOnly, 0, 8);
    talk.request(RcReadRequest, 1, 2 * MTU);
    let refused = response(RcAcknowledge, 0, Syndrome::RnrNak { timer: 1 }, 0);
    talk.frame(1, &bytes(&refused, 0), false);
    let last = response(RcReadResponseLast, 2, Syndrome::ACK, 2);
    talk.frame(1, &bytes(&last, MTU as usize), false);
    talk.request(RcReadRequest, 1, 2 * MTU);
    assert_eq!(talk.of_requester(), []);
    // Also if it has the PSN of a later request that has no responses.
    let mut talk = Talk::new();
    talk.request(RcSendOnly, 0, 8);
    talk.request(RcReadRequest, 1, 8);
    talk.request(RcWriteOnly, 2, 8);
    talk.read_response(RcReadResponseOnly, 2, 2, 8);
    talk.frame(1, &bytes(&refused, 0), false);
    talk.request(RcReadRequest, 1, 8);
    assert_eq!(talk.of_requester(), []);
    // One before the refused request shows nothing.
    let mut talk = Talk::new();
    talk.request(RcReadRequest, 0, 2 * MTU);
    talk.request(RcSendOnly, 2, 8);
    let refused = response(RcAcknowledge, 2, Syndrome::RnrNak { timer: 1 }, 0);
    talk.read_response(RcReadResponseFirst, 0, 1, MTU as usize);
    talk.read_response(RcReadResponseLast, 1, 1, MTU as usize);
    talk.frame(1, &bytes(&refused, 0), false);
    talk.read_response(RcReadResponseLast, 1, 1, MTU as usize);
    talk.request(RcSendOnly, 2, 8);
    assert_eq!(talk.of_requester(), [Rule::RnrWait]);
}

#[test]
fn outstanding_reads_are_limited() {
    for opcode in [
        RcReadRequest,
        RcFetchAdd,
        RcCompareSwap,
        RcFlush,
        RcAtomicWrite,
    ] {
        let mut talk = with_read_limit(2);
        talk.request(RcReadRequest, 0, 2 * MTU);
        talk.request(opcode, 2, 8);
        // These are not limited, and one that is sent again is none more.
        talk.request(RcSendOnly, 3, 8);
        talk.request(RcWriteOnly, 4, 8);
        talk.request(RcReadRequest, 0, 2 * MTU);
        talk.request(opcode, 2, 8);
        talk.clean();
        talk.request(opcode, 5, 8);
        talk.violates(Rule::ReadLimit);
        assert_eq!(talk.oracle.violations().len(), 1, "{opcode:?}");
    }
    let mut talk = with_read_limit(0);
    talk.request(RcWriteOnly, 0, 8);
    talk.clean();
    talk.request(RcReadRequest, 1, 8);
    talk.violates(Rule::ReadLimit);
}

#[test]
fn reads_are_outstanding_until_their_last_response() {
    let start = || {
        let mut talk = with_read_limit(1);
        talk.request(RcReadRequest, 0, 2 * MTU);
        talk.read_response(RcReadResponseFirst, 0, 1, MTU as usize);
        talk
    };
    let mut talk = start();
    talk.request(RcReadRequest, 2, 8);
    talk.violates(Rule::ReadLimit);
    let last = response(RcReadResponseLast, 1, Syndrome::ACK, 1);
    let mut talk = start();
    talk.frame(1, &bytes(&last, MTU as usize), true);
    talk.request(RcReadRequest, 2, 8);
    talk.violates(Rule::ReadLimit);
    // What is sent again may be the rest.
    let mut talk = start();
    talk.frame(1, &bytes(&last, MTU as usize), true);
    let (mut rest, _) = request(RcReadRequest, 1, MTU);
    rest.reth.as_mut().unwrap().addr += u64::from(MTU);
    talk.frame(0, &bytes(&rest, 0), false);
    talk.read_response(RcReadResponseOnly, 1, 1, MTU as usize);
    talk.request(RcFetchAdd, 2, 0);
    talk.clean();
    // An ACK of what is behind it is no response to it.
    let mut talk = start();
    talk.request(RcSendOnly, 2, 8);
    talk.frame(1, &bytes(&last, MTU as usize), true);
    talk.ack(2, 2);
    talk.request(RcReadRequest, 3, 8);
    talk.violates(Rule::ReadLimit);
}

/// Responses of a remote adapter may have arrived that were not seen.
#[test]
fn reads_of_a_remote_adapter_are_judged_as_on_a_link() {
    let start = |remote| {
        let mut talk = with_read_limit(2);
        talk.oracle.set_remote(remote);
        for psn in 0..4 {
            talk.request(RcReadRequest, psn, 8);
        }
        talk
    };
    start(0).violates(Rule::ReadLimit);
    let mut talk = start(1);
    talk.clean();
    talk.read_response(RcReadResponseOnly, 3, 4, 8);
    talk.request(RcReadRequest, 4, 8);
    talk.request(RcReadRequest, 5, 8);
    talk.clean();
    talk.request(RcReadRequest, 6, 8);
    talk.violates(Rule::ReadLimit);
}

/// On a link, requesters may know less responses than have passed.
#[test]
fn reads_on_a_link_are_outstanding_until_their_responses_pass() {
    let start = || {
        let mut link = Link {
            read_limit: Some(2),
            ..Link::new()
        };
        for psn in 0..3 {
            link.request(RcReadRequest, psn, 8);
        }
        // Nothing shows yet that the responses of this connection can be told from others.
        assert_eq!(link.found(), []);
        link
    };
    let read = |link: &mut Link, psn| {
        let only = response(RcReadResponseOnly, psn, Syndrome::ACK, psn + 1);
        link.pass(1, &only, 8);
    };
    let mut link = start();
    read(&mut link, 0);
    link.request(RcReadRequest, 3, 8);
    assert_eq!(link.found(), [Rule::ReadLimit]);
    let mut link = start();
    read(&mut link, 0);
    read(&mut link, 1);
    link.request(RcReadRequest, 3, 8);
    assert_eq!(link.found(), []);
    // The responses to the first two READs were not seen; that to the third comes after them.
    let mut link = start();
    link.oracle.set_remote(1);
    read(&mut link, 2);
    link.request(RcReadRequest, 3, 8);
    link.request(RcReadRequest, 4, 8);
    assert_eq!(link.found(), []);
    link.request(RcReadRequest, 5, 8);
    assert_eq!(link.found(), [Rule::ReadLimit]);
    // After a gap, what was answered meanwhile is not known.
    let mut link = start();
    read(&mut link, 0);
    link.oracle.forget();
    for psn in 1..9 {
        link.request(RcReadRequest, psn, 8);
        read(&mut link, 0);
    }
    assert_eq!(link.found(), []);
}

/// PSNs with which the two adapters of a connection begin.
const STARTING_PSN: [u32; 2] = [0x00a1_b2c3, 0x0012_3456];

/// A message of the connection manager, with an attribute ID and these octets of its data.
fn connection_message(from: usize, attribute: u16, fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut mad = vec![0; 256];
    mad[..4].copy_from_slice(&[1, 0x07, 2, 3]);
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    for (at, octets) in fields {
        mad[24 + at..][..octets.len()].copy_from_slice(octets);
    }
    let mut header = header(from, UdSendOnly, 0);
    header.bth.dest_qp = 1;
    let mut bytes = bytes(&header, mad.len());
    let at = header.header_len();
    bytes[at..at + mad.len()].copy_from_slice(&mad);
    seal(&mut bytes).unwrap();
    bytes
}

/// The upper 24 bits of a field.
fn upper(value: u32) -> [u8; 3] {
    let [_, octets @ ..] = value.to_be_bytes();
    octets
}

/// Adapter 0 asks for a connection.
fn req() -> Vec<u8> {
    // The other side begins with the PSN in a message.
    let (qpn, psn) = (upper(QPN[0]), upper(STARTING_PSN[1]));
    // Responder Resources and Initiator Depth are what adapter 0 offers.
    connection_message(
        0,
        0x0010,
        &[(0, &[7; 4]), (32, &qpn), (35, &[9]), (39, &[9]), (44, &psn)],
    )
}

/// Adapter 1 agrees: one READ of adapter 0, and two of adapter 1 may be outstanding.
fn rep() -> Vec<u8> {
    let (qpn, psn) = (upper(QPN[1]), upper(STARTING_PSN[0]));
    connection_message(
        1,
        0x0013,
        &[
            (0, &[8; 4]),
            (4, &[7; 4]),
            (12, &qpn),
            (20, &psn),
            (24, &[1, 2]),
        ],
    )
}

/// READs of adapter `from` without an answer; the connection begins with PSN `first`. Returns how many more there are than may be.
fn excess_reads(oracle: &mut Oracle, from: usize, first: u32, count: u32) -> usize {
    let before = oracle.violations().len();
    for psn in first..first + count {
        let mut read = header(from, RcReadRequest, psn);
        read.reth.as_mut().unwrap().len = 8;
        oracle.sent(0, from, None, &bytes(&read, 0));
    }
    let found = &oracle.violations()[before..];
    assert!(found.iter().all(|found| found.rule == Rule::ReadLimit));
    found.len()
}

#[test]
fn the_connection_manager_limits_reads() {
    let start = |messages: &[Vec<u8>]| {
        let mut oracle = Oracle::new(Place::Adapter);
        for message in messages {
            oracle.sent(0, 0, None, message);
        }
        oracle
    };
    let (asks, agrees) = (req(), rep());
    let connected = || start(&[asks.clone(), agrees.clone()]);
    let reads =
        |oracle: &mut Oracle, from: usize| excess_reads(oracle, from, STARTING_PSN[from], 4);
    let mut oracle = connected();
    assert_eq!((reads(&mut oracle, 0), reads(&mut oracle, 1)), (3, 2));
    // Messages that are sent again change nothing.
    let mut oracle = start(&[asks.clone(), asks.clone(), agrees.clone(), agrees.clone()]);
    assert_eq!((reads(&mut oracle, 0), reads(&mut oracle, 1)), (3, 2));
    // The REQ is unknown, or the REP comes first, or too late.
    for messages in [vec![agrees.clone()], vec![agrees.clone(), asks.clone()]] {
        assert_eq!(reads(&mut start(&messages), 0), 0);
    }
    let mut oracle = start(std::slice::from_ref(&asks));
    assert_eq!(excess_reads(&mut oracle, 0, STARTING_PSN[0], 1), 0);
    oracle.sent(0, 1, None, &agrees);
    assert_eq!(excess_reads(&mut oracle, 0, STARTING_PSN[0] + 1, 4), 0);
    // Another connection of the same queue pairs: one that begins with another PSN, and one after the agreed one.
    let mut oracle = connected();
    assert_eq!(excess_reads(&mut oracle, 0, 1, 4), 0);
    let mut oracle = connected();
    let sender = |read_limit| QueuePair {
        qpn: QPN[0],
        mtu: None,
        read_limit,
    };
    let (send, len) = request(RcSendOnly, STARTING_PSN[0], 8);
    oracle.sent(0, 0, Some(sender(None)), &bytes(&send, len));
    oracle.renew(0, QPN[0]);
    assert_eq!(reads(&mut oracle, 0), 0);
    // After a loss nothing is known of messages before it.
    let mut oracle = connected();
    oracle.forget();
    assert_eq!(reads(&mut oracle, 0), 0);
    // The smaller limit counts.
    for (own, excess) in [(0, 2), (1, 1), (2, 1)] {
        let mut oracle = connected();
        for psn in [STARTING_PSN[0], STARTING_PSN[0] + 1] {
            let (read, _) = request(RcReadRequest, psn, 8);
            oracle.sent(0, 0, Some(sender(Some(own))), &bytes(&read, 0));
        }
        let found = oracle.violations().iter();
        assert_eq!(found.filter(|v| v.rule == Rule::ReadLimit).count(), excess);
    }
}

/// A message with a wrong CRC, to another queue pair, or whose payload is not known says nothing.
#[test]
fn messages_that_do_not_arrive_at_the_connection_manager_are_not_read() {
    let agrees = rep();
    let mut wrong = agrees.clone();
    *wrong.last_mut().unwrap() ^= 1;
    let mut other = agrees.clone();
    // The destination queue pair, after Ethernet, IPv4, UDP and the first octets of the BTH.
    other[14 + 20 + 8 + 7] = 3;
    seal(&mut other).unwrap();
    let frames: [(Frame<'_>, usize); 4] = [
        (Frame::from(&agrees), 3),
        (Frame::from(&wrong), 0),
        (Frame::from(&other), 0),
        (Frame::of_headers(&agrees), 0),
    ];
    for (frame, excess) in frames {
        let mut oracle = Oracle::new(Place::Adapter);
        oracle.sent(0, 0, None, &req());
        oracle.sent(0, 1, None, frame);
        for psn in STARTING_PSN[0]..STARTING_PSN[0] + 4 {
            let (read, _) = request(RcReadRequest, psn, 8);
            oracle.sent(0, 0, None, &bytes(&read, 0));
        }
        let found = oracle.violations().iter();
        assert_eq!(found.filter(|v| v.rule == Rule::ReadLimit).count(), excess);
    }
}
