//! Captures of processes with one and several engines: time and comment of each captured frame.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use faultline_abi::qp::{QPT_RC, QPT_UD};
use faultline_abi::wqe::WR_SEND;
use faultline_capture::Captures;
use faultline_capture::capture::{CaptureFeed, CaptureFilter};
use faultline_capture::record::RecordHead;
use faultline_capture::records::CaptureRecords;
use faultline_capture::share::CaptureShare;
use faultline_fabric::link_model::LinkModel;
use faultline_fabric::outside::Seen;
use faultline_nic::{FaultPolicy, Instant};
use faultline_ports::channel;
use faultline_scenario::read::read;
use faultline_scenario::trigger::Direction;
use faultline_simulation::process::{PortShape, ProcessShape, Processes, Tap};
use faultline_wire::packet::{parse, parse_trusted};

use crate::common::{
    Absent, Connect, End, Expect, Memory, Send, connected, exchange, nics, pattern, process,
};

const LEN: u64 = 20_000;
/// Number of a capture.
const ID: u64 = 1;

/// The captures of an engine.
#[derive(Debug)]
struct OfEngine(Rc<RefCell<Captures>>);

impl Tap for OfEngine {
    fn begin_pass(&mut self, now: Instant) {
        self.0.borrow_mut().begin_pass(now);
    }

    fn seen(&mut self, now: Instant, seen: &Seen<'_, Memory>) {
        let mut captures = self.0.borrow_mut();
        match seen {
            Seen::Frame(sight) => captures.sight(now, sight),
            Seen::Arriving(nic) => captures.arriving(*nic),
            Seen::Diagnostic {
                nic,
                diagnostic,
                device,
            } => captures.diagnostic(now, *nic, diagnostic, device),
            _ => {}
        }
    }
}

/// A capture of all engines of the first process.
struct Capture {
    engines: Vec<Rc<RefCell<Captures>>>,
    share: Arc<CaptureShare>,
    records: CaptureRecords,
}

/// A frame of a capture.
#[derive(Debug)]
struct Packet {
    head: RecordHead,
    data: Vec<u8>,
}

impl Packet {
    fn comments(&self) -> Vec<String> {
        let comments = self.head.comments();
        comments.into_iter().map(String::from).collect()
    }

    fn psn(&self) -> u32 {
        parse_trusted(&self.data).unwrap().header.bth.psn.get()
    }
}

impl Capture {
    /// Prepares it in all engines; no frame is captured yet.
    fn prepare(world: &Processes, (engines, interfaces): (usize, usize), snaplen: usize) -> Self {
        let filter = CaptureFilter {
            ports: vec![true; interfaces],
            qpn: None,
            packets: None,
            snaplen,
            is_for_checker: false,
        };
        let (ends, reader) = channel::from_engines(engines, 16 << 20).unwrap();
        let share = CaptureShare::new(interfaces, engines);
        let begin = |(engine, end)| {
            let captures = Rc::new(RefCell::new(Captures::default()));
            let feed = CaptureFeed {
                engine,
                filter: filter.clone(),
                end,
                share: Arc::clone(&share),
            };
            assert!(captures.borrow_mut().start(ID, feed));
            let tap = OfEngine(Rc::clone(&captures));
            world.all[0].set_tap(engine, Some(Box::new(tap)));
            captures
        };
        Self {
            engines: ends.into_iter().enumerate().map(begin).collect(),
            records: CaptureRecords::new(reader, Arc::clone(&share)),
            share,
        }
    }

    fn begin(world: &Processes, of: (usize, usize), snaplen: usize) -> Self {
        let capture = Self::prepare(world, of, snaplen);
        assert!(capture.share.run());
        capture
    }

