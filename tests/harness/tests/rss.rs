//! RSS over the socket: the hash, interrupts and their moderation, and work queues that fail under traffic.

use std::time::{Duration, Instant};

use faultline_abi::admin::{Counter, DESTROY_RWQ_IND_TABLE, DESTROY_WQ};
use faultline_abi::steering::*;
use faultline_abi::{Status, cqe};
use faultline_config::{Config, PollMode};
use faultline_harness::frames::{
    Frame, Network, SLOT, Stream, Transport, anything, drain_doorbells, raw_qp, rule, send,
};
use faultline_harness::testbed::{Fabric, LONG, Node};
use faultline_harness::{Cq, EventQueue, Flow, HASH_KEY_LEN, RssQp, RwqIndTable, Wq, pattern};

use crate::held_clock::HeldClock;

/// The key, addresses, ports and hashes of Microsoft's "Verifying the RSS Hash Calculation".
const KEY: [u8; HASH_KEY_LEN] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];
/// Source and destination, addresses and ports; hash of the addresses, and of all.
type Published = ([u8; 4], [u8; 4], u16, u16, u32, u32);
#[rustfmt::skip]
const PUBLISHED: [Published; 5] = [
    ([66, 9, 149, 187], [161, 142, 100, 80], 2794, 1766, 0x323e_8fc2, 0x51cc_c178),
    ([199, 92, 111, 2], [65, 69, 140, 83], 14230, 4739, 0xd718_262a, 0xc626_b0ea),
    ([24, 19, 198, 95], [12, 22, 207, 184], 12898, 38024, 0xd2d0_a5de, 0x5c2b_394a),
    ([38, 27, 205, 30], [209, 142, 163, 6], 48228, 2217, 0x8298_9176, 0xafc7_327f),
    ([153, 39, 163, 191], [202, 188, 127, 2], 44251, 1303, 0x5d18_09c5, 0x10e8_28a2),
];
const ADDRESSES: u32 = HASH_SRC_IPV4 | HASH_DST_IPV4;
const TCP_PORTS: u32 = HASH_SRC_PORT_TCP | HASH_DST_PORT_TCP;

/// A work queue with a CQ and an event queue of its own.
struct Queue {
    wq: Wq,
    cq: Cq,
    eq: EventQueue,
}

/// An RSS queue pair that receives all frames, and its work queues.
struct RssQueues {
    _flow: Flow,
    qp: RssQp,
    table: RwqIndTable,
    queues: Vec<Queue>,
}

impl RssQueues {
    const LOG_DEPTH: u8 = 6;
    /// The vector of the first.
    const VECTOR: u16 = 2;

    fn new(node: &Node, count: u16, fields: u32) -> Self {
        let mut queues: Vec<Queue> = (0..count)
            .map(|n| {
                let eq = node.nic.event_queue(Self::VECTOR + n, 0, 6).unwrap();
                let cq = node.context.cq(&eq, Self::LOG_DEPTH + 1).unwrap();
                let wq = node.context.wq(&node.pd, &cq, Self::LOG_DEPTH).unwrap();
                Queue { wq, cq, eq }
            })
            .collect();
        for queue in &mut queues {
            queue.wq.modify(WQS_RDY).unwrap();
        }
        let wqs: Vec<&Wq> = queues.iter().map(|queue| &queue.wq).collect();
        let table = node.nic.rwq_ind_table(&wqs).unwrap();
        let qp = node.context.rss_qp(&node.pd, &table, fields, &KEY);
        let qp = qp.unwrap();
        let flow = node.nic.flow(&qp, &rule(0, 0, 77), Some(&anything()));
        Self {
            _flow: flow.unwrap(),
            qp,
            table,
            queues,
        }
    }

    /// Posts the buffer with this number of the node's memory.
    fn post(&mut self, node: &Node, queue: usize, buffer: u32) {
        let sges = [node.mr.sge(buffer as usize * SLOT, SLOT)];
        self.queues[queue].wq.post(buffer, &sges).unwrap();
    }
}

