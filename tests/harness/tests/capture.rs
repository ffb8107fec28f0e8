//! Captures through the control socket: their contents and losses; the NICs do not wait for them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use faultline_abi::wqe;
use faultline_capture::check::{Findings, check};
use faultline_config::Config;
use faultline_harness::paging::{PAGE, Pager};
use faultline_harness::testbed::{Fabric, LONG, Node, connect_nodes, until};
use faultline_harness::traffic::{exchange, impatient};
use faultline_harness::{Link, QpType, Rng, SendWr, connect};
use faultline_wire::opcode::{Headers, OpKind};
use faultline_wire::packet::{RoceHeader, parse, seal};
use faultline_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Gid, Ip, MacAddr, Opcode, Psn, Reth, Syndrome,
    XrcEth,
};
use pcap_file::DataLink;
use pcap_file::pcapng::blocks::Block;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use pcap_file::pcapng::blocks::opt_common::CommonOption;
use pcap_file::pcapng::{PcapNgReader, PcapNgWriter};
use serde_json::Value;

use crate::observed::{exchange as http, request};

/// Half of a node's memory is for sent data, half for received data.
const IN: usize = Node::BUF / 2;

/// NICs `a` and `b`, and a control socket.
struct Stage {
    fabric: Fabric,
}

impl Stage {
    fn new() -> Self {
        Self::with("")
    }

    /// With this configuration.
    fn with(config: &str) -> Self {
        let config = Config::from_toml(config).unwrap();
        let fabric = Fabric::start_controlled(config, &["a", "b"]).unwrap();
        Self { fabric }
    }

    fn nodes(&self) -> (Node, Node) {
        let node = |name| self.fabric.node(name).unwrap();
        (node("a"), node("b"))
    }

    fn socket(&self) -> PathBuf {
        self.fabric.control()
    }

    /// Begins a capture.
    #[track_caller]
    fn capture(&self, query: &str) -> Capture {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        // Without chunks.
        write!(
            stream,
            "GET /v1/capture?{query} HTTP/1.0\r\nHost: localhost\r\n\r\n"
        )
        .unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut octet = [0];
            stream.read_exact(&mut octet).unwrap();
            head.push(octet[0]);
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.contains(" 200 "), "{head}");
        let id = head
            .lines()
            .find_map(|line| line.strip_prefix("faultline-capture: "));
        Capture {
            stream,
            id: id.unwrap().parse().unwrap(),
        }
    }

    /// Ends a capture.
    fn end(&self, capture: Capture) -> Captured {
        let path = format!("/v1/captures/{}", capture.id);
        request(&self.socket(), "DELETE", &path, "");
        capture.rest()
    }

    /// Frames and losses of the captures that run.
    fn running(&self) -> Vec<(u64, u64)> {
        let list = request(&self.socket(), "GET", "/v1/captures", "");
        let list: Value = serde_json::from_str(&list).unwrap();
        let number = |value: &Value| value.as_u64().unwrap();
        let list = list.as_array().unwrap().iter();
        list.map(|view| (number(&view["frames"]), number(&view["lost"])))
            .collect()
    }
}

struct Capture {
    stream: UnixStream,
    id: u64,
}

impl Capture {
    /// What comes until the end.
    fn rest(mut self) -> Captured {
        let mut bytes = Vec::new();
        self.stream.read_to_end(&mut bytes).unwrap();
        Captured::new(bytes)
    }
}

/// A packet of a capture.
struct Packet {
    interface: usize,
    is_sent: bool,
    time: u128,
    data: Vec<u8>,
    length: usize,
    comments: Vec<String>,
}

impl Packet {
    /// The opcode of a whole packet, whose invariant CRC must be right.
    #[track_caller]
    fn opcode(&self) -> Option<Opcode> {
        assert_eq!(self.data.len(), self.length);
        let parsed = parse(&self.data).ok()?;
        assert!(parsed.icrc_ok, "{:?}", parsed.header);
        Some(parsed.header.bth.opcode)
    }
}

/// A capture that has ended.
struct Captured {
    bytes: Vec<u8>,
    interfaces: Vec<String>,
    packets: Vec<Packet>,
    /// As the statistics of the interfaces say.
    lost: u64,
}

