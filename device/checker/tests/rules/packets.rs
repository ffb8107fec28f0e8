//! Rules about single packets: headers, iCRC and length.

use Opcode::*;
use faultline_checker::{Frame, REMARK_LIMIT, Rule, Severity, VIOLATION_LIMIT};
use faultline_wire::packet::RoceHeader;
use faultline_wire::{Gid, Ip, MULTICAST_QPN, MacAddr, Opcode, Reth};

use crate::talk::{Talk, bytes, header, request};

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

/// Packets that a program may cause are suspicious.
#[test]
fn suspicious_packets() {
    type Change = fn(&mut RoceHeader);
    let group = Gid::from_ipv4([239, 1, 2, 3]);
    assert_eq!(group.multicast_mac(), Some(MacAddr([1, 0, 0x5e, 1, 2, 3])));
    let cases: [(Rule, Opcode, Change); 9] = [
        (Rule::Multicast, UdSendOnly, |h| {
            h.bth.dest_qp = MULTICAST_QPN
        }),
        (Rule::Multicast, UdSendOnly, |h| {
            let Ip::V4(ip) = &mut h.ip else { panic!() };
            ip.dst = [239, 1, 2, 3];
            h.ethernet.dst = MacAddr([1, 0, 0x5e, 1, 2, 3]);
        }),
        (Rule::Multicast, RcSendOnly, |h| {
            h.ethernet.dst = MacAddr::BROADCAST
        }),
        (Rule::Multicast, RcSendOnly, |h| {
            let Ip::V4(ip) = &mut h.ip else { panic!() };
            ip.src = [239, 1, 2, 3];
        }),
        (Rule::UnusualField, UdSendOnly, |h| h.bth.dest_qp = 1),
        (Rule::UnusualField, UdSendOnly, |h| h.bth.ack_req = true),
        (Rule::UnusualField, UcSendOnly, |h| h.bth.ack_req = true),
        (Rule::UnusualField, RcSendOnly, |h| h.bth.fecn = true),
        (Rule::UnusualField, RcFetchAdd, |h| {
            h.atomic.as_mut().unwrap().addr = 0x1004;
        }),
    ];
    for (rule, opcode, change) in cases {
        let mut talk = Talk::new();
        let mut header = header(0, opcode, 0);
        change(&mut header);
        talk.frame(0, &bytes(&header, 0), false);
        talk.clean();
        let remarks = talk.checker.remarks().iter();
        let rules: Vec<Rule> = remarks.map(|remark| remark.rule).collect();
        assert_eq!(rules, [rule], "{opcode:?} {:?}", talk.checker.remarks());
        assert_eq!(rule.severity(), Severity::Suspicious);
        assert_eq!(talk.checker.count_of(Some(0)), 0);
        assert_eq!(talk.checker.count(Severity::Suspicious), 1);
    }
}

/// The first remarks of a rule are kept, and all are counted.
#[test]
fn remarks_of_a_rule_are_limited() {
    let mut talk = Talk::new();
    let mut marked = header(0, UdSendOnly, 0);
    marked.bth.fecn = true;
    for _ in 0..2 * REMARK_LIMIT {
        talk.frame(0, &bytes(&marked, 0), false);
    }
    assert_eq!(talk.checker.remarks().len() as u64, REMARK_LIMIT);
    assert_eq!(talk.checker.count(Severity::Suspicious), 2 * REMARK_LIMIT);
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
    // Wrong pad octets with a correct CRC, which covers them.
    let mut bad = good.clone();
    let end = bad.len() - 4;
    bad[end - 1] = 1;
    let crc = faultline_wire::icrc::icrc(&bad[14..end]).unwrap();
    bad[end..].copy_from_slice(&crc.to_le_bytes());
    let mut talk = Talk::new();
    talk.frame(0, &bad, false);
    talk.violates(Rule::Padding);
}

/// Of a frame without payload only the headers are judged.
#[test]
fn of_a_frame_without_payload_the_headers_are_judged() {
    let mut talk = Talk::new();
    for (psn, expected) in [(5, 0), (6, 0), (9, 1)] {
        let (header, payload) = request(RcSendOnly, psn, 100);
        let mut frame = bytes(&header, payload);
        let end = header.header_len();
        frame[end..].fill(0);
        talk.checker.sent(0, 0, None, Frame::cut(&frame, end));
        let found: u64 = talk.checker.counts().values().sum();
        assert_eq!(found, expected, "{:?}", talk.checker.violations());
    }
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

/// A datagram may be marked, too. The notification goes to the queue pair that has sent it, for example the one of the connection manager.
#[test]
fn notifications_to_the_senders_of_datagrams() {
    for (qpn, is_legal) in [(1, true), (2, true), (0, false), (0xff_ffff, false)] {
        let mut talk = Talk::new();
        let mut datagram = header(0, UdSendOnly, 0);
        datagram.ip.set_ecn(3);
        datagram.deth.as_mut().unwrap().src_qp = 1;
        talk.frame(0, &bytes(&datagram, 8), false);
        let mut cnp = header(1, Cnp, 0);
        (cnp.bth.becn, cnp.bth.dest_qp) = (true, qpn);
        talk.frame(1, &bytes(&cnp, 16), false);
        match is_legal {
            true => talk.clean(),
            false => talk.violates(Rule::FixedField),
        }
    }
}

/// Violations of one adapter do not replace those of another.
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
        let violations = talk.checker.violations().iter();
        let of_adapter = violations.filter(|violation| violation.adapter == Some(adapter));
        of_adapter.count() as u64
    };
    assert_eq!((kept(0), kept(1)), (VIOLATION_LIMIT, 1));
    assert_eq!(talk.checker.count_of(Some(0)), VIOLATION_LIMIT + 1);
    assert_eq!(talk.checker.count_of(Some(1)), 1);
    assert_eq!(talk.checker.count_of(None), 0);
    let all = talk.checker.counts()[&Rule::InvariantCrc];
    assert_eq!(all, VIOLATION_LIMIT + 2);
}
