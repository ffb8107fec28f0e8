//! `faultline check` as a program.

use std::borrow::Cow;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use faultline_wire::packet::{RoceHeader, seal};
use faultline_wire::{Aeth, Bth, Gid, Ip, MacAddr, Opcode, Psn, Syndrome};
use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};

fn packet(opcode: Opcode, psn: u32, msn: Option<u32>) -> Vec<u8> {
    let (from, to) = if msn.is_some() { (2, 1) } else { (1, 2) };
    let gid = |n| Gid::from_ipv4([10, 0, 0, n]);
    let bth = Bth::new(opcode, 17, Psn::new(psn));
    let ip = Ip::from_gids(gid(from), gid(to), 0, 0, 64);
    let mac = |n| MacAddr([2, 0, 0, 0, 0, n]);
    let mut header = RoceHeader::new(mac(to), mac(from), ip, bth);
    header.aeth = msn.map(|msn| Aeth {
        syndrome: Syndrome::ACK,
        msn,
    });
    let mut bytes = vec![0; header.frame_len(0)];
    header.emit(0, &mut bytes).unwrap();
    seal(&mut bytes).unwrap();
    bytes
}

/// Two SENDs; the second is acknowledged with this MSN.
fn packets(msn: u32) -> Vec<Vec<u8>> {
    vec![
        packet(Opcode::RcSendOnly, 5, None),
        packet(Opcode::RcAcknowledge, 5, Some(1)),
        // Not RoCE: it is counted, and not judged.
        vec![0; 60],
        packet(Opcode::RcSendOnly, 6, None),
        packet(Opcode::RcAcknowledge, 6, Some(msn)),
    ]
}

fn pcapng(path: &Path, packets: &[Vec<u8>], link: DataLink, cut: usize) {
    let mut writer = PcapNgWriter::new(std::fs::File::create(path).unwrap()).unwrap();
    writer
        .write_pcapng_block(InterfaceDescriptionBlock::new(link, 0))
        .unwrap();
    for (n, packet) in packets.iter().enumerate() {
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_millis(n as u64),
            original_len: u32::try_from(packet.len()).unwrap(),
            data: Cow::Borrowed(&packet[..packet.len() - cut]),
            options: Vec::new(),
        };
        writer.write_pcapng_block(block).unwrap();
    }
}

fn pcap(path: &Path, packets: &[Vec<u8>]) {
    let file = std::fs::File::create(path).unwrap();
    let mut writer = PcapWriter::with_header(file, PcapHeader::default()).unwrap();
    for packet in packets {
        let length = u32::try_from(packet.len()).unwrap();
        let packet = PcapPacket::new(Duration::ZERO, length, packet.as_slice()).unwrap();
        writer.write_packet(&packet).unwrap();
    }
}

fn check(path: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
    command.arg("check").arg(path).args(more);
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn violations_are_listed_with_the_numbers_of_their_frames() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    for write in [
        pcap as fn(&Path, &[Vec<u8>]),
        |path: &Path, packets: &[Vec<u8>]| pcapng(path, packets, DataLink::ETHERNET, 0),
    ] {
        write(&path, &packets(2));
        let good = check(&path, &[]);
        assert_eq!(good.status.code(), Some(0), "{good:?}");
        assert_eq!(
            text(&good),
            "5 frames, 4 RoCE packets judged, 0 violations\n"
        );

        write(&path, &packets(3));
        let bad = check(&path, &[]);
        assert_eq!(bad.status.code(), Some(1));
        assert!(text(&bad).starts_with("frame 5, "), "{}", text(&bad));
        assert!(text(&bad).contains("[msn: IBTA 9.7.7.1]"));
        let json = check(&path, &["--json"]);
        let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        assert_eq!(json["violations"][0]["frame"], 5);
        assert_eq!(json["violations"][0]["rule"], "msn");
        assert_eq!(json["violation_count"], 1);
    }
}

/// Headers that are whole are judged; the invariant CRC is not.
#[test]
fn of_frames_that_are_cut_the_headers_are_judged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    for (msn, status) in [(2, 0), (3, 1)] {
        pcapng(&path, &packets(msn), DataLink::ETHERNET, 1);
        let cut = check(&path, &[]);
        assert_eq!(cut.status.code(), Some(status), "{cut:?}");
        assert!(text(&cut).contains("5 frames are cut"), "{}", text(&cut));
        assert!(text(&cut).contains("4 RoCE packets judged"));
    }
    // Without a part of the BTH or AETH.
    pcapng(&path, &packets(3), DataLink::ETHERNET, 8);
    let cut = check(&path, &[]);
    assert_eq!(cut.status.code(), Some(3));
    assert!(text(&cut).contains("0 RoCE packets judged"));
}

/// Nothing was judged, so nothing is proved.
#[test]
fn a_capture_without_roce_packets_does_not_pass() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    for packets in [&[][..], &[vec![0; 60], vec![1; 60]]] {
        pcap(&path, packets);
        for more in [&[][..], &["--json"]] {
            let checked = check(&path, more);
            assert_eq!(checked.status.code(), Some(3), "{checked:?}");
            let error = String::from_utf8_lossy(&checked.stderr).into_owned();
            assert!(error.contains("no RoCE packet"), "{error}");
        }
    }
}

/// A frame of a capture: the interface, whether it goes out there, how many frames were lost before it, and its octets.
type Seen = (u32, bool, u64, Vec<u8>);

