//! Captures that others have made: the order of their frames, opcodes of other manufacturers, tunnels.

use std::time::Duration;

use Opcode::*;
use faultline_capture::check::{Findings, Found, check};
use faultline_wire::packet::{RoceHeader, seal};
use faultline_wire::{Aeth, Bth, Gid, Ip, MacAddr, NakCode, Opcode, Psn, Syndrome};
use pcap_file::pcap::{PcapPacket, PcapWriter};

const QPN: [u32; 2] = [0x11, 0x12];
/// Microseconds between two frames.
const STEP: u64 = 5;

/// A packet from one of two adapters to the other.
fn packet(from: usize, opcode: Opcode, psn: u32, aeth: Option<Aeth>) -> Vec<u8> {
    let to = 1 - from;
    let last = |adapter: usize| u8::try_from(adapter).unwrap() + 1;
    let gid = |adapter| Gid::from_ipv4([10, 0, 0, last(adapter)]);
    let mac = |adapter| MacAddr([2, 0, 0, 0, 0, last(adapter)]);
    let ip = Ip::from_gids(gid(from), gid(to), 0, 0, 64);
    let bth = Bth::new(opcode, QPN[to], Psn::new(psn));
    let mut header = RoceHeader::new(mac(to), mac(from), ip, bth);
    header.aeth = aeth;
    let payload = if opcode == RcSendOnly { 24 } else { 0 };
    let mut frame = vec![0; header.frame_len(payload)];
    header.emit(payload, &mut frame).unwrap();
    seal(&mut frame).unwrap();
    frame
}

fn send(psn: u32) -> Vec<u8> {
    packet(0, RcSendOnly, psn, None)
}

fn answer(psn: u32, syndrome: Syndrome, msn: u32) -> Vec<u8> {
    packet(1, RcAcknowledge, psn, Some(Aeth { syndrome, msn }))
}

fn ack(psn: u32) -> Vec<u8> {
    answer(psn, Syndrome::ACK, psn + 1)
}

/// A capture with these times in microseconds.
fn timed(frames: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut writer = PcapWriter::new(Vec::new()).unwrap();
    for (at, frame) in frames {
        let length = u32::try_from(frame.len()).unwrap();
        let packet = PcapPacket::new(Duration::from_micros(*at), length, frame).unwrap();
        writer.write_packet(&packet).unwrap();
    }
    writer.into_inner()
}

fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let frames: Vec<(u64, Vec<u8>)> = (0..)
        .step_by(usize::try_from(STEP).unwrap())
        .zip(frames.to_vec())
        .collect();
    timed(&frames)
}

fn found(frames: &[Vec<u8>]) -> Findings {
    check(capture(frames).as_slice(), false).unwrap()
}

/// A rule and the frame that violates it.
type Violated<'a> = (&'a str, u64);

fn rules(found: &[Found]) -> Vec<Violated<'_>> {
    let found = found.iter();
    found
        .map(|found| (found.rule.as_str(), found.frame))
        .collect()
}

/// Rules of the violations and of the remarks, each with its frame.
fn both(found: &Findings) -> (Vec<Violated<'_>>, Vec<Violated<'_>>) {
    (rules(&found.violations), rules(&found.remarks))
}

#[test]
fn an_answer_may_stand_before_its_request() {
    // The first answer of a connection, too.
    let one = [
        ack(0),
        send(0),
        send(1),
        ack(1),
        ack(2),
        send(2),
        send(3),
        ack(3),
    ];
    let found = found(&one);
    assert_eq!(
        both(&found),
        (vec![], vec![("reordered", 1), ("reordered", 5)]),
        "{}",
        found.text()
    );
    assert_eq!((found.responses_without_requests, found.packets), (0, 8));
    assert!(
        found.remarks[1].text.contains("frame 6"),
        "{}",
        found.text()
    );
}

/// The queue of the answers is read some time before that of the requests.
#[test]
fn answers_of_another_queue_may_be_early() {
    const AHEAD: u32 = 40;
    let answers = (0..100).map(|psn| (2 * psn, ack(psn)));
    let requests = (0..100).map(|psn| (2 * (psn + AHEAD) + 1, send(psn)));
    let mut frames: Vec<(u32, Vec<u8>)> = answers.chain(requests).collect();
    frames.sort_by_key(|(place, _)| *place);
    let frames: Vec<Vec<u8>> = frames.into_iter().map(|(_, frame)| frame).collect();
    let found = found(&frames);
    assert_eq!(found.violation_count, 0, "{}", found.text());
    assert_eq!((found.packets, found.remark_count), (200, 100));
}

