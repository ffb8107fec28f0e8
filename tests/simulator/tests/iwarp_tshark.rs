//! iWARP as tshark sees it: MPA, DDP and RDMAP of all operations, with right checksums and CRCs.

use std::path::Path;
use std::process::Command;

use faultline_abi::{cqe, wqe as wr};
use faultline_simulation::Send;
use faultline_wire::rdmap::RdmapOpcode;

use crate::iwarp::{completed, connect, post, post_recv, world};

/// Fields of a frame that are printed.
const FIELDS: [&str; 5] = [
    "iwarp_rdma.opcode",
    "iwarp_mpa.key.req",
    "iwarp_mpa.key.rep",
    "iwarp_mpa.marker_fpduptr",
    "tcp.len",
];

/// Writes frames as a file of pcap (link type Ethernet).
fn write(file: &Path, frames: &[(usize, Vec<u8>)]) {
    let mut out = Vec::new();
    let words = |out: &mut Vec<u8>, words: &[u32]| {
        words
            .iter()
            .for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    };
    words(&mut out, &[0xa1b2_c3d4, 0x0004_0002, 0, 0, 1 << 16, 1]);
    for (number, (_, frame)) in (0u32..).zip(frames) {
        let len = u32::try_from(frame.len()).unwrap();
        words(
            &mut out,
            &[number / 1_000_000, number % 1_000_000, len, len],
        );
        out.extend_from_slice(frame);
    }
    std::fs::write(file, out).unwrap();
}

/// What tshark prints of the frames that a display filter chooses, a line for each.
#[track_caller]
fn tshark(file: &Path, filter: &str) -> Vec<String> {
    let mut command = Command::new("tshark");
    command
        .arg("-r")
        .arg(file)
        .args(["-Y", filter, "-T", "fields"]);
    command.args(["-o", "tcp.check_checksum:TRUE"]);
    // The data of messages is no message of another protocol.
    command.args(["--disable-protocol", "rpcordma"]);
    FIELDS.iter().for_each(|field| {
        command.args(["-e", field]);
    });
    let output = command.output().expect("tshark is needed");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// The whole text of tshark about the frames that a display filter chooses.
fn details(file: &Path, filter: &str) -> String {
    let output = Command::new("tshark")
        .arg("-r")
        .arg(file)
        .args(["-Y", filter, "-V"])
        .output();
    String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
}

/// All kinds of messages, from host 0 to host 1, and their answers.
fn traffic(v6: bool) -> Vec<(usize, Vec<u8>)> {
    let mut world = world(3);
    world.start_capture();
    let mut link = connect(&mut world, v6);
    post(&mut world, &mut link, wr::WR_WRITE, 4001, |_| {});
    post(&mut world, &mut link, wr::WR_READ, 4001, |_| {});
    for opcode in [wr::WR_SEND, wr::WR_WRITE_IMM] {
        post_recv(&mut world, &mut link, 4096);
        post(&mut world, &mut link, opcode, 4001, |_| {});
    }
    let [from, to] = link.mr;
    // The region begins at 0x...123, so this is a multiple of 8.
    let send = Send {
        opcode: wr::WR_FETCH_ADD,
        sges: &[(from.va + 0xddd, 8, from.key)],
        remote_addr: to.va + 0xddd,
        rkey: to.key,
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut link.qp[0], &send);
    world.run();
    let done = completed(&mut world, 0, &mut link);
    assert_eq!(done.len(), 5);
    assert!(done.iter().all(|(_, status, _)| *status == cqe::SUCCESS));
    // A key that does not exist ends the stream by a Terminate message.
    post(&mut world, &mut link, wr::WR_WRITE, 10, |send| {
        send.rkey ^= 1
    });
    world.run();
    world.take_capture()
}

#[test]
#[ignore = "needs tshark: cargo lab test host::tshark"]
fn tshark_decodes_iwarp() {
    let file = std::env::temp_dir().join(format!("faultline-iwarp-{}.pcap", std::process::id()));
    for v6 in [false, true] {
        let frames = traffic(v6);
        write(&file, &frames);
        for wrong in [
            "_ws.malformed",
            "tcp.checksum.status == 0",
            "tcp.analysis.flags && !tcp.analysis.keep_alive",
            "iwarp_mpa.bad_length",
        ] {
            assert_eq!(tshark(&file, wrong), [""; 0], "{wrong}");
        }
        let seen = tshark(&file, "tcp");
        assert_eq!(seen.len(), frames.len());
        let with_data = seen.iter().filter(|line| !line.ends_with("\t0")).count();
        let decoded = tshark(&file, "iwarp_mpa");
        // Each segment with data has a setup frame or an FPDU.
        assert_eq!(decoded.len(), with_data);
        for opcode in [
            RdmapOpcode::Write,
            RdmapOpcode::ReadRequest,
            RdmapOpcode::ReadResponse,
            RdmapOpcode::Send,
            RdmapOpcode::Terminate,
            RdmapOpcode::Immediate,
            RdmapOpcode::AtomicRequest,
            RdmapOpcode::AtomicResponse,
        ] {
            let filter = format!("iwarp_rdma.opcode == {}", opcode as u8);
            assert!(!tshark(&file, &filter).is_empty(), "{opcode:?}");
        }
        let text = details(&file, "tcp");
        // Each has one FPDU, but for the two setup frames.
        let good = text.matches("(Good CRC32)").count();
        assert_eq!(good, decoded.len() - 2);
        assert!(!text.contains("Bad CRC"), "{text}");
    }
    // A changed octet is noticed.
    let mut frames = traffic(false);
    let last = frames
        .iter_mut()
        .find(|(_, frame)| frame.len() > 1000)
        .unwrap();
    last.1[500] ^= 1;
    write(&file, &frames);
    assert_eq!(tshark(&file, "tcp.checksum.status == 0").len(), 1);
    let _ = std::fs::remove_file(&file);
}

/// tshark finds the markers of RFC 5044, the first one where the first FPDU begins. It expects them in both directions if one end demands
/// them, so only the frames of the NIC are compared.
#[test]
#[ignore = "needs tshark: cargo lab test host::tshark"]
fn tshark_finds_markers() {
    let file = std::env::temp_dir().join(format!("faultline-markers-{}.pcap", std::process::id()));
    let peer = crate::iwarp_markers::received();
    write(&file, &peer.log);
    let of_nic = "iwarp_mpa.fpdu && tcp.srcport == 4791";
    let found = tshark(&file, of_nic);
    let expected = peer.fpdus.iter().map(|fpdu| {
        let pointers = fpdu.pointers.iter().map(u16::to_string);
        pointers.collect::<Vec<_>>().join(",")
    });
    let pointers = found.iter().filter_map(|line| line.split('\t').nth(3));
    assert!(pointers.eq(expected), "{found:?}, {:?}", peer.fpdus);
    // Markers are in the CRC.
    let text = details(&file, of_nic);
    let good = text.matches("(Good CRC32)").count();
    assert_eq!(good, peer.fpdus.len(), "{text}");
    assert!(found.iter().all(|line| line.starts_with("0x03\t")));
    let _ = std::fs::remove_file(&file);
}
