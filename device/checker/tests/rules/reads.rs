//! The limit of outstanding READs and atomics.

use Opcode::*;
use faultline_checker::Rule;
use faultline_wire::{Opcode, Syndrome};

use crate::talk::{Link, MTU, Talk, bytes, request, response};

/// A requester that may have `limit` READs outstanding.
fn with_read_limit(limit: u32) -> Talk {
    Talk {
        read_limit: Some(limit),
        ..Talk::new()
    }
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
        // These are not limited, and a retransmission does not count.
        talk.request(RcSendOnly, 3, 8);
        talk.request(RcWriteOnly, 4, 8);
        talk.request(RcReadRequest, 0, 2 * MTU);
        talk.request(opcode, 2, 8);
        talk.clean();
        talk.request(opcode, 5, 8);
        talk.violates(Rule::ReadLimit);
        assert_eq!(talk.checker.violations().len(), 1, "{opcode:?}");
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
    // A repetition may request the rest only.
    let mut talk = start();
    talk.frame(1, &bytes(&last, MTU as usize), true);
    let (mut rest, _) = request(RcReadRequest, 1, MTU);
    rest.reth.as_mut().unwrap().addr += u64::from(MTU);
    talk.frame(0, &bytes(&rest, 0), false);
    talk.read_response(RcReadResponseOnly, 1, 1, MTU as usize);
    talk.request(RcFetchAdd, 2, 0);
    talk.clean();
    // An ACK of later requests is not a response to it.
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
        talk.checker.set_remote(remote);
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

/// On a link, responses that have passed may not have arrived at the requester.
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
        // The responses of this connection cannot be distinguished from others yet.
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
    link.checker.set_remote(1);
    read(&mut link, 2);
    link.request(RcReadRequest, 3, 8);
    link.request(RcReadRequest, 4, 8);
    assert_eq!(link.found(), []);
    link.request(RcReadRequest, 5, 8);
    assert_eq!(link.found(), [Rule::ReadLimit]);
    // After a gap, the requests that were answered meanwhile are unknown.
    let mut link = start();
    read(&mut link, 0);
    link.checker.forget();
    for psn in 1..9 {
        link.request(RcReadRequest, psn, 8);
        read(&mut link, 0);
    }
    assert_eq!(link.found(), []);
}
