//! Raw frames over the socket: flows, their interrupts, and frames under traffic while flows are destroyed and memory
//! is removed.

use std::time::Instant;

use faultline_abi::admin::Counter;
use faultline_abi::steering::*;
use faultline_abi::{cqe, event};
use faultline_config::PollMode;
use faultline_harness::frames::{
    Frame, Network, RawReceiver, Stream, Transport, anything, drain_doorbells, raw_qp, rule, send,
};
use faultline_harness::testbed::{ALL_ACCESS, Fabric, LONG, Node};
use faultline_harness::traffic::Neighbours;
use faultline_harness::{EventQueue, Flow, Nic, Ram, Rng, SendWr, Wc, pattern};

const VLAN: u16 = 0x6123;

/// Fields that must be as they are if they are not zero.
fn exactly(values: FlowFields) -> (FlowFields, FlowFields) {
    use zerocopy::{FromBytes, IntoBytes};
    let mask: Vec<u8> = values
        .as_bytes()
        .iter()
        .map(|byte| if *byte == 0 { 0 } else { 0xff })
        .collect();
    (values, FlowFields::read_from_bytes(&mask).unwrap())
}

/// Fields of a flow, and the frames of the test that match.
fn flows() -> [(u32, FlowFields, [bool; 5]); 7] {
    let v4 = FlowFields {
        src_ip: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 1, 1, 1],
        ..FlowFields::default()
    };
    let v6 = FlowFields {
        dst_ip: [0xb0; 16],
        ..FlowFields::default()
    };
    let to_port = FlowFields {
        dst_port: 5678u16.to_be_bytes(),
        ..FlowFields::default()
    };
    let vlan = FlowFields {
        vlan_tci: VLAN.to_be_bytes(),
        ..FlowFields::default()
    };
    let kind = FlowFields {
        ether_type: [0x88, 0xb5],
        ..FlowFields::default()
    };
    let tcp = FLOW_HAS_IPV4 | FLOW_HAS_TCP;
    let udp = FLOW_HAS_IPV6 | FLOW_HAS_UDP;
    // Frames: UDP and TCP over IPv4, UDP over IPv6, UDP over IPv4 with a VLAN tag, something else.
    [
        (FLOW_HAS_ETH, kind, [false, false, false, false, true]),
        (FLOW_HAS_ETH, vlan, [false, false, false, true, false]),
        (FLOW_HAS_IPV4, v4, [true, true, false, true, false]),
        (FLOW_HAS_IPV6, v6, [false, false, true, false, false]),
        (tcp, to_port, [false, true, false, false, false]),
        (udp, to_port, [false, false, true, false, false]),
        (
            FLOW_HAS_UDP | FLOW_HAS_IPV4,
            to_port,
            [true, false, false, true, false],
        ),
    ]
}

