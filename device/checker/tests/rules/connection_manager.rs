//! Parameters in messages of the connection manager.

use Opcode::*;
use faultline_checker::{Checker, Frame, Place, QueuePair, Rule};
use faultline_wire::packet::seal;
use faultline_wire::{GSI_QKEY, GSI_QPN, Opcode, Syndrome};

use crate::talk::{Link, QPN, bytes, header, request, response};

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
    header.bth.dest_qp = GSI_QPN;
    header.deth.as_mut().unwrap().qkey = GSI_QKEY;
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

/// Adapter 0 requests a connection.
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

/// Sends READs of adapter `from` without responses; the connection begins with PSN `first`. Returns the number of READs beyond the limit.
fn excess_reads(checker: &mut Checker, from: usize, first: u32, count: u32) -> usize {
    let before = checker.violations().len();
    for psn in first..first + count {
        let mut read = header(from, RcReadRequest, psn);
        read.reth.as_mut().unwrap().len = 8;
        checker.sent(0, from, None, &bytes(&read, 0));
    }
    let found = &checker.violations()[before..];
    assert!(found.iter().all(|found| found.rule == Rule::ReadLimit));
    found.len()
}

#[test]
fn the_connection_manager_limits_reads() {
    let start = |messages: &[Vec<u8>]| {
        let mut checker = Checker::new(Place::Adapter);
        for message in messages {
            checker.sent(0, 0, None, message);
            checker.received(0, 1, message);
        }
        checker
    };
    let (asks, agrees) = (req(), rep());
    let connected = || start(&[asks.clone(), agrees.clone()]);
    let reads =
        |checker: &mut Checker, from: usize| excess_reads(checker, from, STARTING_PSN[from], 4);
    let mut checker = connected();
    assert_eq!((reads(&mut checker, 0), reads(&mut checker, 1)), (3, 2));
    // Messages that are sent again change nothing.
    let mut checker = start(&[asks.clone(), asks.clone(), agrees.clone(), agrees.clone()]);
    assert_eq!((reads(&mut checker, 0), reads(&mut checker, 1)), (3, 2));
    // The REQ is unknown, or the REP comes first, or too late.
    for messages in [vec![agrees.clone()], vec![agrees.clone(), asks.clone()]] {
        assert_eq!(reads(&mut start(&messages), 0), 0);
    }
    let mut checker = start(std::slice::from_ref(&asks));
    assert_eq!(excess_reads(&mut checker, 0, STARTING_PSN[0], 1), 0);
    checker.sent(0, 1, None, &agrees);
    assert_eq!(excess_reads(&mut checker, 0, STARTING_PSN[0] + 1, 4), 0);
    // Another connection of the same queue pairs: one that begins with another PSN, and one after the agreed one.
    let mut checker = connected();
    assert_eq!(excess_reads(&mut checker, 0, 1, 4), 0);
    let mut checker = connected();
    let sender = |read_limit| QueuePair {
        qpn: QPN[0],
        mtu: None,
        read_limit,
    };
    let (send, len) = request(RcSendOnly, STARTING_PSN[0], 8);
    checker.sent(0, 0, Some(sender(None)), &bytes(&send, len));
    checker.restart_queue_pair(0, QPN[0]);
    assert_eq!(reads(&mut checker, 0), 0);
    // Messages that another adapter sends or receives have no effect: they may be forged.
    let mut checker = start(std::slice::from_ref(&asks));
    checker.sent(0, 2, None, &agrees);
    assert_eq!(reads(&mut checker, 0), 0);
    let mut checker = start(&[]);
    for message in [&asks, &agrees] {
        checker.sent(0, 2, None, message);
        checker.received(0, 1, message);
    }
    assert_eq!((reads(&mut checker, 0), reads(&mut checker, 1)), (0, 2));
    // After a loss, earlier messages are discarded.
    let mut checker = connected();
    checker.forget();
    assert_eq!(reads(&mut checker, 0), 0);
    // The smaller limit counts.
    for (own, excess) in [(0, 2), (1, 1), (2, 1)] {
        let mut checker = connected();
        for psn in [STARTING_PSN[0], STARTING_PSN[0] + 1] {
            let (read, _) = request(RcReadRequest, psn, 8);
            checker.sent(0, 0, Some(sender(Some(own))), &bytes(&read, 0));
        }
        let found = checker.violations().iter();
        assert_eq!(found.filter(|v| v.rule == Rule::ReadLimit).count(), excess);
    }
}

/// On a link the last message may be forged and not accepted by its receiver: the attribute of the queue pair is the limit.
#[test]
fn on_a_link_the_attribute_counts() {
    let mut link = Link::new();
    let messages = |checker: &mut Checker| {
        checker.sent(0, 0, None, &req());
        checker.sent(0, 1, None, &rep());
        checker.received(0, 0, &rep());
    };
    for (own, excess) in [(Some(3), 1), (None, 3)] {
        link.checker = Checker::new(Place::Link);
        messages(&mut link.checker);
        link.read_limit = own;
        let first = STARTING_PSN[0];
        link.request(RcReadRequest, first, 8);
        let answer = response(RcReadResponseOnly, first, Syndrome::ACK, 1);
        link.pass(1, &answer, 8);
        for psn in first + 1..first + 5 {
            link.request(RcReadRequest, psn, 8);
        }
        assert_eq!(link.found(), vec![Rule::ReadLimit; excess], "{own:?}");
    }
}

/// A message with a wrong CRC, with an unknown payload, or to another queue pair is ignored.
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
        (Frame::cut(&agrees, 58), 0),
    ];
    for (frame, excess) in frames {
        let mut checker = Checker::new(Place::Adapter);
        checker.sent(0, 0, None, &req());
        checker.sent(0, 1, None, frame);
        checker.received(0, 0, frame);
        for psn in STARTING_PSN[0]..STARTING_PSN[0] + 4 {
            let (read, _) = request(RcReadRequest, psn, 8);
            checker.sent(0, 0, None, &bytes(&read, 0));
        }
        let found = checker.violations().iter();
        assert_eq!(found.filter(|v| v.rule == Rule::ReadLimit).count(), excess);
    }
}
