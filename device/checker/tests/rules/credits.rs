//! The number of messages that a requester may send.

use Opcode::*;
use faultline_checker::Rule;
use faultline_wire::{Opcode, Syndrome};

use crate::talk::{Link, MTU, Talk, US, bytes, response};

/// A requester that may send `credits` messages after the first one, by the ACK of the first one.
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
        assert_eq!(talk.checker.violations().len(), 1, "{opcode:?}");
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
    // Its ACK permits the rest of the message, even without more credits. The next message is limited again.
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
fn acknowledgements_announce_credits() {
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
    // Messages that have begun with credits continue, even if an ACK with fewer credits arrives.
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
    // The MSN of a response with data may count messages after its own.
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

/// No message is limited if the received ACKs or the sent requests are not all known.
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
    talk.checker.set_remote(0);
    talk.request(RcSendOnly, 1, 8);
    talk.clean();
}

/// The last packet of a longer WRITE shows whether it takes a receive request.
#[test]
fn a_long_write_is_limited_if_it_has_an_immediate() {
    const LEN: u32 = 2 * MTU + 4;
    let (without, with) = (RcWriteLast, RcWriteLastWithImmediate);
    for (asks, acked_after, last, expected) in [
        // It does not ask, or does not wait, for the acknowledgement of its first packet.
        (false, 1, with, 1),
        (true, 2, with, 1),
        (true, 3, with, 1),
        (true, 1, with, 0),
        (false, 1, without, 0),
        (true, 3, without, 0),
    ] {
        let mut talk = with_credits(0);
        talk.write_first(1, LEN, asks);
        for (psn, opcode, len) in [(2, RcWriteMiddle, MTU), (3, last, 4)] {
            if psn == acked_after + 1 {
                talk.credits(1, 1, 0);
            }
            talk.request(opcode, psn, len);
        }
        let what = format!("{asks} {acked_after} {last:?}");
        assert_eq!(talk.of_requester(), vec![Rule::Credits; expected], "{what}");
    }
    // With credits, which may arrive late.
    let mut talk = with_credits(1);
    talk.write_first(1, MTU + 4, false);
    talk.request(with, 2, 4);
    talk.clean();
    let mut talk = with_credits(0);
    talk.write_first(1, MTU + 4, true);
    talk.credits(0, 1, 1);
    talk.request(with, 2, 4);
    talk.clean();
    // A WRITE without immediate data has no effect on the next one.
    let mut talk = with_credits(0);
    talk.write_first(1, MTU + 4, false);
    talk.request(without, 2, 4);
    talk.credits(2, 2, 1);
    talk.write_first(3, MTU + 4, false);
    talk.request(with, 4, 4);
    talk.clean();
}
