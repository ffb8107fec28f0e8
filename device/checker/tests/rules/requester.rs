//! What a requester sends: PSNs, messages, repetitions and pauses.

use Opcode::*;
use faultline_checker::{QueuePair, Rule};
use faultline_wire::{NakCode, Opcode, Psn, Syndrome};

use crate::talk::{MTU, QPN, Talk, US, bytes, request, response};

#[test]
fn a_connection_without_faults_is_clean() {
    let mut talk = Talk::new();
    talk.request(RcSendFirst, 0xff_fffe, MTU);
    talk.request(RcSendMiddle, 0xff_ffff, MTU);
    talk.request(RcSendLast, 0, 3);
    talk.ack(0, 1);
    talk.write_first(1, MTU + 4, false);
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
    assert_eq!(talk.checker.packets(), 15);
    assert_eq!(talk.checker.responses_without_flow(), 0);
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
    talk.write_first(1, MTU + 4, false);
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
    talk.checker.restart_queue_pair(0, QPN[0]);
    let before = talk.checker.violations().len();
    talk.request(RcWriteOnly, 77, 8);
    assert_eq!(talk.checker.violations().len(), before);
}

/// The memory for the response of a READ is absent: the requester discards it, and the NAK after it.
#[test]
fn a_nak_behind_a_discarded_response_is_discarded() {
    for refuse in [
        |talk: &mut Talk| talk.rnr(1, 1),
        |talk: &mut Talk| talk.nak(1, NakCode::RemoteOperationalError, 1),
    ] {
        let mut talk = Talk::new();
        talk.request(RcReadRequest, 0, 8);
        talk.request(RcSendOnly, 1, 8);
        talk.read_response(RcReadResponseOnly, 0, 1, 8);
        refuse(&mut talk);
        talk.request(RcReadRequest, 0, 8);
        talk.request(RcSendOnly, 1, 8);
        assert_eq!(talk.of_requester(), []);
        // It has not discarded the second one.
        talk.read_response(RcReadResponseOnly, 0, 1, 8);
        refuse(&mut talk);
        talk.request(RcSendOnly, 1, 8);
        assert_eq!(talk.of_requester().len(), 1);
    }
}

/// The same, when the NAK arrives after the request was sent again.
#[test]
fn a_nak_behind_a_discarded_response_may_be_late() {
    let mut talk = Talk::new();
    talk.request(RcFetchAdd, 0, 8);
    talk.request(RcSendOnly, 1, 8);
    talk.respond(RcAtomicAcknowledge, 0, Syndrome::ACK, 1, 0);
    talk.request(RcFetchAdd, 0, 8);
    talk.request(RcSendOnly, 1, 8);
    talk.rnr(1, 1);
    talk.request(RcSendOnly, 2, 8);
    assert_eq!(talk.of_requester(), []);
}

/// The other one was reset, so the number of its queue pair is that of the connection before.
#[test]
fn another_queue_pair_has_another_connection() {
    let mut talk = Talk::new();
    talk.request(RcWriteOnly, 3, 8);
    talk.ack(3, 1);
    let (header, payload) = request(RcWriteOnly, 0x10_0000, 8);
    let other = QueuePair {
        qpn: 0x21,
        mtu: Some(MTU),
        read_limit: None,
    };
    let frame = bytes(&header, payload);
    talk.checker.sent(talk.now, 0, Some(other), &frame);
    talk.clean();
    // The queue pair of the first connection continues with its own PSNs only.
    let mut talk = Talk::new();
    talk.request(RcWriteOnly, 3, 8);
    talk.request(RcWriteOnly, 0x10_0000, 8);
    talk.violates(Rule::RequestPsn);
}

/// Only an ACKNOWLEDGE packet is a NAK or an RNR NAK.
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

/// A requester may accept or drop a response with data and the syndrome of a NAK.
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

/// A response to a READ shows that earlier requests were executed, even if an earlier response is missing.
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
    // A response to a request before the refused one does not end the wait.
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