#[test]
fn frames_go_to_the_queue_of_the_published_hash_and_interrupt_only_there() {
    const QUEUES: usize = 8;
    for (fields, with_ports) in [(ADDRESSES, false), (ADDRESSES | TCP_PORTS, true)] {
        let fabric = Fabric::start(PollMode::Never, &["a", "b"]).unwrap();
        let (mut a, b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
        let mut qa = raw_qp(&a, &a.cq, 6).unwrap();
        let mut rss = RssQueues::new(&b, QUEUES as u16, fields);
        for n in 0..16 * QUEUES {
            rss.post(&b, n % QUEUES, n as u32);
        }
        for (src, dst, sport, dport, addresses, all) in PUBLISHED {
            let frame = Frame {
                network: Network::V4 { src, dst },
                transport: Transport::Tcp,
                ports: (sport, dport),
                data: &pattern(u64::from(all), 333),
                ..Frame::to(&b.nic)
            };
            let hash = if with_ports { all } else { addresses };
            let target = hash as usize % QUEUES;
            for queue in &rss.queues {
                queue.cq.arm(false).unwrap();
                queue.eq.arm().unwrap();
            }
            drain_doorbells(&b);
            send(&mut a, &mut qa, &frame.bytes());
            let queue = &mut rss.queues[target];
            assert!(queue.eq.sleep(LONG).unwrap(), "no interrupt for {target}");
            assert_eq!(queue.eq.poll().unwrap().object.get(), queue.cq.number());
            let wc = queue.cq.poll().expect("told of it");
            assert!(wc.is_ok() && wc.flow_tag == 77, "{wc:?}");
            assert_eq!(wc.qpn, queue.wq.number());
            let bytes = b.buf.to_vec(wc.id as usize * SLOT, wc.len as usize);
            assert!(bytes == frame.bytes());
            for (n, queue) in rss.queues.iter_mut().enumerate() {
                assert_eq!(queue.cq.poll(), None, "queue {n} instead of {target}");
                assert!(!queue.eq.signalled(), "queue {n} instead of {target}");
            }
        }
    }
}

#[test]
fn notices_of_frames_wait_for_the_configured_time() {
    let config = Config {
        poll: PollMode::Adaptive,
        ..Config::default()
    };
    let fabric = Fabric::start_controlled(config, &["a", "b"]).unwrap();
    let socket = fabric.control();
    let (mut a, b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    let mut qa = raw_qp(&a, &a.cq, 6).unwrap();
    let mut rss = RssQueues::new(&b, 1, ADDRESSES);
    let frame = Frame::to(&b.nic).bytes();
    for n in 0..40 {
        rss.post(&b, 0, n);
    }
    // As many as it waits for, without a delay.
    const PERIOD: Duration = Duration::from_millis(60);
    let queue = &mut rss.queues[0];
    queue.cq.moderate(4, PERIOD.as_micros() as u16).unwrap();
    let clock = HeldClock::hold(&socket);
    for _ in 0..5 {
        clock.standing(|| {
            queue.cq.arm(false).unwrap();
            queue.eq.arm().unwrap();
            drain_doorbells(&b);
            (0..3).for_each(|_| send(&mut a, &mut qa, &frame));
            assert!(!queue.eq.signalled(), "told of three");
            send(&mut a, &mut qa, &frame);
            assert!(queue.eq.sleep(LONG).unwrap(), "not told of four");
        });
        assert_eq!(queue.eq.poll().unwrap().object.get(), queue.cq.number());
        assert_eq!(std::iter::from_fn(|| queue.cq.poll()).count(), 4);
    }
    // Fewer: at the end of the period, and not before.
    const TICK: Duration = Duration::from_micros(1);
    clock.standing(|| queue.cq.moderate(100, PERIOD.as_micros() as u16).unwrap());
    for _ in 0..3 {
        clock.standing(|| {
            queue.cq.arm(false).unwrap();
            queue.eq.arm().unwrap();
            drain_doorbells(&b);
            send(&mut a, &mut qa, &frame);
        });
        clock.advance(PERIOD - TICK);
        assert!(!queue.eq.signalled(), "told before the end of the period");
        clock.advance(TICK);
        assert!(queue.eq.signalled(), "not told at the end of the period");
        queue.eq.poll().unwrap();
        assert_eq!(std::iter::from_fn(|| queue.cq.poll()).count(), 1);
    }
    clock.release();
    // A failure at once.
    queue.cq.arm(false).unwrap();
    queue.eq.arm().unwrap();
    let posted: u32 = 40 - 5 * 4 - 3;
    queue.wq.modify(WQS_ERR).unwrap();
    assert!(queue.eq.sleep(LONG).unwrap(), "not told of an error");
    let flushed = std::iter::from_fn(|| queue.cq.poll()).count() as u32;
    assert_eq!(flushed, posted);
}

/// Buffers of each queue of the test below.
const BUFFERS: u32 = 32;

/// The buffers of a queue that has failed: received frames first, then posted ones, flushed; each buffer once.
fn flushed(rss: &mut RssQueues, bad: usize, b: &Node, stream: &Stream) -> Vec<u32> {
    let number = rss.queues[bad].wq.number();
    let mut buffers = Vec::new();
    while buffers.len() < BUFFERS as usize {
        let wc = rss.queues[bad].cq.poll_for(LONG).expect("a flush");
        match wc.status {
            cqe::SUCCESS => {
                assert!(buffers.is_empty(), "received after it failed");
                let frame = b.buf.to_vec(wc.id as usize * SLOT, wc.len as usize);
                stream.number_of(&frame);
                // Posted late: flushed at the doorbell that the record asks for.
                rss.post(b, bad, wc.id);
            }
            status => {
                assert_eq!((status, wc.qpn), (cqe::WR_FLUSH_ERR, number));
                buffers.push(wc.id);
            }
        }
    }
    let mut sorted = buffers.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), buffers.len(), "a buffer was flushed twice");
    buffers
}

