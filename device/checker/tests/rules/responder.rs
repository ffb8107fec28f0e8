//! Packets of a responder: acknowledgements, NAKs, responses with data, READY.

use Opcode::*;
use faultline_checker::Rule;
use faultline_wire::{
    AtomicAckEth, EtherType, Ethernet, Gid, NakCode, Opcode, PeerQuery, QueryEnd, Syndrome,
};

use crate::talk::{MTU, QPN, Talk, bytes, gid, response};

#[test]
fn psns_of_responses() {
    let start = Talk::with_one_outstanding;
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

/// The first NAK has waited while the request arrived, whose page is absent.
#[test]
fn a_request_that_arrives_before_its_nak_may_get_another() {
    let mut talk = Talk::new();
    talk.lost_request(RcWriteOnly, 0, 8);
    talk.request(RcWriteOnly, 1, 8);
    talk.request(RcWriteOnly, 0, 8);
    talk.nak(0, NakCode::PsnSequenceError, 0);
    talk.nak(0, NakCode::PsnSequenceError, 0);
    talk.clean();
    talk.nak(0, NakCode::PsnSequenceError, 0);
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

/// A SEND that got an RNR NAK, then READY.
fn refused_and_ready(agreed: &[usize], ready_psn: u32) -> Talk {
    let mut talk = Talk::new();
    for adapter in agreed {
        talk.checker.set_ready(*adapter, true);
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
    // Without READY that is too early; an acknowledgement of earlier requests does not end the wait.
    let mut talk = Talk::new();
    talk.request(RcSendOnly, 4, 8);
    talk.ack(4, 1);
    talk.request(RcSendOnly, 5, 8);
    talk.rnr(5, 1);
    talk.ack(4, 1);
    talk.request(RcSendOnly, 5, 8);
    talk.violates(Rule::RnrWait);
    let mut talk = Talk::new();
    talk.checker.set_all_ready();
    talk.request(RcSendOnly, 5, 8);
    talk.rnr(5, 0);
    talk.respond(Ready, 5, Syndrome::ACK, 0, 0);
    talk.clean();
}

/// A peer query of the responder, then the frame of the requester with this answer.
fn query_and(talk: &mut Talk, change: impl Fn(&mut PeerQuery)) {
    let [a, b] = [0, 1].map(|end: usize| QueryEnd {
        gid: gid(end),
        qpn: QPN[end],
    });
    let query = |from, to, nonce, echo| PeerQuery {
        from,
        to,
        nonce,
        echo,
    };
    let mut answer = query(a, b, 9, 7);
    change(&mut answer);
    for (from, query) in [(1, query(b, a, 7, 0)), (0, answer)] {
        let ethernet = Ethernet {
            ethertype: EtherType::LOCAL_EXPERIMENTAL_2,
            ..Ethernet::default()
        };
        let mut frame = [0; Ethernet::LEN + PeerQuery::LEN];
        let at = ethernet.emit(&mut frame).unwrap();
        query.emit(&mut frame[at..]).unwrap();
        talk.frame(from, &frame, false);
    }
}

#[test]
fn the_answer_to_a_peer_query_permits_ready() {
    let changes: [fn(&mut PeerQuery); 4] = [
        |_| {},
        |query| query.echo = 0,
        |query| query.from.qpn ^= 1,
        |query| query.to.gid = Gid::from_ipv4([10, 0, 0, 99]),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut talk = Talk::new();
        talk.request(RcSendOnly, 5, 8);
        talk.rnr(5, 0);
        query_and(&mut talk, change);
        talk.clean();
        talk.respond(Ready, 5, Syndrome::ACK, 0, 0);
        match number {
            0 => talk.clean(),
            _ => talk.violates(Rule::Ready),
        }
    }
}

/// The answer of an adapter behind a port may have been passed before the first frame.
#[test]
fn ready_to_a_remote_adapter_is_noted_without_an_answer() {
    for answers in [false, true] {
        let mut talk = Talk::new();
        talk.checker.set_remote(0);
        talk.request(RcSendOnly, 5, 8);
        talk.rnr(5, 0);
        if answers {
            query_and(&mut talk, |_| {});
        }
        talk.respond(Ready, 5, Syndrome::ACK, 0, 0);
        talk.clean();
        let notes = talk.checker.remarks().iter();
        let notes = notes.filter(|note| note.rule == Rule::UnjudgedOpcode);
        assert_eq!(notes.count(), usize::from(!answers));
    }
}

#[test]
fn ready_is_about_a_request_that_got_an_rnr_nak() {
    refused_and_ready(&[0, 1], 4).violates(Rule::Ready);
    refused_and_ready(&[0, 1], 6).violates(Rule::Ready);
    let mut talk = Talk::new();
    talk.checker.set_all_ready();
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