    /// Ends it in one engine, and returns the captured frames of all.
    fn end(mut self, engine: usize) -> Vec<Packet> {
        assert!(self.engines[engine].borrow_mut().end(ID));
        // The others end it in their next pass, which has no earlier records.
        for (index, captures) in self.engines.iter().enumerate() {
            captures.borrow_mut().begin_pass(Instant(u64::MAX));
            self.share.set_bound(index, None);
        }
        let take = |record: &[u8]| {
            let (head, data) = RecordHead::split(record).unwrap();
            let data = data.to_vec();
            Packet { head, data }
        };
        std::iter::from_fn(|| self.records.take(take)).collect()
    }
}

/// Packets of an interface in a direction.
fn at(packets: &[Packet], port: u16, is_sent: bool) -> Vec<&Packet> {
    let is_there = |packet: &&Packet| (packet.head.port, packet.head.is_sent) == (port, is_sent);
    packets.iter().filter(is_there).collect()
}

/// How many packets have each comment there.
fn comments(packets: &[Packet], port: u16, is_sent: bool) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for packet in at(packets, port, is_sent) {
        for comment in packet.comments() {
            *counts.entry(comment).or_default() += 1;
        }
    }
    counts
}

fn expected(list: &[(&str, usize)]) -> BTreeMap<String, usize> {
    let list = list.iter();
    list.map(|(text, count)| ((*text).to_owned(), *count))
        .collect()
}

fn world(engines: usize, links: [Option<LinkModel>; 2]) -> Processes {
    let mut nics = nics(2, |nic| nic % engines);
    for nic in &mut nics {
        nic.links = links;
    }
    process(&ProcessShape {
        engines,
        nics,
        seed: 4,
        ..ProcessShape::default()
    })
}

fn rc(world: &mut Processes) -> [End; 2] {
    connected(world, [(0, 0), (0, 1)], QPT_RC, (4, LEN), |path| path)
}

/// Two queue pairs for datagrams, with receives, and the address handle of the second one at the first.
fn datagrams(world: &mut Processes) -> ([End; 2], u32) {
    let mut ends = [(0, 0), (0, 1)].map(|at| End::new(world, at, QPT_UD, (6, LEN)));
    for end in &mut ends {
        end.activate(world, 1);
        (0..32).for_each(|tag| end.receive(world, tag, (0, 2000)));
    }
    let path = ends[1].path(world);
    let host = world.at((0, 0));
    let ah = host.driver.create_ah(host.pd, path.av()).unwrap();
    (ends, ah)
}

fn send_datagram(world: &mut Processes, ends: &mut [End; 2], (ah, len): (u32, u64)) {
    let [from, to] = ends;
    let send = Send {
        opcode: WR_SEND,
        sges: &[(from.mr.va, len as u32, from.mr.key)],
        ah,
        remote_qpn: to.qp.qpn,
        qkey: 1,
        ..Send::default()
    };
    from.post(world, &send);
    from.await_good(world, 1);
    world.settle();
}

/// A frame is sent at one time, and arrives at the same time, or on another engine a nanosecond later: the effects of a
/// frame are always later than the frame.
#[test]
fn a_capture_has_every_packet_where_it_is_sent_and_where_it_arrives() {
    for engines in [1, 2] {
        let mut world = world(engines, [None; 2]);
        let [mut a, mut b] = rc(&mut world);
        let before = world.all[0].watched().packets;
        let capture = Capture::begin(&world, (engines, 2), usize::MAX);
        for seed in 0..3 {
            exchange(&mut world, &mut a, &b, seed);
            exchange(&mut world, &mut b, &a, seed + 10);
        }
        let sent = world.all[0].watched().packets - before;
        let packets = capture.end(0);
        assert_eq!(packets.len() as u64, 2 * sent);
        let times: Vec<u64> = packets.iter().map(|packet| packet.head.at).collect();
        assert!(times.is_sorted());
        let crossing = engines as u64 - 1;
        for (from, to) in [(0, 1), (1, 0)] {
            let (sent, arrived) = (at(&packets, from, true), at(&packets, to, false));
            assert_eq!(sent.len(), arrived.len());
            for (sent, arrived) in sent.iter().zip(arrived) {
                assert!(sent.data == arrived.data);
                assert_eq!(arrived.head.at, sent.head.at + crossing);
                assert!(parse(&sent.data).unwrap().icrc_ok);
            }
        }
        assert!(packets.iter().all(|packet| packet.comments().is_empty()));
    }
}

