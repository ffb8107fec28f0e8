//! Changes each field of each packet of good streams. The checker must report the change, or the list of unjudged fields must contain it.

use std::collections::{BTreeMap, BTreeSet};

use faultline_checker::{Change, Checker, Place, UNJUDGED, Unjudged};
use faultline_wire::field::{self, Field, Part};
use faultline_wire::{ICRC_LEN, Ip, OpKind, Opcode, icrc::icrc};

use crate::streams::{Sent, Stream};

/// Shows frames to a checker as a capture from an unknown source, and returns its findings.
fn found<'a>(frames: impl Iterator<Item = &'a Vec<u8>>) -> Vec<String> {
    let mut checker = Checker::new(Place::Link);
    checker.set_any_makers();
    for (at, frame) in frames.enumerate() {
        checker.passed(at as u64, frame);
    }
    assert_eq!(checker.responses_without_flow(), 0);
    let all = checker.violations().iter().chain(checker.remarks());
    all.map(ToString::to_string).collect()
}

#[test]
fn nothing_is_found_in_good_streams() {
    let mut opcodes = BTreeSet::new();
    for stream in Stream::all() {
        let packets = stream.packets.iter();
        assert_eq!(
            found(packets.clone().map(|sent| &sent.frame)),
            [""; 0],
            "{}",
            stream.name
        );
        opcodes.extend(packets.map(|sent| sent.header.bth.opcode.to_u8()));
    }
    let all = Opcode::ALL.iter();
    let all = all.filter(|opcode| opcode.info().kind != OpKind::Ready);
    let all: BTreeSet<u8> = all.map(|opcode| opcode.to_u8()).collect();
    assert_eq!(opcodes, all);
}

/// Other values of a field: all values of a narrow field and of the opcode; a near, a distant and the inverted value of other fields.
fn others(field: &Field, value: u128) -> BTreeSet<u128> {
    let top = 1 << (field.width - 1);
    let mut others: BTreeSet<u128> = match field.width {
        ..=8 => (0..=field.mask()).collect(),
        _ => [value ^ 1, value ^ top, value ^ field.mask()].into(),
    };
    others.remove(&value);
    others
}

/// Returns a frame with another value in one of its fields, and correct checksums.
fn changed(sent: &Sent, part: Part, at: usize, field: &Field, value: u128) -> Vec<u8> {
    let mut frame = sent.frame.clone();
    field.write(&mut frame[at..], value);
    let ip = sent.header.ethernet.header_len();
    if matches!(sent.header.ip, Ip::V4(_)) && (part, field.name) != (Part::Ipv4, "header checksum")
    {
        frame[ip + 10..ip + 12].fill(0);
        let words = frame[ip..ip + 20].chunks(2);
        let sum: u32 = words
            .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
            .sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let checksum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        frame[ip + 10..ip + 12].copy_from_slice(&checksum.to_be_bytes());
    }
    let end = frame.len() - ICRC_LEN;
    if let Ok(crc) = icrc(&frame[ip..end]) {
        frame[end..].copy_from_slice(&crc.to_le_bytes());
    }
    frame
}

/// The entry of the list for a change.
fn entry(change: &Change<'_>, part: Part, field: &Field) -> Option<&'static Unjudged> {
    UNJUDGED
        .iter()
        .find(|entry| entry.part == part && entry.field == field.name && (entry.applies)(change))
}

#[test]
fn each_change_is_found_or_listed() {
    let mut used = BTreeSet::new();
    let mut missed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for stream in Stream::all() {
        for (index, sent) in stream.packets.iter().enumerate().take(stream.judged) {
            for (part, at) in field::parts(&sent.header) {
                for field in part.fields() {
                    let value = field.read(&sent.frame[at..]);
                    for other in others(field, value) {
                        let bad = changed(sent, part, at, field, other);
                        let frames = stream.packets.iter().enumerate();
                        let frames = frames.map(|(place, good)| match place == index {
                            true => &bad,
                            false => &good.frame,
                        });
                        if !is_found(frames) {
                            match entry(
                                &Change {
                                    header: &sent.header,
                                    is_first: stream.is_first(index),
                                    is_repeated: stream.is_repeated(index),
                                    value: other,
                                },
                                part,
                                field,
                            ) {
                                Some(entry) => drop(used.insert((
                                    entry.part.name(),
                                    entry.field,
                                    entry.packets,
                                ))),
                                None => {
                                    let name = format!("{} {}", part.name(), field.name);
                                    let how = format!(
                                        "{:?} {value:#x} -> {other:#x}",
                                        sent.header.bth.opcode
                                    );
                                    missed.entry(name).or_default().insert(how);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(missed.is_empty(), "neither found nor listed: {missed:#?}");
    let listed = UNJUDGED
        .iter()
        .map(|entry| (entry.part.name(), entry.field, entry.packets));
    assert_eq!(
        used,
        listed.collect(),
        "entries whose changes are all found"
    );
}

/// As [`found`], but also true if a response belongs to no request.
fn is_found<'a>(frames: impl Iterator<Item = &'a Vec<u8>>) -> bool {
    let mut checker = Checker::new(Place::Link);
    checker.set_any_makers();
    frames.enumerate().any(|(at, frame)| {
        checker.passed(at as u64, frame);
        !checker.violations().is_empty() || !checker.remarks().is_empty()
    })
}

/// The invariant CRC is no header.
#[test]
fn a_change_of_the_invariant_crc_is_found() {
    for stream in Stream::all() {
        for sent in &stream.packets {
            for bit in 0..8 * ICRC_LEN {
                let mut bad = sent.frame.clone();
                let at = bad.len() - ICRC_LEN + bit / 8;
                bad[at] ^= 1 << (bit % 8);
                assert!(is_found([&bad].into_iter()), "{:?}", sent.header);
            }
        }
    }
}

/// The list as rows of a table: one for all fields with the same packets and reason, in which a part is named once.
fn rows() -> Vec<String> {
    let mut rows: Vec<(&Unjudged, String)> = Vec::new();
    for each in UNJUDGED {
        let (part, field) = (each.part.name(), each.field);
        let name = if field == part {
            part.to_owned()
        } else {
            format!("{part} {field}")
        };
        let same = |(last, _): &&mut (&Unjudged, String)| {
            (last.packets, last.reason) == (each.packets, each.reason)
        };
        match rows.iter_mut().find(same) {
            None => rows.push((each, name)),
            Some((last, fields)) if last.part == each.part => {
                *fields += &format!(", {field}");
                *last = each;
            }
            Some((last, fields)) => {
                *fields += &format!("; {name}");
                *last = each;
            }
        }
    }
    let row = |(each, fields): (&Unjudged, String)| {
        format!("| {fields} | {} | {} |", each.packets, each.reason)
    };
    rows.into_iter().map(row).collect()
}

/// The documentation has the list.
#[test]
fn the_list_is_in_the_documentation() {
    let document = include_str!("../../../../docs/capture.md");
    let written: Vec<&str> = document
        .lines()
        .skip_while(|line| *line != "| Fields | Packets | Why they are not judged |")
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    let expected = rows();
    assert_eq!(
        written,
        expected,
        "the table must be:\n{}",
        expected.join("\n")
    );
}
