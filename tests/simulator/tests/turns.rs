//! For any requests of a guest, others have their turn after about a millisecond.

use faultline_abi::admin::{CREATE_MKEY, Counter, CreateMkey, MKEY_WINDOW_1};
use faultline_abi::qp::*;
use faultline_abi::steering::{CreateFlow, FLOW_HAS_ETH, FLOW_KIND_NORMAL, FLOW_KIND_SNIFFER};
use faultline_abi::wqe::{self as wr, BindMwWqe};
use faultline_abi::{U32, cqe, doorbell};
use faultline_nic::TURN_WORK;
use faultline_simulation::{QpConfig, Send};
use faultline_simulator::World;
use zerocopy::IntoBytes;

/// A turn, and the work that had begun in it.
const LONGEST: u64 = 2 * TURN_WORK;

/// Operations without packets and completions are work, too.
#[test]
fn silent_operations_take_turns() {
    const QPS: usize = 4;
    const DEPTH: u32 = 1 << 12;
    let mut world = World::new(2, 1);
    let host = &mut world.hosts[0];
    let create = CreateMkey {
        pd: U32::new(host.pd),
        flags: U32::new(MKEY_WINDOW_1),
        ..CreateMkey::default()
    };
    let window = host.driver.command(CREATE_MKEY, 0, &create).unwrap().handle;
    let bind = BindMwWqe {
        opcode: wr::WR_BIND_MW,
        rkey: window,
        ..BindMwWqe::default()
    };
    let mut cq = host.cq(6).unwrap();
    let peer_cq = world.hosts[1].cq(6).unwrap();
    let (from, to) = (
        world.hosts[0].mr(4096).unwrap(),
        world.hosts[1].mr(4096).unwrap(),
    );
    let write = Send {
        opcode: wr::WR_WRITE,
        flags: 0,
        sges: &[(from.va, 8, from.key)],
        remote_addr: to.va,
        rkey: to.key,
        ..Send::default()
    };
    // The requests before the operations are lost. The next ones cause NAKs, after which the requester goes past all operations again.
    world.lose(|_, _| true);
    let mut qps = Vec::new();
    for _ in 0..QPS {
        let config = QpConfig {
            log_depth: 12,
            flags: 0,
            ..world.hosts[0].qp_config(QPT_RC, &cq)
        };
        let mut qp = world.hosts[0].driver.create_qp(&config).unwrap();
        let peer = world.hosts[1].qp(QPT_RC, &peer_cq).unwrap();
        world.connect_qps(QPT_RC, [qp.qpn, peer.qpn], |_| {});
        let driver = &mut world.hosts[0].driver;
        driver.post_send(&mut qp, &write);
        for n in 3..DEPTH {
            let flags = match n + 1 == DEPTH {
                true => wr::WR_FLAG_SIGNALED,
                false => 0,
            };
            let bind = BindMwWqe { flags, ..bind };
            driver.post_raw_send(&mut qp, bind.as_bytes());
        }
        qps.push(qp);
    }
    let before = world.with_nic(0, |nic| nic.work());
    world.lose_nothing();
    for qp in &mut qps {
        world.hosts[0].driver.post_send(qp, &write);
    }
    world.run();
    let done = world.completions(0, &mut cq);
    let statuses: Vec<u8> = done.iter().map(|cqe| cqe.status).collect();
    assert_eq!(statuses, [cqe::SUCCESS; QPS]);
    let work = world.with_nic(0, |nic| nic.work()) - before;
    assert!(work > LONGEST, "{work}: too little to show anything");
    assert!(world.longest_call() < LONGEST, "{}", world.longest_call());
}

/// A guest that posts receives as fast as they are flushed occupies its queue, not the device.
#[test]
fn a_flush_ends() {
    const DEPTH: u32 = 1 << 8;
    let mut world = World::new(1, 1);
    let host = &mut world.hosts[0];
    let mut cq = host.cq(12).unwrap();
    let config = QpConfig {
        log_depth: 8,
        ..host.qp_config(QPT_RC, &cq)
    };
    let qp = host.driver.create_qp(&config).unwrap();
    host.driver.set_state(qp.qpn, QPS_ERR).unwrap();
    world.keep_full(0, &qp, 100);
    world.hosts[0].driver.ring(0, doorbell::RQ, qp.qpn, 0);
    let flushed = world.completions(0, &mut cq);
    assert_eq!(flushed.len() as u32, DEPTH);
    // It continues when it learns of more.
    world.hosts[0].driver.ring(0, doorbell::RQ, qp.qpn, 0);
    let flushed = world.completions(0, &mut cq);
    assert_eq!(flushed.len() as u32, DEPTH);
}