impl Captured {
    #[track_caller]
    fn new(bytes: Vec<u8>) -> Self {
        let mut captured = Self {
            bytes: Vec::new(),
            interfaces: Vec::new(),
            packets: Vec::new(),
            lost: 0,
        };
        let mut reader = PcapNgReader::new(bytes.as_slice()).unwrap();
        let mut statistics = 0;
        while let Some(block) = reader.next_block() {
            match block.unwrap().0 {
                Block::InterfaceDescription(interface) => {
                    let mut options = interface.options.iter();
                    let name = options.find_map(|option| match option {
                        InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                        _ => None,
                    });
                    captured.interfaces.push(name.unwrap());
                }
                Block::EnhancedPacket(packet) => {
                    let mut comments = Vec::new();
                    let mut is_sent = None;
                    for option in &packet.options {
                        match option {
                            EnhancedPacketOption::Flags(flags) => is_sent = Some(*flags == 2),
                            EnhancedPacketOption::Common(CommonOption::Comment(text)) => {
                                comments.push(text.to_string());
                            }
                            _ => {}
                        }
                    }
                    captured.packets.push(Packet {
                        interface: packet.interface_id as usize,
                        is_sent: is_sent.unwrap(),
                        time: packet.timestamp.as_nanos(),
                        data: packet.data.to_vec(),
                        length: packet.original_len as usize,
                        comments,
                    });
                }
                Block::InterfaceStatistics(block) => {
                    statistics += 1;
                    for option in block.options {
                        if let InterfaceStatisticsOption::IsbIfDrop(lost) = option {
                            captured.lost += lost;
                        }
                    }
                }
                _ => {}
            }
        }
        assert_eq!(statistics, captured.interfaces.len());
        captured.bytes = bytes;
        captured
    }

    fn check(&self) -> Findings {
        check(self.bytes.as_slice(), true).unwrap()
    }

    /// Packets of an interface, as they were sent or have arrived.
    fn at(&self, interface: usize, is_sent: bool) -> impl Iterator<Item = &Packet> {
        let packets = self.packets.iter();
        packets.filter(move |packet| (packet.interface, packet.is_sent) == (interface, is_sent))
    }
}

fn retire(node: &mut Node, qp: &mut faultline_harness::Qp) {
    let wc = node.good_completion();
    qp.retire(&wc);
}

/// SEND, WRITE, READ, atomics and ATOMIC WRITE over RC.
fn connected(a: &mut Node, b: &mut Node, link: &Link) {
    let (mut qa, mut qb) = (a.qp(QpType::Rc).unwrap(), b.qp(QpType::Rc).unwrap());
    connect(&qa, &qb, link).unwrap();
    exchange((a, &mut qa), (b, &mut qb), &mut Rng::new(3));
    for len in [1, 5000] {
        let sges = [a.mr.sge(1, len)];
        for wr in [
            SendWr::send(&sges),
            SendWr::send(&sges).imm(5),
            SendWr::write(&sges, b.mr.remote(IN)).imm(6),
        ] {
            qb.post_recv(1, &[b.mr.sge(IN, len)]).unwrap();
            qa.post_send(&wr.signaled()).unwrap();
            b.good_completion();
            retire(a, &mut qa);
        }
        for wr in [
            SendWr::write(&sges, b.mr.remote(IN)),
            SendWr::read(&sges, b.mr.remote(IN)),
        ] {
            qa.post_send(&wr.signaled()).unwrap();
            retire(a, &mut qa);
        }
    }
    let sges = [a.mr.sge(0, 8)];
    let mut atomic_write = SendWr::write(&sges, b.mr.remote(IN));
    atomic_write.opcode = wqe::WR_ATOMIC_WRITE;
    for wr in [
        SendWr::fetch_add(&sges, b.mr.remote(64), 3),
        SendWr::comp_swap(&sges, b.mr.remote(64), 3, 4),
        atomic_write,
    ] {
        qa.post_send(&wr.signaled()).unwrap();
        retire(a, &mut qa);
    }
}