/// A capture of the NICs `a` and `b`, and of two ports, as `faultline capture` writes it.
fn write_capture_of_a_loop(path: &Path, frames: Vec<Seen>) {
    let mut writer = PcapNgWriter::new(std::fs::File::create(path).unwrap()).unwrap();
    for (name, kind) in [
        ("a", "Faultline NIC"),
        ("b", "Faultline NIC"),
        ("to-a", "Faultline port"),
        ("to-b", "Faultline port"),
    ] {
        let mut interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
        interface.options = vec![
            InterfaceDescriptionOption::IfName(name.into()),
            InterfaceDescriptionOption::IfDescription(kind.into()),
        ];
        writer.write_pcapng_block(interface).unwrap();
    }
    for (number, (interface_id, is_outbound, lost, data)) in frames.into_iter().enumerate() {
        let block = EnhancedPacketBlock {
            interface_id,
            timestamp: Duration::from_millis(number as u64),
            original_len: u32::try_from(data.len()).unwrap(),
            data: Cow::Owned(data),
            options: vec![
                EnhancedPacketOption::Flags(1 + u32::from(is_outbound)),
                EnhancedPacketOption::DropCount(lost),
            ],
        };
        writer.write_pcapng_block(block).unwrap();
    }
}

/// A bridge outside the process connects two ports. Frames of the first NIC pass both ports later, when it has sent
/// more.
#[test]
fn frames_between_two_nics_are_not_judged_at_ports_on_their_way() {
    const A: u32 = 0;
    const B: u32 = 1;
    const TO_A: u32 = 2;
    const TO_B: u32 = 3;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    let request = |psn| packet(Opcode::RcSendOnly, psn, None);
    let reply = |psn, msn| packet(Opcode::RcAcknowledge, psn, Some(msn));
    let crossing = |frame: Vec<u8>| [(TO_A, true, 0, frame.clone()), (TO_B, false, 0, frame)];

    let mut frames = vec![(A, true, 0, request(5))];
    frames.extend(crossing(request(5)));
    frames.push((B, false, 0, request(5)));
    frames.push((B, true, 0, reply(5, 1)));
    frames.push((A, false, 0, reply(5, 1)));
    let before_loss = frames.len();
    // The capture has lost the frames of NIC a at the NIC, but not at the ports.
    let [out, into] = crossing(request(6));
    frames.extend([(out.0, out.1, 3, out.3), into]);
    frames.push((A, true, 0, request(9)));
    frames.extend(crossing(request(9)));
    frames.push((B, false, 0, request(9)));
    frames.push((B, true, 0, reply(9, 5)));
    write_capture_of_a_loop(&path, frames.clone());
    let good = check(&path, &[]);
    assert_eq!(good.status.code(), Some(0), "{}", text(&good));
    assert!(!text(&good).contains("not judged"), "{}", text(&good));
    assert!(!text(&good).contains("judged by themselves only"));

    // The NICs themselves are judged: a PSN is missing, or nothing has arrived that could be answered.
    frames.push((A, true, 0, request(12)));
    write_capture_of_a_loop(&path, frames.clone());
    let bad = check(&path, &[]);
    assert!(text(&bad).contains("[request-psn: "), "{}", text(&bad));
    // After a loss it might be a repetition that has arrived before.
    frames.truncate(before_loss);
    frames.push((A, true, 0, request(6)));
    frames.extend(crossing(request(6)));
    frames.push((B, true, 0, reply(6, 2)));
    write_capture_of_a_loop(&path, frames);
    let bad = check(&path, &[]);
    assert!(text(&bad).contains("[response-psn: "), "{}", text(&bad));
}

#[test]
fn a_capture_is_read_from_standard_input() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    pcapng(&path, &packets(3), DataLink::ETHERNET, 0);
    let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
    command
        .args(["check", "-"])
        .stdin(std::fs::File::open(&path).unwrap());
    let bad = command.output().unwrap();
    assert_eq!(bad.status.code(), Some(1));
    assert!(text(&bad).starts_with("frame 5, "), "{}", text(&bad));
}

#[test]
fn other_files_than_captures_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    let refused = |what: &str| {
        let output = check(&path, &[]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(
            error.contains("can't check") && error.contains(what),
            "{error}"
        );
    };
    refused("No such file");
    std::fs::write(&path, "x").unwrap();
    refused("shorter");
    std::fs::write(&path, "this is no capture at all, but long enough").unwrap();
    refused("neither that of a pcapng nor of a pcap file");
    pcapng(&path, &packets(2), DataLink::PPP, 0);
    refused("Ethernet is needed");
}

/// Frames before the end of a truncated file are judged.
#[test]
fn a_file_without_its_end_is_judged_up_to_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    let mut many = packets(3);
    many.extend(packets(2));
    for write in [
        pcap as fn(&Path, &[Vec<u8>]),
        |path: &Path, packets: &[Vec<u8>]| pcapng(path, packets, DataLink::ETHERNET, 0),
    ] {
        for (packets, judged, status) in [
            (
                packets(2),
                "4 frames, 3 RoCE packets judged, 0 violations\n",
                2,
            ),
            (many.clone(), "frame 5, ", 1),
        ] {
            write(&path, &packets);
            let whole = std::fs::read(&path).unwrap();
            std::fs::write(&path, &whole[..whole.len() - 20]).unwrap();
            let output = check(&path, &[]);
            assert_eq!(output.status.code(), Some(status), "{output:?}");
            assert!(text(&output).starts_with(judged), "{}", text(&output));
            let error = String::from_utf8(output.stderr).unwrap();
            let place = format!("after frame {}", packets.len() - 1);
            assert!(
                error.contains("can't check") && error.contains(&place),
                "{error}"
            );
        }
    }
}