/// An answer long before its request answers nothing.
#[test]
fn a_window_has_an_end() {
    let frames = [
        (0, send(0)),
        (5, ack(0)),
        (10, ack(1)),
        (20_000, send(1)),
        (20_005, ack(1)),
    ];
    let found = check(timed(&frames).as_slice(), false).unwrap();
    assert_eq!(
        both(&found),
        (vec![("response-psn", 3)], vec![]),
        "{}",
        found.text()
    );
}

/// The network changes the order of two requests: the responder asks for the first one, and is right.
#[test]
fn reordering_by_the_network_is_the_fault_of_no_adapter() {
    let nak = answer(1, Syndrome::Nak(NakCode::PsnSequenceError), 1);
    let frames = [
        send(0),
        ack(0),
        send(2),
        nak,
        send(1),
        send(1),
        send(2),
        ack(2),
        send(3),
        ack(3),
    ];
    let found = found(&frames);
    assert_eq!(
        both(&found),
        (vec![], vec![("reordered", 3)]),
        "{}",
        found.text()
    );
}

/// A request that is missing is one violation: what the responder says of it is right, or may be.
#[test]
fn a_missing_request_accuses_no_responder() {
    for answer in [
        ack(2),
        answer(1, Syndrome::Nak(NakCode::PsnSequenceError), 1),
    ] {
        let mut frames = vec![send(0), ack(0), send(2), answer];
        frames.extend((3..200).flat_map(|psn| [send(psn), ack(psn)]));
        let found = found(&frames);
        assert_eq!(
            rules(&found.violations),
            [("request-psn", 3)],
            "{}",
            found.text()
        );
    }
}

#[test]
fn opcodes_of_other_manufacturers_are_noted() {
    let with_opcode = |opcode: u8| {
        let mut frame = packet(0, Ready, 0, None);
        frame[14 + 20 + 8] = opcode;
        let end = frame.len() - 4;
        let crc = faultline_wire::icrc::icrc(&frame[14..end]).unwrap();
        frame[end..].copy_from_slice(&crc.to_le_bytes());
        frame
    };
    // READY is one of them; 0x44 is of reliable datagrams.
    let frames = [0xc0, 0xc5, 0xff, 0x44].map(with_opcode);
    let judged = found(&frames);
    let notes = (1..=4).map(|frame| ("unjudged-opcode", frame)).collect();
    assert_eq!(both(&judged), (vec![], notes), "{}", judged.text());
    assert_eq!(judged.remarks[0].severity, "note");
    // 0x9f is no manufacturer's.
    let reserved = found(&[with_opcode(0x9f)]);
    assert_eq!(rules(&reserved.violations), [("well-formed", 1)]);
    // Of Faultlines, READY is judged: nothing was refused.
    let frames = [send(0), packet(1, Ready, 0, None)];
    let of_ours = check(capture(&frames).as_slice(), true).unwrap();
    assert_eq!(
        rules(&of_ours.violations),
        [("ready", 2)],
        "{}",
        of_ours.text()
    );
}

/// An Ethernet and an IPv4 header in front of octets of this protocol.
fn outer(protocol: u8, inner: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + inner.len()).unwrap().to_be_bytes();
    let mut frame = vec![0x02, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 8, 0, 0x45, 0];
    frame.extend(length);
    frame.extend([
        0, 0, 0, 0, 64, protocol, 0, 0, 192, 168, 0, 1, 192, 168, 0, 2,
    ]);
    frame.extend(inner);
    // Padding of Ethernet.
    frame.extend([0; 6]);
    frame
}

fn gre(flags_and_protocol: [u8; 4], between: usize, inner: &[u8]) -> Vec<u8> {
    outer(
        47,
        &[&flags_and_protocol, vec![0; between].as_slice(), inner].concat(),
    )
}

fn vxlan(port: u16, inner: &[u8]) -> Vec<u8> {
    let length = u16::try_from(16 + inner.len()).unwrap().to_be_bytes();
    let udp = [&[0x12, 0x34][..], &port.to_be_bytes(), &length, &[0, 0]].concat();
    outer(17, &[&udp[..], &[8, 0, 0, 0, 0, 0, 5, 0], inner].concat())
}

fn tagged(tags: &[u8], inner: &[u8]) -> Vec<u8> {
    [&inner[..12], tags, &inner[12..]].concat()
}

/// Puts a frame into others.
type Wrap = fn(&[u8]) -> Vec<u8>;