/// A queue that a table names cannot be destroyed; when it fails, only its own frames are lost.
#[test]
fn a_queue_of_a_table_stays_and_its_failure_is_its_own() {
    const QUEUES: usize = 4;
    let fabric = Fabric::start(PollMode::Adaptive, &["a", "b"]).unwrap();
    let b = fabric.node("b").unwrap();
    let mut rss = RssQueues::new(&b, QUEUES as u16, HASH_SRC_PORT_UDP | HASH_DST_PORT_UDP);
    for n in 0..BUFFERS * QUEUES as u32 {
        rss.post(&b, n as usize % QUEUES, n);
    }
    let refused = |opcode, handle| {
        let result = b.nic.admin(opcode, handle, &[0u8; 0]);
        result.map(drop).unwrap_err().status()
    };
    // Ports from which frames go to all of the queues.
    let stream = Stream::start(fabric.node("a").unwrap(), &b, |number, frame| {
        frame.ports.0 = number as u16;
    });
    let mut taken = [0u64; QUEUES];
    let take = |rss: &mut RssQueues, taken: &mut [u64; QUEUES]| {
        for (n, taken) in taken.iter_mut().enumerate() {
            while let Some(wc) = rss.queues[n].cq.poll() {
                assert!(wc.is_ok(), "queue {n}: {wc:?}");
                let frame = b.buf.to_vec(wc.id as usize * SLOT, wc.len as usize);
                stream.number_of(&frame);
                *taken += 1;
                rss.post(&b, n, wc.id);
            }
        }
    };
    let run = |rss: &mut RssQueues, taken: &mut [u64; QUEUES], of: &[usize]| {
        let before = *taken;
        let start = Instant::now();
        while of.iter().any(|n| taken[*n] < before[*n] + 50) {
            take(rss, taken);
            assert!(start.elapsed() < LONG, "{before:?}, {taken:?}");
        }
    };
    run(&mut rss, &mut taken, &[0, 1, 2, 3]);
    for round in 0..20 {
        let bad = round % QUEUES;
        let number = rss.queues[bad].wq.number();
        assert_eq!(refused(DESTROY_WQ, number), Some(Status::InUse));
        let table = rss.table.number();
        assert_eq!(refused(DESTROY_RWQ_IND_TABLE, table), Some(Status::InUse));
        run(&mut rss, &mut taken, &[0, 1, 2, 3]);

        let dropped = |b: &Node| b.nic.counters().unwrap()[Counter::rx_filtered];
        let before = dropped(&b);
        rss.queues[bad].wq.modify(WQS_ERR).unwrap();
        let buffers = flushed(&mut rss, bad, &b, &stream);
        // The others continue; frames for this one are dropped, and counted.
        let others: Vec<usize> = (0..QUEUES).filter(|n| *n != bad).collect();
        let (start, from) = (Instant::now(), taken);
        while others.iter().any(|n| taken[*n] < from[*n] + 50) {
            stream.rest();
            take(&mut rss, &mut taken);
            stream.go_on();
            assert!(start.elapsed() < LONG, "{from:?}, {taken:?}");
        }
        assert!(dropped(&b) > before, "no frame was for queue {bad}");
        assert_eq!(taken[bad], from[bad]);
        let wq = &mut rss.queues[bad].wq;
        assert_eq!(
            wq.modify(WQS_RDY).unwrap_err().status(),
            Some(Status::BadTransition)
        );
        wq.modify(WQS_RESET).unwrap();
        for id in buffers {
            rss.post(&b, bad, id);
        }
        rss.queues[bad].wq.modify(WQS_RDY).unwrap();
        stream.rest();
        take(&mut rss, &mut taken);
        stream.go_on();
        run(&mut rss, &mut taken, &[0, 1, 2, 3]);
    }
    let RssQueues {
        _flow,
        qp,
        table,
        queues,
    } = rss;
    drop(stream);
    let numbers = (qp.number(), table.number(), queues[0].wq.number());
    drop((_flow, qp));
    drop(table);
    // After the table the queues can be destroyed: each has been, with its last owner.
    drop(queues);
    assert_eq!(
        refused(DESTROY_RWQ_IND_TABLE, numbers.1),
        Some(Status::BadRwqIndTable)
    );
    assert_eq!(refused(DESTROY_WQ, numbers.2), Some(Status::BadWq));
    assert_eq!(refused(DESTROY_WQ, numbers.0), Some(Status::BadWq));
}
