//! Packets of two adapters, as the checker sees them.

use Opcode::*;
use faultline_checker::{Checker, Place, QueuePair, Rule};
use faultline_wire::packet::{RoceHeader, seal};
use faultline_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Gid, Headers, Ip, MacAddr, NakCode, Opcode,
    Psn, Reth, Syndrome,
};

pub(crate) const MTU: u32 = 1024;
/// The queue pairs of the two adapters.
pub(crate) const QPN: [u32; 2] = [0x11, 0x12];
pub(crate) const US: u64 = 1000;

/// A conversation of two adapters, 0 (requester) and 1, which the checker sees at both.
pub(crate) struct Talk {
    pub(crate) checker: Checker,
    pub(crate) now: u64,
    /// READs that each queue pair may have outstanding.
    pub(crate) read_limit: Option<u32>,
}

pub(crate) fn gid(adapter: usize) -> Gid {
    Gid::from_ipv4([10, 0, 0, u8::try_from(adapter).unwrap() + 1])
}

pub(crate) fn mac(adapter: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, u8::try_from(adapter).unwrap() + 1])
}

/// Headers of a packet from adapter `from` to the other one.
pub(crate) fn header(from: usize, opcode: Opcode, psn: u32) -> RoceHeader {
    let to = 1 - from;
    let ip = Ip::from_gids(gid(from), gid(to), 0, 0, 64);
    let bth = Bth::new(opcode, QPN[to], Psn::new(psn));
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

pub(crate) fn bytes(header: &RoceHeader, payload: usize) -> Vec<u8> {
    let mut bytes = vec![0; header.frame_len(payload)];
    header.emit(payload, &mut bytes).unwrap();
    seal(&mut bytes).unwrap();
    bytes
}

pub(crate) fn request(opcode: Opcode, psn: u32, len: u32) -> (RoceHeader, usize) {
    let mut header = header(0, opcode, psn);
    let payload = if opcode.info().payload { len } else { 0 };
    if let Some(reth) = &mut header.reth {
        reth.len = len;
    }
    (header, payload as usize)
}

pub(crate) fn response(opcode: Opcode, psn: u32, syndrome: Syndrome, msn: u32) -> RoceHeader {
    let mut header = header(1, opcode, psn);
    header.aeth = opcode.has(Headers::AETH).then_some(Aeth { syndrome, msn });
    header.atomic_ack = opcode
        .has(Headers::ATOMIC_ACK_ETH)
        .then_some(AtomicAckEth { original: 1 });
    header
}

impl Talk {
    pub(crate) fn new() -> Self {
        Self {
            checker: Checker::new(Place::Adapter),
            now: 0,
            read_limit: None,
        }
    }

    /// Two SENDs have arrived, and the first one is acknowledged.
    pub(crate) fn with_one_outstanding() -> Self {
        let mut talk = Self::new();
        talk.request(Opcode::RcSendOnly, 0, 8);
        talk.ack(0, 1);
        talk.request(Opcode::RcSendOnly, 1, 8);
        talk
    }

    /// A frame leaves an adapter and arrives at the other one, unless it is lost.
    pub(crate) fn frame(&mut self, from: usize, frame: &[u8], is_lost: bool) {
        self.now += US;
        let sender = QueuePair {
            qpn: QPN[from],
            mtu: Some(MTU),
            read_limit: self.read_limit,
        };
        self.checker.sent(self.now, from, Some(sender), frame);
        if !is_lost {
            self.now += US;
            self.checker.received(self.now, 1 - from, frame);
        }
    }

    pub(crate) fn request(&mut self, opcode: Opcode, psn: u32, len: u32) {
        let (header, payload) = request(opcode, psn, len);
        self.frame(0, &bytes(&header, payload), false);
    }

    pub(crate) fn lost_request(&mut self, opcode: Opcode, psn: u32, len: u32) {
        let (header, payload) = request(opcode, psn, len);
        self.frame(0, &bytes(&header, payload), true);
    }

    /// A request that asks for an acknowledgement.
    pub(crate) fn asking_request(&mut self, opcode: Opcode, psn: u32, len: u32) {
        let (mut header, payload) = request(opcode, psn, len);
        header.bth.ack_req = true;
        self.frame(0, &bytes(&header, payload), false);
    }

    /// The first packet of a WRITE of `len` octets.
    pub(crate) fn write_first(&mut self, psn: u32, len: u32, asks: bool) {
        let (mut header, payload) = request(RcWriteFirst, psn, MTU);
        header.reth.as_mut().unwrap().len = len;
        header.bth.ack_req = asks;
        self.frame(0, &bytes(&header, payload), false);
    }

    pub(crate) fn ack(&mut self, psn: u32, msn: u32) {
        self.respond(RcAcknowledge, psn, Syndrome::ACK, msn, 0);
    }

    /// An ACK with this credit code.
    pub(crate) fn credits(&mut self, psn: u32, msn: u32, credits: u8) {
        self.respond(RcAcknowledge, psn, Syndrome::Ack { credits }, msn, 0);
    }

    pub(crate) fn nak(&mut self, psn: u32, code: NakCode, msn: u32) {
        self.respond(RcAcknowledge, psn, Syndrome::Nak(code), msn, 0);
    }

    pub(crate) fn rnr(&mut self, psn: u32, msn: u32) {
        // Timer code 1: 10 microseconds.
        self.respond(RcAcknowledge, psn, Syndrome::RnrNak { timer: 1 }, msn, 0);
    }

    pub(crate) fn read_response(&mut self, opcode: Opcode, psn: u32, msn: u32, len: usize) {
        self.respond(opcode, psn, Syndrome::ACK, msn, len);
    }

    pub(crate) fn respond(
        &mut self,
        opcode: Opcode,
        psn: u32,
        syndrome: Syndrome,
        msn: u32,
        len: usize,
    ) {
        self.frame(1, &bytes(&response(opcode, psn, syndrome, msn), len), false);
    }

    /// Rules that adapter 0 has violated.
    pub(crate) fn of_requester(&self) -> Vec<Rule> {
        let violations = self.checker.violations().iter();
        let own = violations.filter(|violation| violation.adapter == Some(0));
        own.map(|violation| violation.rule).collect()
    }

    #[track_caller]
    pub(crate) fn clean(&self) {
        let found: Vec<String> = self
            .checker
            .violations()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert!(found.is_empty(), "{found:#?}");
    }

    /// Exactly this rule was violated.
    #[track_caller]
    pub(crate) fn violates(&self, rule: Rule) {
        let found = self.checker.violations();
        assert!(
            !found.is_empty() && found.iter().all(|violation| violation.rule == rule),
            "{found:#?}"
        );
    }
}

/// On a link whose sender is known, as in a running process, whose MTU may not be.
pub(crate) struct Link {
    pub(crate) checker: Checker,
    /// The sending queue pairs of responses are passed, too.
    pub(crate) knows_responder: bool,
    pub(crate) read_limit: Option<u32>,
}

impl Link {
    pub(crate) fn new() -> Self {
        Self {
            checker: Checker::new(Place::Link),
            knows_responder: true,
            read_limit: None,
        }
    }

    pub(crate) fn pass(&mut self, from: usize, header: &RoceHeader, payload: usize) {
        let is_known = from == 0 || self.knows_responder;
        let sender = is_known.then_some(QueuePair {
            qpn: QPN[from],
            mtu: None,
            read_limit: self.read_limit,
        });
        let frame = bytes(header, payload);
        self.checker.sent(0, from, sender, &frame);
        self.checker.received(0, 1 - from, &frame);
    }

    pub(crate) fn request(&mut self, opcode: Opcode, psn: u32, len: u32) {
        let (header, payload) = request(opcode, psn, len);
        self.pass(0, &header, payload);
    }

    pub(crate) fn ack(&mut self, psn: u32, msn: u32) {
        let ack = response(RcAcknowledge, psn, Syndrome::ACK, msn);
        self.pass(1, &ack, 0);
    }

    pub(crate) fn found(&self) -> Vec<Rule> {
        let violations = self.checker.violations().iter();
        violations.map(|violation| violation.rule).collect()
    }
}