/// Datagrams, and messages over UC.
fn unreliable(a: &mut Node, b: &mut Node) {
    const KEY: u32 = 7;
    let (mut qa, mut qb) = (a.qp(QpType::Ud).unwrap(), b.qp(QpType::Ud).unwrap());
    qa.open_datagrams(KEY).unwrap();
    qb.open_datagrams(KEY).unwrap();
    let ah = a.pd.ah(&b.nic).unwrap();
    let sges = [a.mr.sge(0, 1000)];
    for wr in [SendWr::send(&sges), SendWr::send(&sges).imm(1)] {
        qb.post_recv(1, &[b.mr.sge(IN, 2000)]).unwrap();
        let wr = wr.to(&ah, qb.number(), KEY).signaled();
        qa.post_send(&wr).unwrap();
        b.good_completion();
        retire(a, &mut qa);
    }
    let (mut qa, mut qb) = connect_nodes(a, b, QpType::Uc).unwrap();
    for len in [100, 10_000] {
        let sges = [a.mr.sge(0, len)];
        for wr in [
            SendWr::send(&sges).imm(1),
            SendWr::write(&sges, b.mr.remote(IN)).imm(2),
        ] {
            qb.post_recv(1, &[b.mr.sge(IN, len)]).unwrap();
            qa.post_send(&wr.signaled()).unwrap();
            b.good_completion();
            retire(a, &mut qa);
        }
    }
}

#[test]
fn a_capture_has_every_packet_where_it_is_sent_and_where_it_arrives() {
    let since_1970 = || {
        std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .unwrap()
            .as_nanos()
    };
    let begun = since_1970();
    let stage = Stage::new();
    let (mut a, mut b) = stage.nodes();
    let capture = stage.capture("");
    let link = Link {
        path_mtu: 2,
        ..Link::default()
    };
    connected(&mut a, &mut b, &link);
    unreliable(&mut a, &mut b);
    let captured = stage.end(capture);
    assert_eq!(captured.interfaces, ["a", "b"]);
    assert_eq!(captured.lost, 0);
    for (from, to) in [(0, 1), (1, 0)] {
        let sent: Vec<_> = captured.at(from, true).map(|p| &p.data).collect();
        let arrived: Vec<_> = captured.at(to, false).map(|p| &p.data).collect();
        assert!(sent.len() > 20);
        assert!(sent == arrived, "{} and {}", sent.len(), arrived.len());
    }
    let opcodes: BTreeSet<String> = captured
        .packets
        .iter()
        .filter_map(|packet| Some(format!("{:?}", packet.opcode()?)))
        .collect();
    let expected = "RcSendFirst RcSendMiddle RcSendLast RcSendLastWithImmediate RcSendOnly RcSendOnlyWithImmediate RcWriteFirst RcWriteMiddle \
        RcWriteLast RcWriteLastWithImmediate RcWriteOnly RcWriteOnlyWithImmediate RcReadRequest RcReadResponseFirst RcReadResponseMiddle \
        RcReadResponseLast RcReadResponseOnly RcAcknowledge RcAtomicAcknowledge RcCompareSwap RcFetchAdd RcAtomicWrite \
        UdSendOnly UdSendOnlyWithImmediate UcSendFirst UcSendLastWithImmediate UcSendOnlyWithImmediate UcWriteFirst UcWriteLastWithImmediate UcWriteOnlyWithImmediate";
    for opcode in expected.split_whitespace() {
        assert!(opcodes.contains(opcode), "{opcode} is not in {opcodes:?}");
    }
    let times: Vec<u128> = captured.packets.iter().map(|packet| packet.time).collect();
    assert!(times.is_sorted());
    let last = times[times.len() - 1];
    assert!(
        begun <= times[0] && last <= since_1970(),
        "{begun} {times:?}"
    );
    let found = captured.check();
    assert_eq!(found.violation_count, 0, "{}", found.text());
    let sent = captured.at(0, true).count() + captured.at(1, true).count();
    assert_eq!(found.packets, sent as u64, "each packet is judged once");
    assert_eq!(found.responses_without_requests, 0);
}