#[test]
fn only_the_receiver_of_a_frame_is_interrupted() {
    for poll in [PollMode::Adaptive, PollMode::Never] {
        let fabric = Fabric::start(poll, &["a", "b"]).unwrap();
        let (mut a, b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
        let mut qa = raw_qp(&a, &a.cq, 6).unwrap();
        let plain = Frame::to(&b.nic);
        let data: Vec<Vec<u8>> = (0..5).map(|n| pattern(n, 100 + n as usize)).collect();
        let frames: Vec<Vec<u8>> = [
            plain,
            Frame {
                transport: Transport::Tcp,
                ..plain
            },
            Frame {
                network: Network::V6 {
                    src: [0xa0; 16],
                    dst: [0xb0; 16],
                },
                ..plain
            },
            Frame {
                vlan: Some(VLAN),
                ..plain
            },
            Frame {
                network: Network::Other(0x88b5),
                ..plain
            },
        ]
        .iter()
        .zip(&data)
        .map(|(frame, data)| Frame { data, ..*frame }.bytes())
        .collect();
        // Each receiver has an interrupt vector of its own.
        let mut receivers: Vec<(EventQueue, RawReceiver, Flow, [bool; 5])> = flows()
            .into_iter()
            .enumerate()
            .map(|(n, (headers, values, expected))| {
                let eq = b.nic.event_queue(2 + n as u16, 0, 6).unwrap();
                let receiver = RawReceiver::new(&b, &eq).unwrap();
                let create = rule(0, headers, 100 + n as u32);
                let flow = b.nic.flow(&receiver.qp, &create, Some(&exactly(values)));
                (eq, receiver, flow.unwrap(), expected)
            })
            .collect();
        for (number, frame) in frames.iter().enumerate() {
            for (eq, receiver, ..) in &receivers {
                receiver.cq.arm(false).unwrap();
                eq.arm().unwrap();
            }
            drain_doorbells(&b);
            send(&mut a, &mut qa, frame);
            let wanted = |expected: &[bool; 5]| expected[number];
            for (n, (eq, receiver, _, expected)) in receivers.iter_mut().enumerate() {
                if !wanted(expected) {
                    continue;
                }
                assert!(eq.sleep(LONG).unwrap(), "{poll:?}: flow {n}, no interrupt");
                let notice = eq.poll().unwrap();
                let cqn = receiver.cq.number();
                assert_eq!((notice.kind, notice.object.get()), (event::COMPLETION, cqn));
                let (wc, bytes) = receiver.receive().unwrap();
                assert_eq!(wc.flow_tag, 100 + n as u32);
                assert!(bytes == *frame, "frame {number} is another one");
            }
            for (n, (eq, receiver, ..)) in receivers.iter_mut().enumerate() {
                assert!(receiver.receive().is_none(), "flow {n} took frame {number}");
                assert!(!eq.signalled(), "flow {n} was told of frame {number}");
            }
        }
        // Without flows no receiver gets it.
        let filtered = |b: &Node| b.nic.counters().unwrap()[Counter::rx_filtered];
        let before = filtered(&b);
        receivers.clear();
        send(&mut a, &mut qa, &frames[0]);
        assert_eq!(filtered(&b), before + 1);
    }
}

#[test]
fn unmatched_frames_go_to_default_flows_and_sniffers_see_all() {
    let fabric = Fabric::start(PollMode::Adaptive, &["a", "b"]).unwrap();
    let (mut a, b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    let mut qa = raw_qp(&a, &a.cq, 6).unwrap();
    let kinds = [
        FLOW_KIND_NORMAL,
        FLOW_KIND_ALL_DEFAULT,
        FLOW_KIND_MC_DEFAULT,
        FLOW_KIND_SNIFFER,
    ];
    let mut receivers: Vec<(RawReceiver, Flow)> = kinds
        .into_iter()
        .map(|kind| {
            let receiver = RawReceiver::new(&b, &b.eq).unwrap();
            let create = CreateFlow {
                kind,
                ..rule(0, 0, u32::from(kind))
            };
            let udp = exactly(FlowFields {
                dst_port: 7u16.to_be_bytes(),
                ..FlowFields::default()
            });
            let flow = match kind {
                FLOW_KIND_NORMAL => {
                    let create = rule(0, FLOW_HAS_IPV4 | FLOW_HAS_UDP, u32::from(kind));
                    b.nic.flow(&receiver.qp, &create, Some(&udp))
                }
                _ => b.nic.flow(&receiver.qp, &create, None),
            };
            (receiver, flow.unwrap())
        })
        .collect();
    let unicast = Frame::to(&b.nic);
    let multicast = [0x01, 0x50, 0x56, 1, 2, 3];
    for (dst, port, expected) in [
        (unicast.dst, 7, [1, 0, 0, 1]),
        (unicast.dst, 8, [0, 1, 0, 1]),
        (multicast, 7, [1, 0, 0, 1]),
        (multicast, 8, [0, 1, 1, 1]),
    ] {
        let frame = Frame {
            dst,
            ports: (1, port),
            ..unicast
        };
        send(&mut a, &mut qa, &frame.bytes());
        let got: Vec<usize> = receivers
            .iter_mut()
            .enumerate()
            .map(|(kind, (receiver, _))| {
                std::iter::from_fn(|| receiver.receive())
                    .inspect(|(wc, bytes)| {
                        assert_eq!(wc.flow_tag, kind as u32);
                        assert!(*bytes == frame.bytes());
                    })
                    .count()
            })
            .collect();
        assert_eq!(got, expected, "to {dst:x?}, port {port}");
    }
}

/// Once DESTROY_FLOW has completed, the flow's queue pair gets no frame, and no frame is lost between two flows.
#[test]
fn flows_come_and_go_under_traffic_and_no_frame_is_lost() {
    const COMMANDS: usize = 600;
    const PRIORITIES: usize = 3;
    let fabric = Fabric::start(PollMode::Adaptive, &["a", "b", "c", "d"]).unwrap();
    let neighbours = Neighbours::start(&fabric, ["c", "d"]).unwrap();
    let b = fabric.node("b").unwrap();
    let mut receivers: Vec<RawReceiver> = (0..PRIORITIES)
        .map(|_| RawReceiver::new(&b, &b.eq).unwrap())
        .collect();
    let lead = |receiver: &RawReceiver, priority: usize| {
        let create = rule(priority as u16, FLOW_HAS_IPV4 | FLOW_HAS_UDP, 0);
        let flow = b.nic.flow(&receiver.qp, &create, Some(&anything()));
        flow.unwrap()
    };
    // The last one stays, so that each frame has a receiver.
    let last = PRIORITIES - 1;
    let _always = lead(&receivers[last], last);
    let mut flows: Vec<Option<Flow>> = (0..last).map(|_| None).collect();
    let stream = Stream::start(fabric.node("a").unwrap(), &b, |_, _| {});
    let mut rng = Rng::new(1);
    // The receiver of each frame; and for each command, the first frame sent after it and the receiver of later frames.
    let mut holders: Vec<Option<usize>> = Vec::new();
    let mut phases: Vec<(u64, usize)> = vec![(0, last)];
    let take_all = |receivers: &mut Vec<RawReceiver>, holders: &mut Vec<Option<usize>>| {
        for (n, receiver) in receivers.iter_mut().enumerate() {
            while let Some((_, frame)) = receiver.receive() {
                let number = stream.number_of(&frame) as usize;
                if holders.len() <= number {
                    holders.resize(number + 1, None);
                }
                assert_eq!(holders[number], None, "frame {number} came twice");
                holders[number] = Some(n);
            }
        }
    };
    for _ in 0..COMMANDS {
        let wanted = stream.next_number() + rng.below(40);
        let start = Instant::now();
        while stream.next_number() < wanted {
            take_all(&mut receivers, &mut holders);
            assert!(start.elapsed() < LONG, "the stream stands still");
        }
        let n = rng.below(last as u64) as usize;
        flows[n] = match flows[n].take() {
            Some(flow) => {
                drop(flow);
                None
            }
            None => Some(lead(&receivers[n], n)),
        };
        let best = flows.iter().position(Option::is_some).unwrap_or(last);
        phases.push((stream.next_number(), best));
    }
    stream.stop();
    let sent = stream.next_number();
    let start = Instant::now();
    while stream.done() < sent {
        take_all(&mut receivers, &mut holders);
        assert!(start.elapsed() < LONG, "frames are lost");
    }
    assert_eq!(holders.len() as u64, sent);
    // A command may overtake frames that were posted before it, but no frame that was posted after it. So the last
    // command before each frame is that of the frame before, or a later one.
    let (mut phase, mut late) = (0, 0);
    for (number, holder) in holders.iter().enumerate() {
        let done = phases.partition_point(|(first, _)| *first <= number as u64) - 1;
        phase = phase.max(done);
        while *holder != phases.get(phase).map(|(_, best)| *best) {
            phase += 1;
            late += 1;
            assert!(
                phase < phases.len(),
                "frame {number}, after command {done}, went astray"
            );
        }
    }
    println!("{sent} frames, {late} commands overtook some");
    assert!(sent > 5000, "{sent} frames only");
    let used: Vec<usize> = (0..PRIORITIES)
        .map(|n| holders.iter().filter(|holder| **holder == Some(n)).count())
        .collect();
    assert!(used.iter().all(|used| *used > 100), "{used:?}");
    neighbours.finish();
}

/// Frames of a burst: enough that the device is in the midst of them for a while.
const BURST: usize = 600;
/// Frames that differ, and bytes from one to the next.
const DISTINCT: usize = 32;
const STEP: usize = 8192;

/// Frames for a node, the one with number n under n modulo DISTINCT.
fn burst(to: &Node) -> Vec<Vec<u8>> {
    let make = |n: u64| {
        let data = pattern(n, 8000);
        let frame = Frame {
            data: &data,
            ..Frame::to(&to.nic)
        };
        frame.bytes()
    };
    (0..DISTINCT as u64).map(make).collect()
}

/// Completions of a queue: some, then memory is taken back and filled, then the others.
fn taken_in_the_midst(
    nic: &Nic,
    ram: &Ram,
    fill: &[u8],
    rng: &mut Rng,
    mut next: impl FnMut() -> Wc,
) -> Vec<Wc> {
    let mut found: Vec<Wc> = (0..rng.below(BURST as u64)).map(|_| next()).collect();
    nic.take_back(ram).unwrap();
    ram.file().write(0, fill).unwrap();
    while found.len() < BURST {
        found.push(next());
    }
    found
}

#[test]
fn buffers_of_frames_may_go_while_frames_arrive() {
    let fabric = Fabric::start_slow(&["a", "b"], &["a"]).unwrap();
    let (mut a, b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    let mut qa = raw_qp(&a, &a.cq, 10).unwrap();
    let lent = Ram::new(DISTINCT * STEP, 0x77_0000_0000).unwrap();
    b.nic.lend(&lent).unwrap();
    let lent_buf = lent.alloc(DISTINCT * STEP, 4096).unwrap();
    let lent_mr = b.pd.register(&lent_buf, ALL_ACCESS).unwrap();
    let mut cq = b.context.cq(&b.eq, 11).unwrap();
    let mut qb = raw_qp(&b, &cq, 10).unwrap();
    let _flow = b.nic.flow(&qb, &rule(0, 0, 5), Some(&anything())).unwrap();
    let frames = burst(&b);
    for (n, frame) in frames.iter().enumerate() {
        a.buf.write(n * STEP, frame);
    }
    let mut rng = Rng::new(2);
    let mut cut_short = 0;
    // A test that gets no processor may see the end of a round before it takes anything. Further rounds follow then.
    let mut round = 0;
    while round < 60 || cut_short <= 5 {
        assert!(round < 600, "{cut_short} times only");
        round += 1;
        b.buf.fill(0, DISTINCT * STEP, 0);
        // Every other one in memory that goes.
        for n in 0..BURST {
            let mr = if n % 2 == 0 { &lent_mr } else { &b.mr };
            let sges = [mr.sge(n % DISTINCT * STEP, STEP)];
            qb.post_recv(n as u32, &sges).unwrap();
        }
        for n in 0..BURST {
            let at = n % DISTINCT;
            let sges = [a.mr.sge(at * STEP, frames[at].len())];
            qa.post_send(&SendWr::raw(&sges)).unwrap();
        }
        let canary = pattern(round, lent.file().len());
        let next = || cq.poll_for(LONG).expect("a frame");
        let found = taken_in_the_midst(&b.nic, &lent, &canary, &mut rng, next);
        let mut gone = false;
        for (n, wc) in found.iter().enumerate() {
            assert_eq!(wc.id as usize, n);
            if n % 2 == 1 {
                assert!(wc.is_ok() && wc.flow_tag == 5, "{wc:?}");
            } else if !wc.is_ok() {
                assert_eq!((wc.status, wc.vendor_err), (cqe::LOC_PROT_ERR, cqe::DMA));
                gone = true;
            } else {
                assert!(!gone, "buffer {n} was there again");
            }
        }
        cut_short += usize::from(gone && found[0].is_ok());
        for (n, frame) in frames.iter().enumerate().skip(1).step_by(2) {
            assert!(b.buf.to_vec(n * STEP, frame.len()) == *frame);
        }
        for _ in 0..BURST {
            let wc = a.good_completion();
            qa.retire(&wc);
        }
        let mut now = vec![0; canary.len()];
        lent.file().read(0, &mut now).unwrap();
        assert!(now == canary, "the device wrote to memory that was taken");
        b.nic.lend(&lent).unwrap();
    }
    println!("taken in the midst of frames {cut_short} times");
}

#[test]
fn frames_may_go_while_they_are_sent() {
    let fabric = Fabric::start_slow(&["a", "b"], &["a"]).unwrap();
    let (mut a, b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    let lent = Ram::new(DISTINCT * STEP, 0x77_0000_0000).unwrap();
    a.nic.lend(&lent).unwrap();
    let buf = lent.alloc(DISTINCT * STEP, 4096).unwrap();
    let mr = a.pd.register(&buf, ALL_ACCESS).unwrap();
    let frames = burst(&b);
    let mut rng = Rng::new(3);
    let mut cut_short = 0;
    // A test that gets no processor may see the end of a round before it takes anything. Further rounds follow then.
    let mut round = 0;
    while round < 60 || cut_short <= 5 {
        assert!(round < 600, "{cut_short} times only");
        round += 1;
        let mut qa = raw_qp(&a, &a.cq, 10).unwrap();
        let mut cq = b.context.cq(&b.eq, 11).unwrap();
        let mut qb = raw_qp(&b, &cq, 10).unwrap();
        let flow = b.nic.flow(&qb, &rule(0, 0, 0), Some(&anything()));
        b.buf.fill(0, DISTINCT * STEP, 0);
        for n in 0..BURST {
            let sges = [b.mr.sge(n % DISTINCT * STEP, STEP)];
            qb.post_recv(n as u32, &sges).unwrap();
        }
        for (n, frame) in frames.iter().enumerate() {
            buf.write(n * STEP, frame);
        }
        for n in 0..BURST {
            let at = n % DISTINCT;
            let sges = [mr.sge(at * STEP, frames[at].len())];
            qa.post_send(&SendWr::raw(&sges)).unwrap();
        }
        let canary = pattern(round, lent.file().len());
        let nic = a.nic.clone();
        let found = taken_in_the_midst(&nic, &lent, &canary, &mut rng, || a.completion());
        let well = found.iter().take_while(|wc| wc.is_ok()).count();
        if let Some(failed) = found.get(well) {
            let expected = (cqe::LOC_PROT_ERR, cqe::DMA);
            assert_eq!((failed.status, failed.vendor_err), expected);
            let flushed = |wc: &Wc| wc.status == cqe::WR_FLUSH_ERR;
            assert!(found[well + 1..].iter().all(flushed), "{found:?}");
        }
        cut_short += usize::from((1..BURST).contains(&well));
        // Sent frames arrive, unchanged; nothing follows them.
        for _ in 0..well {
            assert!(cq.poll_for(LONG).expect("a frame").is_ok());
        }
        assert!(cq.poll().is_none());
        for (n, frame) in frames.iter().enumerate().take(well) {
            let bytes = b.buf.to_vec(n * STEP, frame.len());
            assert!(bytes == *frame, "frame {n} of {well}");
        }
        drop(flow);
        a.nic.lend(&lent).unwrap();
    }
    println!("taken in the midst of frames {cut_short} times");
}