/// All engines begin and end a capture together, whatever the number of frames on their links.
#[test]
fn engines_begin_and_end_a_capture_at_a_consistent_cut() {
    let mut world = world(2, [None; 2]);
    let [mut a, b] = rc(&mut world);
    let capture = Capture::prepare(&world, (2, 2), 128);
    exchange(&mut world, &mut a, &b, 1);
    assert!(capture.share.run());
    exchange(&mut world, &mut a, &b, 2);
    // The engine of the receiver ends it.
    let engines = capture.engines.clone();
    assert!(engines[1].borrow_mut().end(ID));
    exchange(&mut world, &mut a, &b, 3);
    assert!(!engines[0].borrow().is_on());
    let mut records = capture.records;
    capture.share.set_bound(0, None);
    capture.share.set_bound(1, None);
    let mut ports = [[0; 2]; 2];
    while let Some(head) = records.take(|record| RecordHead::split(record).unwrap().0) {
        ports[usize::from(head.port)][usize::from(head.is_sent)] += 1;
    }
    // The second WRITE: each packet is sent and arrives, and so does its acknowledgement.
    let packets = LEN.div_ceil(1024);
    assert_eq!(ports[0][1], packets);
    assert_eq!([ports[1][0], ports[0][0]], [ports[0][1], ports[1][1]]);
}

#[test]
fn a_run_is_captured_as_its_packets() {
    let mut world = world(1, [None; 2]);
    let [mut a, b] = rc(&mut world);
    for snaplen in [usize::MAX, 128] {
        let capture = Capture::begin(&world, (1, 2), snaplen);
        exchange(&mut world, &mut a, &b, 9);
        let packets = capture.end(0);
        let sent = at(&packets, 0, true);
        let mut written = Vec::new();
        for packet in &sent {
            assert_eq!(packet.data.len(), snaplen.min(packet.head.length as usize));
            if snaplen == usize::MAX {
                written.extend_from_slice(parse(&packet.data).unwrap().payload);
            }
        }
        assert_eq!(sent.len() as u64, LEN.div_ceil(1024));
        if snaplen == usize::MAX {
            assert!(written == pattern(9, LEN as usize));
        }
    }
}

fn set_link(world: &Processes, nic: usize, up: bool) {
    world.all[0].with_port(nic, |port| port.link_changed |= port.nic.change_link(up));
}

#[test]
fn a_dropped_frame_has_a_comment_with_the_reason() {
    let mut world = world(1, [None; 2]);
    let (mut ends, ah) = datagrams(&mut world);
    let mac = world.at((0, 1)).mac;
    let capture = Capture::begin(&world, (1, 2), 128);
    let faults =
        |world: &Processes, nic, mtu| world.all[0].with_port(nic, |port| port.faults.set_mtu(mtu));
    let mut send = |world: &mut Processes| send_datagram(world, &mut ends, (ah, 1000));
    faults(&world, 1, Some(500));
    send(&mut world);
    faults(&world, 1, None);
    set_link(&world, 1, false);
    send(&mut world);
    set_link(&world, 1, true);
    world.all[0].with_port(0, |port| port.faults.drop_frames(Direction::Tx, 1));
    send(&mut world);
    let rule = "[[rule]]\nnic = \"nic0\"\non = { dir = \"tx\", opcode = \"UD_SEND_ONLY\" }\ndo = { drop = {} }\n";
    let before = start(&world, rule);
    send(&mut world);
    world.all[0].stop_scenario(before).unwrap();
    let interface = |world: &mut Processes, mtu, up| {
        let driver = &mut world.at((0, 1)).driver;
        driver.set_interface(mac, mtu, 0, up).unwrap();
    };
    interface(&mut world, 500, true);
    send(&mut world);
    interface(&mut world, 1500, false);
    send(&mut world);
    interface(&mut world, 1500, true);
    world.at((0, 1)).driver.clear_gid(0).unwrap();
    send(&mut world);
    let packets = capture.end(0);
    assert_eq!(
        comments(&packets, 0, true),
        expected(&[
            ("dropped: by request (drop-frames)", 1),
            ("dropped: by rule[0] of the scenario", 1),
        ])
    );
    assert_eq!(
        comments(&packets, 1, false),
        expected(&[
            ("dropped: longer than the MTU", 1),
            (
                "dropped: the link is down, or the function has no bus mastering",
                1
            ),
            ("not received: longer than the MTU of the interface", 1),
            ("not received: the interface is down", 1),
            (
                "not received: no entry of the GID table has its destination and VLAN",
                1
            ),
        ])
    );
    assert_eq!(packets.len(), 7 + 5);
    world.expect_legal();
}

