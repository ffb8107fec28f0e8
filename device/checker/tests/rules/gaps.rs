//! Rules on a link, and after packets that were not seen.

use Opcode::*;
use faultline_checker::{Checker, Place, Rule};
use faultline_wire::packet::RoceHeader;
use faultline_wire::{NakCode, Opcode, Syndrome};

use crate::talk::{Link, MTU, QPN, Talk, bytes, request, response};

#[test]
fn gaps_of_remote_adapters_violate_nothing() {
    let start = |remote| {
        let mut talk = Talk::new();
        talk.checker.set_remote(remote);
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

/// On a link the senders of responses are not known, and are found by the PSNs.
#[test]
fn responses_on_a_link_find_their_requests() {
    let mut checker = Checker::new(Place::Link);
    let mut pass = |header: &RoceHeader, len| checker.passed(0, &bytes(header, len));
    let (first, len) = request(RcSendOnly, 100, 8);
    pass(&first, len);
    pass(&response(RcAcknowledge, 100, Syndrome::ACK, 4), 0);
    pass(&request(RcSendOnly, 101, 8).0, 8);
    pass(&response(RcAcknowledge, 101, Syndrome::ACK, 7), 0);
    // A response without a request.
    let mut stray = response(RcAcknowledge, 500, Syndrome::ACK, 4);
    stray.bth.dest_qp = 0x99;
    pass(&stray, 0);
    // Another connection of the same queue pair.
    pass(&request(RcSendOnly, 9_000_000, 8).0, 8);
    let rules: Vec<Rule> = checker.violations().iter().map(|v| v.rule).collect();
    assert_eq!(rules, [Rule::Msn]);
    assert_eq!(checker.responses_without_flow(), 1);
    let text = checker.violations()[0].to_string();
    assert!(
        text.contains("frame 4") && text.contains("IBTA 9.7.7.1"),
        "{text}"
    );
}

/// Without an MTU the number of PSNs of a READ is unknown. The READ and later packets are not judged until its end is known.
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
    link.checker.forget();
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

/// A READ is repeated after a gap, while responses to the first request are under way: their beginning was not seen, so they are not
/// judged. A later continuation without a beginning is a violation.
#[test]
fn responses_that_began_before_a_gap_are_not_judged() {
    let mut link = Link::new();
    let read = |link: &mut Link, opcode, psn| {
        let first = response(opcode, psn, Syndrome::ACK, 1);
        link.pass(1, &first, MTU as usize);
    };
    link.request(RcReadRequest, 5, 4 * MTU);
    read(&mut link, RcReadResponseFirst, 5);
    link.checker.forget();
    // It shows the MTU.
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

/// After a gap, a requester repeats earlier requests. An acknowledgement of all of them, with a PSN that was not seen, ends that: the
/// requester continues after this PSN.
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
    link.checker.forget();
    link.request(RcSendOnly, 388, 100);
    link.request(RcSendOnly, 389, 100);
    link.ack(410, 26);
    // It was under way.
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

/// A READ is repeated after a gap, and refused because a page is absent. The first READ, which was not seen, has arrived too, so it may be
/// answered when the page is present. A request that is so much later has arrived as often as was seen.
#[test]
fn a_request_that_is_refused_after_a_gap_may_have_arrived_before() {
    /// More requests than are outstanding at a time.
    const MANY: u32 = (1 << 16) + 1;
    let mut link = Link::new();
    let refuse = |link: &mut Link, psn, msn| {
        let refused = response(RcAcknowledge, psn, Syndrome::RnrNak { timer: 1 }, msn);
        link.pass(1, &refused, 0);
    };
    for psn in [4, 5] {
        link.request(RcReadRequest, psn, 8);
    }
    link.checker.forget();
    for psn in [4, 5] {
        link.request(RcReadRequest, psn, 8);
    }
    for (psn, msn) in [(4, 1), (5, 2)] {
        refuse(&mut link, psn, msn - 1);
        let answer = response(RcReadResponseOnly, psn, Syndrome::ACK, msn);
        link.pass(1, &answer, 8);
    }
    assert_eq!(link.found(), []);
    for psn in 6..=4 + MANY {
        link.request(RcSendOnly, psn, 8);
        if psn % 1000 == 0 {
            link.ack(psn, psn - 3);
        }
    }
    refuse(&mut link, 4 + MANY, MANY);
    link.ack(4 + MANY, MANY + 1);
    assert_eq!(link.found(), [Rule::AckAfterNak]);
}

/// After a gap, an acknowledgement from an adapter behind a port may leave before the first request that is seen, and arrive after it:
/// it is of the connection of the queue pair to which it goes.
#[test]
fn an_acknowledgement_may_leave_before_the_first_request_after_a_gap() {
    let mut link = Link {
        knows_responder: false,
        ..Link::new()
    };
    link.checker.set_remote(1);
    for psn in 5..9 {
        link.request(RcSendOnly, psn, 100);
    }
    link.checker.forget();
    let ack = bytes(&response(RcAcknowledge, 8, Syndrome::ACK, 4), 0);
    link.checker.sent(0, 1, None, &ack);
    link.request(RcSendOnly, 6, 100);
    link.checker.received(0, 0, &ack);
    link.request(RcSendOnly, 9, 100);
    assert_eq!(link.found(), []);
    link.request(RcSendOnly, 11, 100);
    assert_eq!(link.found(), [Rule::RequestPsn]);
}

/// Packets of a queue pair that begins its connection after the gap are judged as without a gap.
#[test]
fn connections_that_begin_after_a_gap_are_judged_as_a_whole() {
    for has_begun_later in [false, true] {
        let mut link = Link::new();
        link.request(RcSendOnly, 3, 100);
        link.checker.forget();
        if has_begun_later {
            link.checker.restart_queue_pair(0, QPN[0]);
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