#[test]
fn a_run_is_captured_as_its_packets() {
    let stage = Stage::new();
    let (mut a, b) = stage.nodes();
    let (mut qa, _qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    a.buf.fill_pattern(0, 100_000, 9);
    let whole = stage.capture("nic=a");
    let heads = stage.capture("nic=b&snaplen=128&opcode=WRITE");
    let sges = [a.mr.sge(0, 100_000)];
    qa.post_send(&SendWr::write(&sges, b.mr.remote(IN)).signaled())
        .unwrap();
    retire(&mut a, &mut qa);
    let whole = stage.end(whole);
    let mut written = Vec::new();
    for packet in whole.at(0, true) {
        packet.opcode().unwrap();
        written.extend_from_slice(parse(&packet.data).unwrap().payload);
    }
    assert!(written == b.buf.to_vec(IN, 100_000), "{}", written.len());
    // Acknowledgements arrive at this NIC, and their sender is not captured.
    let found = whole.check();
    assert_eq!(found.violation_count, 0, "{}", found.text());
    assert_eq!(found.packets, whole.packets.len() as u64);
    let heads = stage.end(heads);
    assert!(heads.packets.iter().all(|packet| packet.data.len() == 128));
    let lengths = |packets: &mut dyn Iterator<Item = &Packet>| -> Vec<usize> {
        packets.map(|packet| packet.length).collect()
    };
    let sent = lengths(&mut whole.at(0, true));
    assert_eq!(lengths(&mut heads.at(1, false)), sent);
    let found = heads.check();
    assert_eq!((found.cut, found.packets), (sent.len() as u64, found.cut));
    assert_eq!(found.violation_count, 0, "{}", found.text());
}

#[test]
fn frames_are_chosen_by_interface_queue_pair_opcode_and_number() {
    let stage = Stage::new();
    let (mut a, mut b) = stage.nodes();
    let (mut qa, mut qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    let (mut other_a, mut other_b) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    let number = other_a.number();
    let captures = [
        format!("nic=a&qpn={number}"),
        "nic=b&opcode=rc_read_request".to_owned(),
        "count=3".to_owned(),
    ];
    let captures = captures.map(|query| stage.capture(&query));
    let mut rng = Rng::new(1);
    exchange((&mut a, &mut qa), (&mut b, &mut qb), &mut rng);
    exchange((&mut a, &mut other_a), (&mut b, &mut other_b), &mut rng);
    let [pair, reads, three] = captures;
    // It ends by itself.
    assert_eq!(three.rest().packets.len(), 3);
    let pair = stage.end(pair);
    assert!(pair.at(0, true).count() > 1 && pair.at(0, false).count() > 1);
    assert_eq!(pair.at(1, true).count() + pair.at(1, false).count(), 0);
    for packet in &pair.packets {
        let destination = parse(&packet.data).unwrap().header.bth.dest_qp;
        let expected = if packet.is_sent {
            other_b.number()
        } else {
            number
        };
        assert_eq!(destination, expected);
    }
    let reads = stage.end(reads);
    let opcodes: Vec<_> = reads.packets.iter().map(|packet| packet.opcode()).collect();
    assert_eq!(opcodes, [Some(Opcode::RcReadRequest); 2]);
}

#[test]
fn wrong_requests_are_refused_and_captures_are_few() {
    let stage = Stage::new();
    for (query, status, what) in [
        (
            "nic=x",
            404,
            "there is no NIC or port \"x\"; there are: a, b",
        ),
        ("opcode=ROT", 400, "there is no opcode \"ROT\""),
        ("snaplen=0", 400, "snaplen 0 is out of range"),
        ("snaplen=65536", 400, "must be 1 to 65535"),
        ("count=0", 400, "count 0 is out of range"),
        ("speed=1", 400, "unknown field `speed`"),
    ] {
        let path = format!("/v1/capture?{query}");
        let answer = http(&stage.socket(), "GET", &path, "");
        assert!(answer.contains(&status.to_string()), "{answer}");
        let answer = answer.replace("\\\"", "\"");
        assert!(answer.contains(what), "{answer}");
    }
    let answer = http(&stage.socket(), "DELETE", "/v1/captures/99", "");
    assert!(answer.contains("404") && answer.contains("there is no capture 99"));
    assert_eq!(stage.running(), []);
    let captures: Vec<_> = (0..4).map(|_| stage.capture("")).collect();
    let answer = http(&stage.socket(), "GET", "/v1/capture", "");
    assert!(answer.contains("409") && answer.contains("there are 4 captures already"));
    assert_eq!(stage.running(), [(0, 0); 4]);
    // A client that has disconnected takes no place.
    drop(captures);
    until("no capture is left", || stage.running().is_empty());
}

/// Comments of the packets of an interface, and how many packets have each.
fn comments(captured: &Captured, interface: usize, is_sent: bool) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for packet in captured.at(interface, is_sent) {
        for comment in &packet.comments {
            *counts.entry(comment.clone()).or_default() += 1;
        }
    }
    counts
}

/// A packet whose page is absent is refused, dropped or stalled, as the policy says, and so are packets behind a
/// stalled one.
#[test]
fn a_packet_that_is_not_executed_for_lack_of_a_page_names_the_fault() {
    for policy in ["rnr", "drop", "stall"] {
        let stage = Stage::with(&format!("[defaults]\nfault_policy = \"{policy}\"\n"));
        let (mut a, b) = stage.nodes();
        let (mut qa, qb) = (a.qp(QpType::Rc).unwrap(), b.qp(QpType::Rc).unwrap());
        let link = Link {
            path_mtu: 2,
            ..Link::default()
        };
        connect(&qa, &qb, &link).unwrap();
        let mut pager = Pager::new(&b, 2).unwrap();
        pager.map(0, 0).unwrap();
        let capture = stage.capture("nic=b");
        let sges = [a.mr.sge(0, 2 * PAGE)];
        let write = SendWr::write(&sges, pager.mr.remote(0)).signaled();
        qa.post_send(&write).unwrap();
        let record = pager.record(LONG).unwrap();
        pager.repair(&record).unwrap();
        retire(&mut a, &mut qa);
        let captured = stage.end(capture);
        let token = record.token.get();
        let text = format!("not executed now because of page fault {token}");
        let mut held_up = BTreeSet::new();
        for packet in captured.at(1, false) {
            match packet.comments.as_slice() {
                [] => {}
                [comment] => {
                    assert_eq!(*comment, text, "{policy}");
                    let parsed = parse(&packet.data).unwrap();
                    held_up.insert(parsed.header.bth.psn.get());
                }
                more => panic!("{policy}: {more:?}"),
            }
        }
        let first = record.psn.get();
        let count = match policy {
            "stall" => (PAGE / 512) as u32,
            _ => 1,
        };
        let expected: BTreeSet<u32> = (first..first + count).collect();
        assert_eq!(held_up, expected, "{policy}");
    }
}

#[test]
fn a_stopped_reader_holds_up_nothing_and_gets_the_count_of_lost_frames() {
    let stage = Stage::new();
    let (mut a, mut b) = stage.nodes();
    let link = impatient();
    let (mut qa, mut qb) = (a.qp(QpType::Rc).unwrap(), b.qp(QpType::Rc).unwrap());
    connect(&qa, &qb, &link).unwrap();
    let capture = stage.capture("");
    let mut rng = Rng::new(5);
    until("a loss", || {
        for _ in 0..20 {
            exchange((&mut a, &mut qa), (&mut b, &mut qb), &mut rng);
        }
        stage.running()[0].1 > 0
    });
    let (frames, _) = stage.running()[0];
    // Reads again, while frames come; those after the loss are captured.
    let reader = std::thread::spawn(move || capture.rest());
    while stage.running()[0].0 < frames + 200 {
        exchange((&mut a, &mut qa), (&mut b, &mut qb), &mut rng);
    }
    let list = request(&stage.socket(), "GET", "/v1/captures", "");
    let list: Value = serde_json::from_str(&list).unwrap();
    let path = format!("/v1/captures/{}", list[0]["id"]);
    let lost = list[0]["lost"].as_u64().unwrap();
    request(&stage.socket(), "DELETE", &path, "");
    let captured = reader.join().unwrap();
    assert!(captured.lost >= lost && lost > 0);
    let found = captured.check();
    assert_eq!(found.violation_count, 0, "{}", found.text());
    assert!(found.lost > 0 && found.lost <= captured.lost);
    stage.fabric.assert_passes_are_short();
}

/// A packet of this opcode with all its headers, and an invariant CRC.
fn packet_of(opcode: Opcode) -> Vec<u8> {
    let gid = |n| Gid::from_ipv4([10, 0, 0, n]);
    let mac = |n| MacAddr([2, 0, 0, 0, 0, n]);
    let kind = opcode.info().kind;
    let bth = Bth {
        becn: kind == OpKind::Cnp,
        ..Bth::new(opcode, 17, Psn::new(5))
    };
    let ip = Ip::from_gids(gid(1), gid(2), 0, 0, 64);
    let mut header = RoceHeader::new(mac(2), mac(1), ip, bth);
    let has = |headers| opcode.info().headers.contains(headers);
    // Queue pairs 0 and 1 would send management datagrams.
    header.deth = has(Headers::DETH).then_some(Deth { qkey: 4, src_qp: 9 });
    header.reth = has(Headers::RETH).then(Reth::default);
    header.aeth = has(Headers::AETH).then_some(Aeth {
        syndrome: Syndrome::ACK,
        msn: 1,
    });
    header.atomic = has(Headers::ATOMIC_ETH).then(AtomicEth::default);
    header.atomic_ack = has(Headers::ATOMIC_ACK_ETH).then(AtomicAckEth::default);
    header.imm = has(Headers::IMM).then_some(6);
    header.ieth = has(Headers::IETH).then_some(7);
    header.xrceth = has(Headers::XRCETH).then_some(XrcEth { srqn: 8 });
    header.feth = has(Headers::FETH).then(Feth::default);
    let len = match kind {
        OpKind::Cnp => 16,
        OpKind::AtomicWrite => 8,
        _ if opcode.info().payload => 256,
        _ => 0,
    };
    let mut octets = vec![0; header.frame_len(len)];
    header.emit(len, &mut octets).unwrap();
    seal(&mut octets).unwrap();
    octets
}

/// The output of tshark for the frames of a file that a display filter chooses, a line for each.
#[track_caller]
fn tshark(file: &Path, filter: &str) -> Vec<String> {
    let mut command = Command::new("tshark");
    command
        .arg("-r")
        .arg(file)
        .args(["-Y", filter, "-T", "fields"]);
    command.args(["-e", "frame.number", "-e", "infiniband.bth.opcode"]);
    // It takes any payload for a message of RPC.
    command.args(["--disable-protocol", "rpcordma"]);
    let output = command.output().expect("tshark is needed");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
#[ignore = "needs tshark: cargo lab test host::tshark"]
fn tshark_decodes_a_capture_of_every_opcode() {
    let stage = Stage::new();
    let (mut a, mut b) = stage.nodes();
    let capture = stage.capture("");
    connected(&mut a, &mut b, &Link::default());
    unreliable(&mut a, &mut b);
    let captured = stage.end(capture);
    let file = stage.fabric.socket("x.pcapng");
    std::fs::write(&file, &captured.bytes).unwrap();
    let decoded = tshark(&file, "infiniband");
    assert_eq!(decoded.len(), captured.packets.len());
    assert_eq!(tshark(&file, "_ws.malformed"), [""; 0]);
    // Those that this traffic has not.
    let mut writer = PcapNgWriter::new(std::fs::File::create(&file).unwrap()).unwrap();
    let interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
    writer.write_pcapng_block(interface).unwrap();
    for opcode in Opcode::ALL {
        let data = packet_of(*opcode);
        let block = EnhancedPacketBlock {
            original_len: data.len() as u32,
            data: data.into(),
            ..EnhancedPacketBlock::default()
        };
        writer.write_pcapng_block(block).unwrap();
    }
    drop(writer);
    let decoded = tshark(&file, "infiniband");
    for (line, (number, opcode)) in decoded.iter().zip((1..).zip(Opcode::ALL)) {
        assert_eq!(*line, format!("{number}\t{}", opcode.to_u8()));
    }
    assert_eq!(decoded.len(), Opcode::ALL.len());
    assert_eq!(tshark(&file, "_ws.malformed"), [""; 0]);
}

/// Each frame is captured once where it is sent and once where it arrives, with the effects of the link models.
#[test]
fn frames_on_modelled_links_have_comments_on_the_effects() {
    let bad = "{ loss = 0.02, duplicate = 0.03, reorder = 0.03, corrupt = 0.02, seed = 5 }";
    let stage = Stage::with(&format!(
        "[defaults]\nlink_tx = {bad}\nlink_rx = {}\n",
        bad.replace("seed = 5", "seed = 6")
    ));
    let (mut a, mut b) = stage.nodes();
    let capture = stage.capture("snaplen=128");
    let (mut qa, mut qb) = (a.qp(QpType::Rc).unwrap(), b.qp(QpType::Rc).unwrap());
    let link = Link {
        path_mtu: 2,
        ..Link::default()
    };
    connect(&qa, &qb, &link).unwrap();
    let mut rng = Rng::new(3);
    for _ in 0..4 {
        exchange((&mut a, &mut qa), (&mut b, &mut qb), &mut rng);
        exchange((&mut b, &mut qb), (&mut a, &mut qa), &mut rng);
    }
    let captured = stage.end(capture);
    assert_eq!(captured.lost, 0);
    let links = request(&stage.socket(), "GET", "/v1/links", "");
    let links: Vec<Value> = serde_json::from_str(&links).unwrap();
    assert_eq!(links.len(), 4);
    let comment = |effect: &str| match effect {
        "lost" => "dropped: lost at random by the model of the link",
        "duplicated" => "duplicated by the model of a link: it is sent twice",
        "reordered" => "reordered by the model of a link: others overtake it",
        _ => "corrupted by the model of a link",
    };
    for link in &links {
        let interface = usize::from(link["port"] == "b");
        let is_sent = link["direction"] == "tx";
        let found = comments(&captured, interface, is_sent);
        // An arriving frame has the effects of both links, so only the sender's side shows how often one of them had an
        // effect.
        let effects = ["lost", "duplicated", "reordered"];
        for effect in if is_sent { &effects[..] } else { &effects[..1] } {
            let count = link[effect].as_u64().unwrap();
            assert!(count > 0, "{effect}: {link}");
            let of_comment = found.get(comment(effect)).copied().unwrap_or_default();
            assert_eq!(of_comment as u64, count, "{effect}: {link}, {found:?}");
        }
        assert!(found.contains_key(comment("corrupted")), "{found:?}");
    }
    let metrics = request(&stage.socket(), "GET", "/metrics", "");
    for link in &links {
        let (port, direction) = (link["port"].as_str(), link["direction"].as_str());
        let line = format!(
            "faultline_link_model_frames_total{{port=\"{}\",direction=\"{}\",effect=\"lost\"}} {}",
            port.unwrap(),
            direction.unwrap(),
            link["lost"]
        );
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
    // Sent packets are legal, also those that are lost or changed later.
    let found = captured.check();
    assert_eq!(found.violation_count, 0, "{}", found.text());
}

/// A frame that a port drops where it comes in is captured there.
#[test]
fn a_frame_that_a_port_drops_on_its_way_in_is_captured() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", folder.path().join("wire").display());
    let port = |key: &str, more: &str| {
        format!("[[port]]\nname = \"wire\"\nkind = \"stream\"\n{key} = \"{address}\"\n{more}")
    };
    let stage = Stage::with(&port("listen", "mtu = 600\n"));
    let config = Config::from_toml(&port("connect", "reconnect_ms = 5\n")).unwrap();
    let other = Fabric::start_with(config, &["c"]).unwrap();
    let (a, _) = stage.nodes();
    let mut c = other.node("c").unwrap();
    let shows = |text| request(&stage.socket(), "GET", "/v1/ports", "").contains(text);
    until("connected", || shows("\"connected\":true"));
    let capture = stage.capture("nic=wire");
    let (mut qc, qa) = (c.qp(QpType::Rc).unwrap(), a.qp(QpType::Rc).unwrap());
    let link = Link {
        path_mtu: 3,
        timeout: 4,
        retries: 1,
        ..Link::default()
    };
    connect(&qc, &qa, &link).unwrap();
    let sges = [c.mr.sge(0, 1000)];
    let write = SendWr::write(&sges, a.mr.remote(IN)).signaled();
    // It is too long for the port.
    qc.post_send(&write).unwrap();
    assert!(!c.completion().is_ok());
    // The sender gives up before its frames have come in.
    until("dropped", || shows("\"too_long\":2"));
    let captured = stage.end(capture);
    assert_eq!(captured.interfaces, ["a", "b", "wire"]);
    let found = comments(&captured, 2, false);
    let dropped = found.get("dropped: longer than the MTU").copied();
    assert!(dropped.is_some_and(|count| count >= 2), "{found:?}");
    let metrics = request(&stage.socket(), "GET", "/metrics", "");
    let dropped = dropped.unwrap_or_default();
    let line = format!(
        "faultline_port_dropped_frames_total{{port=\"wire\",reason=\"too_long\"}} {dropped}"
    );
    assert!(metrics.contains(&line), "{line}\n{metrics}");
    assert!(metrics.contains("faultline_port_connected{port=\"wire\"} 1"));
}
