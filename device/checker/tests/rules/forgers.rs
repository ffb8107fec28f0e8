//! An adapter that sends packets with the addresses and numbers of others causes no findings about these.

use Opcode::*;
use faultline_checker::{FLOW_LIMIT, QueuePair, Rule};
use faultline_wire::packet::RoceHeader;
use faultline_wire::{NakCode, Opcode, Syndrome};

use crate::talk::{Link, MTU, QPN, bytes, request, response};

/// The adapter that forges packets.
const FORGER: usize = 2;

/// How packets are forged.
#[derive(Clone, Copy, Debug)]
enum By {
    /// By a queue pair of the adapter, with this number.
    QueuePair(u32),
    /// By software.
    Software,
}

impl By {
    const ALL: [Self; 3] = [
        Self::QueuePair(99),
        // With the number of the queue pair whose packets are forged.
        Self::QueuePair(QPN[1]),
        Self::Software,
    ];

    /// The packet is sent, and arrives at `to`.
    fn send(self, link: &mut Link, to: usize, header: &RoceHeader, payload: usize) {
        let frame = bytes(header, payload);
        match self {
            Self::QueuePair(qpn) => {
                let pair = QueuePair {
                    qpn,
                    mtu: None,
                    read_limit: None,
                };
                link.checker.sent(0, FORGER, Some(pair), &frame);
            }
            Self::Software => link.checker.sent_by_software(0, FORGER, &frame),
        }
        link.checker.received(0, to, &frame);
    }
}

/// A connection with two messages; the next request has PSN 2.
fn connection() -> Link {
    let mut link = Link::new();
    for psn in 0..2 {
        link.request(RcSendOnly, psn, 8);
        link.ack(psn, psn + 1);
    }
    assert_eq!(link.found(), []);
    link
}

/// The responder executes a request that the requester has not sent, and the requester continues.
#[test]
fn forged_requests() {
    for by in By::ALL {
        for psn in [2, 3, 1 << 17] {
            let mut link = connection();
            let (forged, len) = request(RcSendOnly, psn, 8);
            by.send(&mut link, 1, &forged, len);
            link.ack(psn, 3);
            link.request(RcReadRequest, 2, 3 * MTU);
            link.request(RcSendOnly, 5, 8);
            link.ack(2, 3);
            link.request(RcSendOnly, 3, 8);
            assert_eq!(link.found(), [], "{by:?} {psn}");
        }
    }
}

/// The requester believes responses that its responder has not sent.
#[test]
fn forged_responses() {
    for by in By::ALL {
        let mut link = connection();
        link.read_limit = Some(1);
        link.request(RcReadRequest, 2, 8);
        let forged = response(RcReadResponseOnly, 2, Syndrome::ACK, 3);
        by.send(&mut link, 0, &forged, 8);
        link.request(RcReadRequest, 3, 8);
        for psn in [2, 3] {
            let read = response(RcReadResponseOnly, psn, Syndrome::ACK, psn + 1);
            link.pass(1, &read, 8);
        }
        link.request(RcReadRequest, 4, 8);
        link.request(RcReadRequest, 5, 8);
        let of_others = link.checker.count_of(Some(0)) + link.checker.count_of(Some(1));
        assert_eq!(of_others, 0, "{by:?} {:?}", link.found());
    }
}

/// Software sends requests, and the receiving adapter drops some: a long one with a wrong CRC, whose end is not seen.
#[test]
fn requests_of_software() {
    let mut link = Link::new();
    for psn in 0..2 {
        let (send, len) = request(RcSendOnly, psn, 8);
        By::Software.send(&mut link, 1, &send, len);
    }
    let nak = Syndrome::Nak(NakCode::PsnSequenceError);
    let nak = response(RcAcknowledge, 0, nak, 0);
    link.pass(1, &nak, 0);
    assert_eq!((link.found(), link.checker.mixed()), (vec![], 1));
}

/// A connection that was discarded because of many others continues, and repeats earlier requests.
#[test]
fn a_discarded_connection_returns() {
    let mut link = connection();
    for number in 0..u32::try_from(FLOW_LIMIT).unwrap() {
        let (mut other, len) = request(RcSendOnly, 0, 8);
        other.bth.dest_qp = 1000 + number;
        let pair = QueuePair {
            qpn: 1000 + number,
            mtu: None,
            read_limit: None,
        };
        link.checker
            .sent(0, FORGER, Some(pair), &bytes(&other, len));
    }
    link.request(RcSendOnly, 2, 8);
    link.request(RcSendOnly, 1, 8);
    link.ack(2, 3);
    link.request(RcSendOnly, 3, 8);
    assert_eq!(link.found(), []);
}

/// The next connection of either queue pair is judged again.
#[test]
fn a_new_connection_is_judged() {
    for (adapter, qpn) in [(0, QPN[0]), (1, QPN[1])] {
        let mut link = connection();
        let (forged, len) = request(RcSendOnly, 7, 8);
        By::Software.send(&mut link, 1, &forged, len);
        link.checker.restart_queue_pair(adapter, qpn);
        link.request(RcSendOnly, 0, 8);
        link.ack(0, 1);
        assert_eq!(link.found(), []);
        link.request(RcSendOnly, 2, 8);
        assert_eq!(link.found(), [Rule::RequestPsn]);
    }
}

/// After the beginning of a capture a packet may arrive that was sent before it.
#[test]
fn a_sender_that_is_known_later_is_judged() {
    let mut link = Link::new();
    let (first, len) = request(RcSendOnly, 7, 8);
    link.checker.passed_to(0, 1, &bytes(&first, len));
    for psn in 8..10 {
        link.request(RcSendOnly, psn, 8);
        link.ack(psn, psn + 1);
    }
    // The answer to it was sent before, too.
    let ack = response(RcAcknowledge, 9, Syndrome::ACK, 10);
    link.checker.passed_to(0, 0, &bytes(&ack, 0));
    assert_eq!(link.found(), []);
    link.request(RcSendOnly, 12, 8);
    assert_eq!(link.found(), [Rule::RequestPsn]);
}

/// Two queue pairs of an adapter send to the same queue pair, which acknowledges the expected packets: none of the three is judged.
#[test]
fn requests_of_two_queue_pairs() {
    let mut link = connection();
    let (old, len) = request(RcSendOnly, 0, 8);
    let pair = QueuePair {
        qpn: 6,
        mtu: None,
        read_limit: None,
    };
    for psn in [0, 2] {
        link.checker.sent(0, 0, Some(pair), &bytes(&old, len));
        link.checker.received(0, 1, &bytes(&old, len));
        link.request(RcSendOnly, psn + 2, 8);
        link.ack(psn + 2, psn + 3);
    }
    assert_eq!(link.found(), []);
}