/// Starts a scenario of rules.
fn start(world: &Processes, rules: &str) -> faultline_fabric::scenario::CounterValues {
    let names = ["nic0", "nic1"].map(str::to_owned);
    let scenario = read("rules.toml", rules).unwrap_or_else(|problems| panic!("{problems}"));
    world.all[0].start_scenario(scenario.plan(&names, &[]).unwrap())
}

/// One datagram is lost, one is spoilt where it arrives, and one is doubled where it is sent.
#[test]
fn a_frame_that_a_rule_drops_or_changes_names_the_rule() {
    let mut world = world(1, [None; 2]);
    let (mut ends, ah) = datagrams(&mut world);
    let rule = |nic: &str, dir: &str, nth: u32, action: &str| {
        format!(
            "[[rule]]\nnic = \"{nic}\"\non = {{ dir = \"{dir}\", opcode = \"UD_SEND_ONLY\", nth = {nth} }}\ndo = {{ {action} = {{}} }}\n"
        )
    };
    let rules = [
        rule("nic0", "tx", 1, "drop"),
        rule("nic1", "rx", 1, "corrupt"),
        rule("nic0", "tx", 3, "duplicate"),
    ];
    let capture = Capture::begin(&world, (1, 2), 128);
    let before = start(&world, &rules.concat());
    for _ in 0..3 {
        send_datagram(&mut world, &mut ends, (ah, 1000));
    }
    let verdict = world.all[0].stop_scenario(before).unwrap();
    assert!(verdict.passed(), "{verdict:?}");
    assert_eq!(ends[1].await_good(&mut world, 2).len(), 2);
    let packets = capture.end(0);
    let taken = |rule, what: &str| {
        format!("dropped: taken by rule[{rule}] of the scenario, which passes it on later: {what}")
    };
    assert_eq!(
        comments(&packets, 0, true),
        expected(&[
            ("dropped: by rule[0] of the scenario", 1),
            (&taken(2, "duplicated"), 1),
        ])
    );
    assert_eq!(
        comments(&packets, 1, false),
        expected(&[
            (&taken(1, "corrupted"), 1),
            ("corrupted by rule[1] of the scenario", 1),
            ("duplicated by rule[2] of the scenario", 2),
        ])
    );
}

/// A connection whose second end is in absent memory.
fn to_absent(world: &mut Processes) -> ([End; 2], Absent) {
    let change = |path| Connect {
        path_mtu: 2,
        timeout: 10,
        ..path
    };
    let ends = connected(world, [(0, 0), (0, 1)], QPT_RC, (4, LEN), change);
    let absent = Absent::new(world, (0, 1));
    (ends, absent)
}