/// All ways in which a frame may be wrapped, by name.
fn wrappers() -> Vec<(&'static str, Wrap)> {
    vec![
        ("VXLAN", |inner| vxlan(4789, inner)),
        ("VXLAN at the port of Linux", |inner| vxlan(8472, inner)),
        ("Ethernet in GRE", |inner| gre([0, 0, 0x65, 0x58], 0, inner)),
        ("Ethernet in GRE with checksum, key and number", |inner| {
            gre([0xb0, 0, 0x65, 0x58], 12, inner)
        }),
        ("IP in GRE", |inner| gre([0, 0, 8, 0], 0, &inner[14..])),
        ("ERSPAN I", |inner| gre([0, 0, 0x88, 0xbe], 0, inner)),
        ("ERSPAN II", |inner| {
            gre([0x10, 0, 0x88, 0xbe], 4 + 8, inner)
        }),
        ("ERSPAN III", |inner| {
            gre([0x10, 0, 0x22, 0xeb], 4 + 12, inner)
        }),
        ("QinQ", |inner| {
            tagged(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6], inner)
        }),
        ("two customer tags", |inner| {
            tagged(&[0x81, 0, 0, 5, 0x81, 0, 0, 6], inner)
        }),
        ("a service tag", |inner| tagged(&[0x88, 0xa8, 0, 5], inner)),
        ("QinQ in VXLAN in GRE", |inner| {
            let inner = tagged(&[0x91, 0, 0, 5, 0x81, 0, 0, 6], inner);
            gre([0, 0, 0x65, 0x58], 0, &vxlan(4789, &inner))
        }),
    ]
}

#[test]
fn frames_in_tunnels_are_judged() {
    for (name, wrap) in wrappers() {
        let good = [send(0), ack(0), send(1), ack(1)].map(|frame| wrap(&frame));
        let judged = found(&good);
        assert_eq!(
            (judged.packets, judged.tunnelled),
            (4, 4),
            "{name}: {}",
            judged.text()
        );
        assert_eq!(
            (judged.violation_count, judged.cut),
            (0, 0),
            "{name}: {}",
            judged.text()
        );
        // An acknowledgement of nothing.
        let wrong = [send(0), ack(0), ack(7)].map(|frame| wrap(&frame));
        let judged = found(&wrong);
        assert_eq!(
            rules(&judged.violations),
            [("response-psn", 3)],
            "{name}: {}",
            judged.text()
        );
    }
}

/// Hosts that leave the segmentation to their adapter capture IPv4 lengths of zero: the frame is as long as it is.
#[test]
fn frames_without_a_length_are_judged() {
    fn without_length(mut frame: Vec<u8>) -> Vec<u8> {
        frame[16..18].fill(0);
        frame
    }
    let plain = found(&[without_length(send(0))]);
    assert_eq!(rules(&plain.violations), [("well-formed", 1)]);
    for (name, wrap) in wrappers() {
        let inside = found(&[wrap(&without_length(send(0)))]);
        assert_eq!(
            rules(&inside.violations),
            [("well-formed", 1)],
            "{name}: {}",
            inside.text()
        );
    }
    let outside = found(&[without_length(vxlan(4789, &send(0)))]);
    assert_eq!((outside.packets, outside.tunnelled), (1, 1));
    assert_eq!(outside.violation_count, 0, "{}", outside.text());
}

/// A mirror may cut frames; their headers are judged.
#[test]
fn a_frame_that_a_mirror_has_cut_is_judged_by_its_headers() {
    let cut = |frame: &[u8]| gre([0x10, 0, 0x88, 0xbe], 4 + 8, &frame[..14 + 20 + 8 + 12 + 4]);
    let frames = [send(0), send(1), send(3)].map(|frame| cut(&frame));
    let judged = found(&frames);
    assert_eq!((judged.packets, judged.cut), (3, 3), "{}", judged.text());
    assert_eq!(
        rules(&judged.violations),
        [("request-psn", 3)],
        "{}",
        judged.text()
    );
}

/// Whatever is missing of a tunnel, and with any octet changed: nothing panics, and all frames are counted.
#[test]
fn broken_tunnels_are_read() {
    for (_, wrap) in wrappers() {
        let whole = wrap(&send(0));
        let cut = (0..whole.len()).map(|end| whole[..end].to_vec());
        let changed = (0..whole.len()).map(|at| {
            let mut frame = whole.clone();
            frame[at] ^= 0xff;
            frame
        });
        let frames: Vec<Vec<u8>> = cut.chain(changed).collect();
        let judged = found(&frames);
        assert_eq!(judged.frames, frames.len() as u64);
    }
}