/// Completes a whole send queue and a whole receive queue as flushed: not at once, and in order.
#[test]
fn a_flush_gives_way() {
    const LOG_DEPTH: u8 = 15;
    const DEPTH: u32 = 1 << LOG_DEPTH;
    let mut world = World::new(2, 1);
    let mut cq = world.hosts[0].cq(17).unwrap();
    let peer_cq = world.hosts[1].cq(4).unwrap();
    let config = QpConfig {
        log_depth: LOG_DEPTH,
        max_sge: 1,
        ..world.hosts[0].qp_config(QPT_RC, &cq)
    };
    let mut qp = world.hosts[0].driver.create_qp(&config).unwrap();
    let peer = world.hosts[1].qp(QPT_RC, &peer_cq).unwrap();
    world.connect_qps(QPT_RC, [qp.qpn, peer.qpn], |_| {});
    world.lose(|_, _| true);
    let driver = &mut world.hosts[0].driver;
    for tag in 0..DEPTH {
        driver.post_recv(&mut qp, tag, &[]);
        driver.post_send(&mut qp, &Send::default());
    }
    let before = world.with_nic(0, |nic| nic.work());
    let driver = &mut world.hosts[0].driver;
    driver.set_state(qp.qpn, QPS_ERR).unwrap();
    // Requests that are posted meanwhile are flushed after the others.
    let early = world.completions(0, &mut cq);
    assert!(early.len() < DEPTH as usize, "{}", early.len());
    for _ in &early {
        let driver = &mut world.hosts[0].driver;
        driver.post_send(&mut qp, &Send::default());
    }
    world.run();
    let work = world.with_nic(0, |nic| nic.work()) - before;
    assert!(work > 4 * LONGEST, "{work}: too little to show anything");
    assert!(world.longest_call() < LONGEST, "{}", world.longest_call());
    let mut found = early;
    found.extend(world.completions(0, &mut cq));
    assert!(found.iter().all(|cqe| cqe.status == cqe::WR_FLUSH_ERR));
    let is_receive = |cqe: &&cqe::Cqe| cqe.opcode & cqe::RECV != 0;
    let received = found.iter().filter(is_receive).map(|cqe| cqe.wqe.get());
    assert!(received.eq(0..DEPTH));
    let sent = found.iter().filter(|cqe| !is_receive(cqe));
    let sent: Vec<u32> = sent.map(|cqe| cqe.wqe.get()).collect();
    assert!(sent.len() > DEPTH as usize);
    assert!(sent.iter().copied().eq(0..sent.len() as u32));
}

/// The send queue of datagrams continues after its flush, even if software does not wait for the end of the flush.
#[test]
fn a_repaired_queue_flushes_first() {
    const LOG_DEPTH: u8 = 15;
    const DEPTH: u32 = 1 << LOG_DEPTH;
    let mut world = World::new(1, 1);
    let host = &mut world.hosts[0];
    let mut cq = host.cq(17).unwrap();
    let config = QpConfig {
        log_depth: LOG_DEPTH,
        max_sge: 1,
        ..host.qp_config(QPT_RAW, &cq)
    };
    let mr = host.mr(4096).unwrap();
    let driver = &mut host.driver;
    let mut qp = driver.create_qp(&config).unwrap();
    driver.activate(qp.qpn, QPT_RAW, 0).unwrap();
    let sges = [(mr.va, 64, mr.key)];
    let good = Send {
        opcode: wr::WR_RAW,
        sges: &sges,
        ..Send::default()
    };
    let bad = Send {
        opcode: wr::WR_READ,
        ..Send::default()
    };
    // All requests are announced together.
    driver.write_send(&mut qp, &bad);
    for _ in 1..DEPTH {
        driver.write_send(&mut qp, &good);
    }
    driver.ring_sends(&qp);
    assert_eq!(driver.query_qp(qp.qpn).unwrap().state, QPS_SQE);
    let mut found = world.completions(0, &mut cq);
    assert!(found.len() < DEPTH as usize, "{}", found.len());
    let driver = &mut world.hosts[0].driver;
    driver.set_state(qp.qpn, QPS_RTS).unwrap();
    driver.post_send(&mut qp, &good);
    world.run();
    assert!(world.longest_call() < LONGEST, "{}", world.longest_call());
    found.extend(world.completions(0, &mut cq));
    let indices = found.iter().map(|cqe| cqe.wqe.get());
    assert!(indices.eq(0..DEPTH + 1));
    let statuses = found.iter().map(|cqe| cqe.status);
    let flushed = std::iter::repeat_n(cqe::WR_FLUSH_ERR, DEPTH as usize - 1);
    let expected = std::iter::once(cqe::LOC_QP_OP_ERR).chain(flushed);
    assert!(statuses.eq(expected.chain([cqe::SUCCESS])));
}