/// A packet whose page is absent is refused, dropped or stalled, as the policy says, and so are packets behind a
/// stalled one.
#[test]
fn a_packet_that_is_not_executed_for_lack_of_a_page_names_the_fault() {
    const PAGE: u32 = 4096;
    for engines in [1, 2] {
        for policy in [FaultPolicy::Rnr, FaultPolicy::Drop, FaultPolicy::Stall] {
            let shape = ProcessShape {
                engines,
                nics: nics(2, |nic| nic % engines),
                seed: 4,
                ..ProcessShape::default()
            };
            let mut world =
                Processes::with_config(&shape, &|config| config.fault_policy = policy).unwrap();
            let ([mut a, _b], mut absent) = to_absent(&mut world);
            let first = absent.va;
            absent.map(&mut world, first);
            let capture = Capture::begin(&world, (engines, 2), usize::MAX);
            a.write_to(&mut world, (absent.va, absent.key), u64::from(2 * PAGE));
            let fault = absent.fault(&mut world);
            absent.repair(&mut world, &fault);
            a.await_good(&mut world, 1);
            let packets = capture.end(0);
            let text = format!(
                "not executed now because of page fault {}",
                fault.token.get()
            );
            let mut psns = Vec::new();
            for packet in at(&packets, 1, false) {
                match &packet.comments()[..] {
                    [] => {}
                    [comment] if *comment == text => psns.push(packet.psn()),
                    more => panic!("{policy:?}: {more:?}"),
                }
            }
            let first = fault.psn.get();
            let count = match policy {
                FaultPolicy::Stall => PAGE / 512,
                _ => 1,
            };
            let expected: Vec<u32> = (first..first + count).collect();
            assert_eq!(psns, expected, "{engines} engines, {policy:?}");
            // The answer of policy `rnr` names it, too.
            let refusals = comments(&packets, 1, true);
            let waits = format!("waits for page fault {}", fault.token.get());
            match policy {
                FaultPolicy::Rnr => assert_eq!(refusals, BTreeMap::from([(waits, 1)])),
                _ => assert_eq!(refusals, BTreeMap::new()),
            }
        }
    }
}

/// A packet that waits behind a page fault is checked later, and refused then, because it is longer than the new MTU.
/// It was shown before, and the packet that arrives next is received.
#[test]
fn the_reason_of_a_late_refusal_stays_with_its_packet() {
    let shape = ProcessShape {
        engines: 1,
        nics: nics(2, |_| 0),
        ..ProcessShape::default()
    };
    let mut world = Processes::with_config(&shape, &|config| {
        config.fault_policy = FaultPolicy::Stall;
    })
    .unwrap();
    let ([mut a, _b], mut absent) = to_absent(&mut world);
    // The NIC pauses others that send to it, and not itself.
    let mut ends = [(0, 1), (0, 1)].map(|at| End::new(&mut world, at, QPT_UD, (4, LEN)));
    for end in &mut ends {
        end.activate(&mut world, 1);
        end.receive(&mut world, 0, (0, 2000));
    }
    let path = ends[1].path(&mut world);
    let host = world.at((0, 1));
    let (mac, ah) = (host.mac, host.driver.create_ah(host.pd, path.av()).unwrap());
    let capture = Capture::begin(&world, (1, 2), 128);
    a.write_to(&mut world, (absent.va, absent.key), 6);
    let fault = absent.fault(&mut world);
    send_datagram(&mut world, &mut ends, (ah, 1000));
    world
        .at((0, 1))
        .driver
        .set_interface(mac, 500, 0, true)
        .unwrap();
    absent.repair(&mut world, &fault);
    a.await_good(&mut world, 1);
    world.settle();
    let refused = world.counter((0, 1), faultline_abi::admin::Counter::rx_over_mtu);
    assert_eq!(refused, 1);
    send_datagram(&mut world, &mut ends, (ah, 100));
    let packets = capture.end(0);
    let text = format!(
        "not executed now because of page fault {}",
        fault.token.get()
    );
    assert_eq!(comments(&packets, 1, false), BTreeMap::from([(text, 2)]));
    assert_eq!(at(&packets, 1, false).len(), 3);
    assert_eq!(ends[1].await_good(&mut world, 1).len(), 1);
}

