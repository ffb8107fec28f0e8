//! Fields that are equal in all packets of a connection, and connections that a NAK has ended.

use Opcode::*;
use faultline_checker::{Checker, Place, Rule};
use faultline_wire::packet::RoceHeader;
use faultline_wire::{NakCode, Opcode, Syndrome, XrcEth};

use crate::talk::{Link, MTU, Talk, bytes, header, request, response};

/// Packets of a connection whose MTU is not known, on a link.
fn rules(packets: &[(Opcode, u32, usize)]) -> Vec<Rule> {
    let mut checker = Checker::new(Place::Link);
    for (at, (opcode, psn, payload)) in packets.iter().enumerate() {
        let from = usize::from(opcode.is_response());
        let mut header = match from {
            0 => header(0, *opcode, *psn),
            _ => response(*opcode, *psn, Syndrome::ACK, 2),
        };
        if let Some(reth) = &mut header.reth {
            reth.len = 2 * MTU;
        }
        checker.passed(at as u64, &bytes(&header, *payload));
    }
    checker
        .violations()
        .iter()
        .map(|found| found.rule)
        .collect()
}

#[test]
fn sizes_are_those_of_the_path_mtu() {
    let mtu = MTU as usize;
    let good = [
        (RcSendFirst, 0, mtu),
        (RcSendMiddle, 1, mtu),
        (RcSendLast, 2, mtu),
    ];
    assert_eq!(rules(&good), []);
    // Another MTU in the middle, as in another connection; a longer last packet, and a longer message of one packet.
    let cases = [
        (RcSendMiddle, 2 * mtu),
        (RcSendMiddle, mtu / 2),
        (RcSendLast, mtu + 4),
    ];
    for (opcode, payload) in cases {
        let found = rules(&[(RcSendFirst, 0, mtu), (opcode, 1, payload)]);
        assert_eq!(found, [Rule::PathMtu], "{opcode:?} {payload}");
    }
    let single = [
        (RcSendFirst, 0, mtu),
        (RcSendLast, 1, 8),
        (RcSendOnly, 2, 2 * mtu),
    ];
    assert_eq!(rules(&single), [Rule::PathMtu]);
    // Responses have the same MTU.
    let read = [
        (RcSendFirst, 0, mtu),
        (RcSendLast, 1, 8),
        (RcReadRequest, 2, 0),
        (RcReadResponseOnly, 2, 2 * mtu),
    ];
    assert!(rules(&read).contains(&Rule::PathMtu));
    // A message of one packet does not show the MTU.
    assert_eq!(rules(&[(RcSendOnly, 0, 4096), (RcSendFirst, 1, mtu)]), []);
}

#[test]
fn a_connection_has_one_partition_and_one_service() {
    type Change = fn(&mut RoceHeader);
    let cases: [(Change, usize); 3] = [
        // A limited member of the same partition.
        (|h| h.bth.pkey = 0x7fff, 0),
        (|h| h.bth.pkey = 0x8001, 1),
        (|h| h.bth.opcode = UcSendOnly, 1),
    ];
    for (change, expected) in cases {
        let mut link = Link::new();
        link.request(RcSendOnly, 0, 8);
        let (mut other, payload) = request(RcSendOnly, 1, 8);
        change(&mut other);
        link.pass(0, &other, payload);
        assert_eq!(link.found(), vec![Rule::ConnectionField; expected]);
    }
}

#[test]
fn a_message_is_for_one_shared_receive_queue() {
    for (srqn, expected) in [(7, 0), (8, 1)] {
        let mut link = Link::new();
        for (opcode, psn, srqn) in [(XrcSendFirst, 0, 7), (XrcSendLast, 1, srqn)] {
            let (mut packet, payload) = request(opcode, psn, MTU);
            packet.xrceth = Some(XrcEth { srqn });
            link.pass(0, &packet, payload);
        }
        assert_eq!(link.found(), vec![Rule::ConnectionField; expected]);
    }
}

#[test]
fn a_refused_request_is_not_acknowledged_before_it_comes_again() {
    let start = Talk::with_one_outstanding;
    let mut talk = start();
    talk.rnr(1, 1);
    talk.ack(1, 2);
    talk.violates(Rule::AckAfterNak);
    // An acknowledgement of a later request acknowledges it too.
    let mut talk = start();
    talk.request(RcSendOnly, 2, 8);
    talk.rnr(1, 1);
    talk.ack(2, 3);
    talk.violates(Rule::AckAfterNak);
    // Two transmissions were under way, and each NAK has refused one.
    let mut talk = start();
    talk.request(RcSendOnly, 1, 8);
    talk.rnr(1, 1);
    talk.ack(1, 2);
    talk.clean();
    let mut talk = start();
    talk.request(RcSendOnly, 1, 8);
    talk.rnr(1, 1);
    talk.rnr(1, 1);
    talk.ack(1, 2);
    talk.violates(Rule::AckAfterNak);
    // The connection has ended, even if the request arrives again.
    let mut talk = start();
    talk.nak(1, NakCode::RemoteAccessError, 1);
    talk.ack(1, 2);
    talk.violates(Rule::AckAfterNak);
    // Requests that were answered before may be acknowledged again.
    let mut talk = start();
    talk.rnr(1, 1);
    talk.ack(0, 1);
    talk.clean();
}

/// A single distant PSN does not begin a connection.
#[test]
fn a_distant_psn_is_found_when_the_connection_goes_on() {
    let mut link = Link::new();
    for psn in [0, 1, 1 << 20, 2, 3] {
        link.request(RcSendOnly, psn, 8);
    }
    assert_eq!(link.found(), [Rule::RequestPsn]);
    // A new connection continues with its own PSNs.
    let mut link = Link::new();
    for psn in [0, 1, 1 << 20, (1 << 20) + 1] {
        link.request(RcSendOnly, psn, 8);
    }
    assert_eq!(link.found(), []);
}

/// Responses of a READ begin in the middle only if the READ was repeated from there. No such response belongs to an atomic.
#[test]
fn responses_with_data_are_whole_and_in_order() {
    let mtu = MTU as usize;
    let start = || {
        let mut talk = Talk::new();
        talk.request(RcReadRequest, 0, 2 * MTU);
        talk.request(RcFetchAdd, 2, 0);
        talk
    };
    let mut talk = start();
    talk.read_response(RcReadResponseFirst, 0, 1, mtu);
    talk.read_response(RcReadResponseOnly, 1, 1, mtu);
    talk.violates(Rule::ReadResponse);
    let mut talk = start();
    talk.respond(RcAtomicAcknowledge, 2, Syndrome::ACK, 2, 0);
    talk.violates(Rule::ResponseOrder);
    let mut talk = start();
    talk.read_response(RcReadResponseFirst, 0, 1, mtu);
    talk.read_response(RcReadResponseLast, 1, 1, mtu);
    talk.read_response(RcReadResponseOnly, 2, 2, 8);
    talk.violates(Rule::ReadResponse);
}