/// Flows that differ only in their tag are one for a frame: the first.
#[test]
fn a_queue_pair_gets_a_frame_once() {
    const FLOWS: u32 = 1000;
    for kind in [FLOW_KIND_NORMAL, FLOW_KIND_SNIFFER] {
        let mut world = World::new(2, 1);
        let mut cq = world.hosts[1].cq(10).unwrap();
        let mut qp = world.hosts[1].qp(QPT_RAW, &cq).unwrap();
        let mr = world.hosts[1].mr(4096).unwrap();
        let driver = &mut world.hosts[1].driver;
        driver.activate(qp.qpn, QPT_RAW, 0).unwrap();
        for n in 0..8 {
            driver.post_recv(&mut qp, n, &[(mr.va, 2048, mr.key)]);
        }
        let normal = kind == FLOW_KIND_NORMAL;
        for tag in 0..FLOWS {
            let flow = CreateFlow {
                kind,
                qpn: U32::new(qp.qpn),
                tag: U32::new(7 + tag),
                headers: U32::new(if normal { FLOW_HAS_ETH } else { 0 }),
                ..CreateFlow::default()
            };
            let fields = Default::default();
            driver
                .create_flow(&flow, normal.then_some(&fields))
                .unwrap();
        }
        let to = world.hosts[1].mac;
        let sent = world.hosts[0].cq(4).unwrap();
        let mut raw = world.hosts[0].qp(QPT_RAW, &sent).unwrap();
        let frame = world.hosts[0].mr(4096).unwrap();
        let driver = &mut world.hosts[0].driver;
        driver.activate(raw.qpn, QPT_RAW, 0).unwrap();
        let mut bytes = [0; 64];
        bytes[..6].copy_from_slice(&to.0);
        bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
        driver.write_mr(&frame, 0, &bytes);
        let send = Send {
            opcode: wr::WR_RAW,
            sges: &[(frame.va, 64, frame.key)],
            ..Send::default()
        };
        driver.post_send(&mut raw, &send);
        world.run();
        let got: Vec<u32> = world
            .completions(1, &mut cq)
            .iter()
            .map(|cqe| cqe.flow_tag.get())
            .collect();
        assert_eq!(got, [7]);
        let missed = world.hosts[1].driver.counter(Counter::rx_no_buffer);
        assert_eq!(missed.unwrap(), 0);
    }
}

/// All queue pairs of a completion queue that overruns fail. However many they are, other queue pairs are served meanwhile.
#[test]
fn queue_pairs_that_fail_together_take_turns() {
    const QPS: usize = 3000;
    let mut world = World::new(1, 1);
    let host = &mut world.hosts[0];
    let cq = host.cq(1).unwrap();
    let srq = host.driver.create_srq(host.pd, 0, 4, 1, 0).unwrap();
    let config = QpConfig {
        srqn: Some(srq.srqn),
        log_depth: 0,
        ..host.qp_config(QPT_UD, &cq)
    };
    let nonsense = Send {
        opcode: wr::WR_READ,
        ..Send::default()
    };
    let mut qps: Vec<_> = (0..QPS)
        .map(|_| {
            let qp = host.driver.create_qp(&config).unwrap();
            host.driver.activate(qp.qpn, QPT_UD, 7).unwrap();
            qp
        })
        .collect();
    host.driver.async_events();
    let before = world.with_nic(0, |nic| nic.work());
    for qp in &mut qps {
        world.hosts[0].driver.post_send(qp, &nonsense);
    }
    world.run();
    let work = world.with_nic(0, |nic| nic.work()) - before;
    assert!(work > LONGEST, "{work}: too little to show anything");
    assert!(world.longest_call() < LONGEST, "{}", world.longest_call());
    let driver = &mut world.hosts[0].driver;
    let in_error = qps
        .iter()
        .filter(|qp| driver.query_qp(qp.qpn).unwrap().state == QPS_ERR)
        .count();
    // Two completions found room.
    assert_eq!(in_error, QPS - 2);
}