/// Each frame is captured once where it is sent and once where it arrives, with the effects of the link models.
#[test]
fn frames_on_modelled_links_have_comments_on_the_effects() {
    let bad = |seed| {
        Some(LinkModel {
            loss: 20_000,
            duplicate: 30_000,
            reorder: 30_000,
            corrupt: 20_000,
            seed,
            ..LinkModel::default()
        })
    };
    for engines in [1, 2] {
        let mut world = world(engines, [bad(5), bad(6)]);
        let change = |path| Connect {
            path_mtu: 2,
            timeout: 10,
            ..path
        };
        let at = [(0, 0), (0, 1)];
        let [mut a, mut b] = connected(&mut world, at, QPT_RC, (4, LEN), change);
        let capture = Capture::begin(&world, (engines, 2), 128);
        for seed in 0..6 {
            exchange(&mut world, &mut a, &b, seed);
            exchange(&mut world, &mut b, &a, seed + 10);
        }
        let packets = capture.end(0);
        for nic in [0, 1] {
            let of = |direction| {
                let counts = world.all[0].link_counts(nic, direction).unwrap();
                let found = comments(&packets, nic as u16, direction == Direction::Tx);
                (counts, move |text: &str| {
                    found.get(text).copied().unwrap_or(0) as u64
                })
            };
            // An arriving frame has the effects of both links, so only the sender's side shows how often one of them
            // had an effect.
            let (counts, found) = of(Direction::Tx);
            for (count, text) in [
                (counts.lost, LOST),
                (
                    counts.duplicated,
                    "duplicated by the model of a link: it is sent twice",
                ),
                (
                    counts.reordered,
                    "reordered by the model of a link: others overtake it",
                ),
            ] {
                assert!(count > 0, "{counts:?}");
                assert_eq!(found(text), count, "{text}");
            }
            let (counts, found) = of(Direction::Rx);
            assert!(counts.lost > 0, "{counts:?}");
            assert_eq!(found(LOST), counts.lost);
            assert!(found("corrupted by the model of a link") > 0);
        }
        // Sent packets are legal, also those that are lost or changed later.
        world.expect_legal();
    }
}

const LOST: &str = "dropped: lost at random by the model of the link";

/// A frame that a port drops where it comes in is captured there.
#[test]
fn a_frame_that_a_port_drops_on_its_way_in_is_captured() {
    for engines in [1, 2] {
        let mut world = process(&ProcessShape {
            engines,
            nics: nics(2, |nic| nic % engines),
            ports: vec![PortShape {
                mtu: Some(600),
                room: 1 << 20,
                ..PortShape::default()
            }],
            ..ProcessShape::default()
        });
        let capture = Capture::begin(&world, (engines, 3), 128);
        let peer = world.all[0].peer(0).unwrap().clone();
        let frame = |len| {
            let mut frame = vec![0; len];
            frame[..12].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9]);
            frame[12..14].copy_from_slice(&[0x88, 0xb5]);
            frame
        };
        // The MTU is without the Ethernet header.
        for len in [614, 615, 614, 1000] {
            peer.send(frame(len));
        }
        peer.send(vec![0; 13]);
        world.settle();
        let packets = capture.end(0);
        assert_eq!(
            comments(&packets, 2, false),
            expected(&[
                ("dropped: longer than the MTU", 2),
                ("dropped: shorter than an Ethernet header", 1),
            ])
        );
        let lengths = |port| {
            let found = at(&packets, port, false);
            found.iter().map(|it| it.head.length).collect::<Vec<_>>()
        };
        assert_eq!(lengths(2), [614, 615, 614, 1000, 13]);
        assert_eq!([lengths(0), lengths(1)], [[614, 614]; 2]);
        let counts = world.all[0].port_counts(0).unwrap();
        assert_eq!((counts.too_long, counts.too_short), (2, 1));
    }
}
