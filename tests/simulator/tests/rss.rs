//! RSS: the hash, indirection tables and work queues.

use faultline_abi::admin::{
    CREATE_RSS_QP, CREATE_RWQ_IND_TABLE, CREATE_WQ, Counter, DEALLOC_PD, DESTROY_CQ, DESTROY_QP,
    DESTROY_RWQ_IND_TABLE, DESTROY_WQ, MODIFY_WQ, QUERY_QP,
};
use faultline_abi::cqe;
use faultline_abi::qp::*;
use faultline_abi::steering::*;
use faultline_abi::wqe as wr;
use faultline_abi::{Status, U32, U64, doorbell, event};
use faultline_simulation::{Cq, CqConfig, Error, Mr, Qp, Send};
use faultline_simulator::World;

const LEN: u64 = 64 << 10;
const ADDRESSES: u32 = HASH_SRC_IPV4 | HASH_DST_IPV4;
const TCP_PORTS: u32 = HASH_SRC_PORT_TCP | HASH_DST_PORT_TCP;

/// The key, addresses, ports and hashes of Microsoft's "Verifying the RSS Hash Calculation".
const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];
type Case = ([u8; 4], [u8; 4], u16, u16, u32, u32);
const PUBLISHED: [Case; 5] = [
    (
        [66, 9, 149, 187],
        [161, 142, 100, 80],
        2794,
        1766,
        0x323e_8fc2,
        0x51cc_c178,
    ),
    (
        [199, 92, 111, 2],
        [65, 69, 140, 83],
        14230,
        4739,
        0xd718_262a,
        0xc626_b0ea,
    ),
    (
        [24, 19, 198, 95],
        [12, 22, 207, 184],
        12898,
        38024,
        0xd2d0_a5de,
        0x5c2b_394a,
    ),
    (
        [38, 27, 205, 30],
        [209, 142, 163, 6],
        48228,
        2217,
        0x8298_9176,
        0xafc7_327f,
    ),
    (
        [153, 39, 163, 191],
        [202, 188, 127, 2],
        44251,
        1303,
        0x5d18_09c5,
        0x10e8_28a2,
    ),
];

/// A TCP frame.
fn frame(src: [u8; 4], dst: [u8; 4], sport: u16, dport: u16) -> Vec<u8> {
    let mut out = vec![0x01, 0x50, 0x56, 1, 2, 3, 2, 9, 9, 9, 9, 9, 0x08, 0x00];
    out.extend([0x45, 0, 0, 60, 0, 0, 0, 0, 64, 6, 0, 0]);
    out.extend(src);
    out.extend(dst);
    out.extend(sport.to_be_bytes());
    out.extend(dport.to_be_bytes());
    out.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 0, 1, 0, 0, 0, 0]);
    out.extend([7; 20]);
    out
}

/// Work queues of host 1 with a CQ each, an RSS queue pair over all of them, and a sender at host 0.
struct RssQueues {
    world: World,
    cqs: Vec<Cq>,
    wqs: Vec<Qp>,
    mr: Mr,
    table: u32,
    qpn: u32,
    sender: (Cq, Qp, Mr),
}

fn rss_qp(world: &mut World, table: u32, fields: u32) -> Result<u32, Error> {
    let body = CreateRssQp {
        pd: U32::new(world.hosts[1].pd),
        table: U32::new(table),
        hash_fields: U32::new(fields),
        key: KEY,
        ..CreateRssQp::default()
    };
    let driver = &mut world.hosts[1].driver;
    driver
        .command(CREATE_RSS_QP, 0, &body)
        .map(|comp| comp.handle.get())
}

impl RssQueues {
    fn new(count: usize, fields: u32) -> Self {
        let mut world = World::new(2, 1);
        let cq = world.hosts[0].cq(6).unwrap();
        let qp = world.hosts[0].qp(QPT_RAW, &cq).unwrap();
        let mr = world.hosts[0].mr(LEN).unwrap();
        world.hosts[0].driver.activate(qp.qpn, QPT_RAW, 0).unwrap();
        let sender = (cq, qp, mr);
        let pd = world.hosts[1].pd;
        let mr = world.hosts[1].mr(LEN).unwrap();
        let cqs: Vec<Cq> = (0..count).map(|_| world.hosts[1].cq(6).unwrap()).collect();
        let driver = &mut world.hosts[1].driver;
        let wqs: Vec<Qp> = cqs
            .iter()
            .map(|cq| driver.create_wq(pd, cq, 4).unwrap())
            .collect();
        let numbers: Vec<u32> = wqs.iter().map(|wq| wq.qpn).collect();
        for wq in &numbers {
            driver.modify_wq(*wq, WQS_RDY).unwrap();
        }
        let table = driver.create_rwq_ind_table(&numbers).unwrap();
        let rss = rss_qp(&mut world, table, fields).unwrap();
        let flow = CreateFlow {
            qpn: U32::new(rss),
            tag: U32::new(77),
            ..CreateFlow::default()
        };
        let everything = (FlowFields::default(), FlowFields::default());
        let driver = &mut world.hosts[1].driver;
        driver.create_flow(&flow, Some(&everything)).unwrap();
        Self {
            world,
            cqs,
            wqs,
            mr,
            table,
            qpn: rss,
            sender,
        }
    }

    fn post(&mut self, wq: usize, tag: u32) {
        let sge = (self.mr.va, 2000, self.mr.key);
        let driver = &mut self.world.hosts[1].driver;
        driver.post_recv(&mut self.wqs[wq], tag, &[sge]);
    }

    fn send(&mut self, frame: &[u8]) {
        let (_, qp, mr) = &mut self.sender;
        let driver = &mut self.world.hosts[0].driver;
        driver.write_mr(mr, 0, frame);
        let send = Send {
            opcode: wr::WR_RAW,
            sges: &[(mr.va, frame.len() as u32, mr.key)],
            ..Send::default()
        };
        driver.post_send(qp, &send);
        self.world.run();
    }

    fn command(&mut self, opcode: u16, handle: u32) -> Result<(), Error> {
        let driver = &mut self.world.hosts[1].driver;
        driver.command(opcode, handle, &()).map(drop)
    }

    /// Statuses of completions of a work queue.
    fn statuses(&mut self, wq: usize) -> Vec<u8> {
        let found = self.world.completions(1, &mut self.cqs[wq]);
        found.iter().map(|cqe| cqe.status).collect()
    }
}

#[test]
fn frames_go_where_the_published_hashes_say() {
    for by_reference in [false, true] {
        for (fields, with_ports) in [(ADDRESSES, false), (ADDRESSES | TCP_PORTS, true)] {
            let mut rss = RssQueues::new(8, fields);
            if by_reference {
                rss.world.hand_over_by_reference();
            }
            for wq in 0..8 {
                (0..8).for_each(|n| rss.post(wq, n));
            }
            for (src, dst, sport, dport, addresses, all) in PUBLISHED {
                let bytes = frame(src, dst, sport, dport);
                rss.send(&bytes);
                let hash = if with_ports { all } else { addresses };
                for wq in 0..8 {
                    let found = rss.world.completions(1, &mut rss.cqs[wq]);
                    // proves: IBV_RX_HASH_FUNC_TOEPLITZ, IBV_RX_HASH_SRC_IPV4
                    // proves: IBV_RX_HASH_DST_IPV4, IBV_QP_INIT_ATTR_IND_TABLE
                    // proves: IBV_QP_INIT_ATTR_RX_HASH
                    assert_eq!(found.len(), usize::from(hash as usize % 8 == wq));
                    for cqe in found {
                        assert_eq!(cqe.status, cqe::SUCCESS);
                        assert_eq!(cqe.qpn.get(), rss.wqs[wq].qpn);
                        assert_eq!((cqe.flow_tag.get(), cqe.byte_len.get()), (77, 74));
                        // Told only if it is that of the whole flow.
                        let told = (cqe.flags & cqe::CQE_HASH != 0).then_some(cqe.imm.get());
                        assert_eq!(told, with_ports.then_some(all));
                        let mr = rss.mr;
                        assert!(rss.world.hosts[1].driver.read_mr(&mr, 0, 74) == bytes);
                    }
                }
            }
        }
    }
}

#[test]
fn frames_without_hashed_fields_go_to_the_first_queue() {
    let mut rss = RssQueues::new(4, HASH_SRC_IPV6 | HASH_DST_IPV6);
    (0..4).for_each(|wq| rss.post(wq, 1));
    let (src, dst, ..) = PUBLISHED[0];
    rss.send(&frame(src, dst, 1, 2));
    assert_eq!(rss.statuses(0), [cqe::SUCCESS]);
    assert!((1..4).all(|wq| rss.statuses(wq).is_empty()));
}

#[test]
fn a_work_queue_has_states_of_its_own() {
    let mut rss = RssQueues::new(1, ADDRESSES);
    let (src, dst, ..) = PUBLISHED[0];
    let bytes = frame(src, dst, 1, 2);
    let wq = rss.wqs[0].qpn;
    let set = |rss: &mut RssQueues, state| rss.world.hosts[1].driver.modify_wq(wq, state);
    rss.post(0, 1);
    rss.post(0, 2);
    rss.send(&bytes);
    assert_eq!(rss.statuses(0), [cqe::SUCCESS]);
    // Flushed, also what comes later.
    set(&mut rss, WQS_ERR).unwrap();
    // proves: IBV_WQS_ERR
    assert_eq!(rss.statuses(0), [cqe::WR_FLUSH_ERR]);
    rss.post(0, 3);
    rss.world.run();
    assert_eq!(rss.statuses(0), [cqe::WR_FLUSH_ERR]);
    rss.send(&bytes);
    assert!(rss.statuses(0).is_empty());
    let refused = |status| Err(Error::Refused(status));
    assert_eq!(set(&mut rss, WQS_RDY), refused(Status::BadTransition));
    assert_eq!(set(&mut rss, 3), refused(Status::BadAttribute));
    set(&mut rss, WQS_RESET).unwrap();
    rss.wqs[0].reset();
    rss.post(0, 4);
    let filtered = rss.world.hosts[1].driver.counter(Counter::rx_filtered);
    rss.send(&bytes);
    let later = rss.world.hosts[1].driver.counter(Counter::rx_filtered);
    // proves: IBV_WQS_RESET
    assert_eq!(later.unwrap(), filtered.unwrap() + 1);
    assert!(rss.statuses(0).is_empty());
    set(&mut rss, WQS_RDY).unwrap();
    set(&mut rss, WQS_RDY).unwrap();
    rss.send(&bytes);
    assert_eq!(rss.statuses(0), [cqe::SUCCESS]);
    rss.send(&bytes);
    let dropped = rss.world.hosts[1].driver.counter(Counter::rx_no_buffer);
    assert_eq!(dropped.unwrap(), 1);
}

#[test]
fn a_work_queue_survives_bad_buffers_but_not_a_bad_ring() {
    let mut rss = RssQueues::new(1, ADDRESSES);
    let (src, dst, ..) = PUBLISHED[0];
    let bytes = frame(src, dst, 1, 2);
    let sge = (rss.mr.va, 10, rss.mr.key);
    let foreign = (rss.mr.va, 2000, rss.mr.key ^ 0xff);
    for sge in [sge, foreign] {
        let driver = &mut rss.world.hosts[1].driver;
        driver.post_recv(&mut rss.wqs[0], 1, &[sge]);
    }
    rss.post(0, 2);
    for _ in 0..3 {
        rss.send(&bytes);
    }
    let expected = [cqe::LOC_LEN_ERR, cqe::LOC_PROT_ERR, cqe::SUCCESS];
    assert_eq!(rss.statuses(0), expected);
    rss.world.hosts[1].driver.async_events();
    // A send doorbell for a queue that can't send.
    let wq = rss.wqs[0].qpn;
    let driver = &mut rss.world.hosts[1].driver;
    driver.ring(0, doorbell::SQ, wq, 1);
    rss.world.run();
    let events = rss.world.hosts[1].driver.async_events();
    // proves: IBV_EVENT_WQ_FATAL
    assert_eq!(events, [(event::QP_FATAL, wq)]);
}

#[test]
fn objects_in_use_are_not_destroyed() {
    let mut rss = RssQueues::new(2, ADDRESSES);
    let in_use = Err(Error::Refused(Status::InUse));
    let (wq, cq) = (rss.wqs[0].qpn, rss.cqs[0].cqn);
    let (table, qpn, pd) = (rss.table, rss.qpn, rss.world.hosts[1].pd);
    for (opcode, handle) in [
        (DESTROY_WQ, wq),
        (DESTROY_RWQ_IND_TABLE, table),
        (DESTROY_CQ, cq),
        (DESTROY_QP, qpn),
        (DEALLOC_PD, pd),
    ] {
        assert_eq!(rss.command(opcode, handle), in_use, "{opcode:#x}");
    }
    // The number of a work queue is not accepted for a queue pair, and the reverse.
    let refused = |status| Err(Error::Refused(status));
    assert_eq!(rss.command(DESTROY_QP, wq), refused(Status::BadQp));
    assert_eq!(rss.command(QUERY_QP, wq), refused(Status::BadQp));
    assert_eq!(rss.command(DESTROY_WQ, qpn), refused(Status::BadWq));
    let driver = &mut rss.world.hosts[1].driver;
    assert_eq!(driver.modify_wq(qpn, WQS_ERR), refused(Status::BadWq));
    assert_eq!(driver.set_state(wq, QPS_ERR), refused(Status::BadQp));
    assert_eq!(driver.set_state(qpn, QPS_ERR), refused(Status::BadQpType));
    assert_eq!(driver.query_qp(qpn).unwrap().state, QPS_RESET);
    let flow = 1;
    driver.destroy_flow(flow).unwrap();
    rss.command(DESTROY_QP, qpn).unwrap();
    rss.command(DESTROY_RWQ_IND_TABLE, table).unwrap();
    for wq in [0, 1].map(|n| rss.wqs[n].qpn) {
        rss.command(DESTROY_WQ, wq).unwrap();
        assert_eq!(rss.command(DESTROY_WQ, wq), refused(Status::BadWq));
    }
    rss.command(DESTROY_CQ, cq).unwrap();
    let gone = refused(Status::BadRwqIndTable);
    assert_eq!(rss.command(DESTROY_RWQ_IND_TABLE, table), gone);
    assert_eq!(rss_qp(&mut rss.world, table, ADDRESSES).map(drop), gone);
}

#[test]
fn bad_commands_are_refused() {
    let mut rss = RssQueues::new(2, ADDRESSES);
    let refused = |status| Err(Error::Refused(status));
    let table = rss.table;
    for fields in [1 << 8, u32::MAX, HASH_DST_PORT_TCP | HASH_SRC_PORT_UDP] {
        let made = rss_qp(&mut rss.world, table, fields);
        assert_eq!(made, Err(Error::Refused(Status::BadParameter)));
    }
    // Of another context.
    let host = &mut rss.world.hosts[1];
    let uctx = host.driver.alloc_uctx().unwrap();
    let body = CreateRssQp {
        pd: U32::new(host.pd),
        uctx: U32::new(uctx),
        table: U32::new(table),
        ..CreateRssQp::default()
    };
    let made = host.driver.command(CREATE_RSS_QP, 0, &body).map(drop);
    assert_eq!(made, refused(Status::DomainMismatch));
    let config = CqConfig {
        log_depth: 4,
        eqn: host.eq.eqn,
        uctx,
    };
    let cq = host.driver.create_cq(config).unwrap();
    let theirs = host.driver.create_wq(host.pd, &cq, 4).unwrap().qpn;
    let ours = rss.wqs[0].qpn;
    let made = host.driver.create_rwq_ind_table(&[ours, theirs]).map(drop);
    assert_eq!(made, refused(Status::DomainMismatch));
    let made = host.driver.create_rwq_ind_table(&[ours, rss.qpn]).map(drop);
    assert_eq!(made, refused(Status::BadWq));
    let body = CreateRwqIndTable {
        addr: U64::new(u64::MAX - 1),
        log_size: 9,
        ..CreateRwqIndTable::default()
    };
    let made = host
        .driver
        .command(CREATE_RWQ_IND_TABLE, 0, &body)
        .map(drop);
    assert_eq!(made, refused(Status::DmaError));
    for log_size in [10, 31, 255] {
        let body = CreateRwqIndTable {
            log_size,
            ..CreateRwqIndTable::default()
        };
        let made = host
            .driver
            .command(CREATE_RWQ_IND_TABLE, 0, &body)
            .map(drop);
        assert_eq!(made, refused(Status::BadDepth));
    }
    let wq = CreateWq {
        pd: U32::new(host.pd),
        cqn: U32::new(rss.cqs[0].cqn),
        log_depth: 4,
        stride_shift: 6,
        max_sge: 2,
        ..CreateWq::default()
    };
    type Change<'a> = &'a dyn Fn(&mut CreateWq);
    let cases: [(Change<'_>, Status); 9] = [
        (&|c| c.pd.set(99), Status::BadPd),
        (&|c| c.uctx.set(99), Status::BadUctx),
        (&|c| c.uctx.set(uctx), Status::DomainMismatch),
        (&|c| c.cqn.set(999), Status::BadCq),
        (&|c| c.log_depth = 40, Status::BadDepth),
        (&|c| c.stride_shift = 4, Status::BadStride),
        (&|c| c.max_sge = 31, Status::BadStride),
        (&|c| c.reserved = [1; 9], Status::ReservedNotZero),
        (&|_| {}, Status::BadRing),
    ];
    for (n, (change, status)) in cases.into_iter().enumerate() {
        let mut body = wq;
        change(&mut body);
        let made = host.driver.command(CREATE_WQ, 0, &body).map(drop);
        assert_eq!(made, refused(status), "case {n}");
    }
    let body = ModifyWq {
        state: WQS_RDY,
        reserved: [0, 0, 0, 0, 0, 0, 1],
    };
    let made = host.driver.command(MODIFY_WQ, ours, &body).map(drop);
    assert_eq!(made, refused(Status::ReservedNotZero));
}

/// An interface with several queues: raw queue pairs that also send, an RSS queue pair over them, which
/// SET_NETDEV names, and another one in its place while frames come.
#[test]
fn raw_queue_pairs_share_the_frames_of_the_interface() {
    for by_reference in [false, true] {
        let mut world = World::new(2, 1);
        if by_reference {
            world.hand_over_by_reference();
        }
        let mr = world.hosts[0].mr(LEN).unwrap();
        let send_cq = world.hosts[0].cq(6).unwrap();
        let mut sender = world.hosts[0].qp(QPT_RAW, &send_cq).unwrap();
        let driver = &mut world.hosts[0].driver;
        driver.activate(sender.qpn, QPT_RAW, 0).unwrap();
        let buffers = world.hosts[1].mr(LEN).unwrap();
        let mut cqs = [0, 1, 2, 3].map(|_| world.hosts[1].cq(6).unwrap());
        let mut qps = [0, 1, 2, 3].map(|n| world.hosts[1].qp(QPT_RAW, &cqs[n]).unwrap());
        let (mac, driver) = (world.hosts[1].mac, &mut world.hosts[1].driver);
        for qp in &mut qps {
            driver.activate(qp.qpn, QPT_RAW, 0).unwrap();
            for tag in 0..8 {
                driver.post_recv(qp, tag, &[(buffers.va, 2000, buffers.key)]);
            }
        }
        let numbers = qps.each_ref().map(|qp| qp.qpn);
        let all = driver.create_rwq_ind_table(&numbers).unwrap();
        let one = driver.create_rwq_ind_table(&[numbers[2]; 4]).unwrap();
        let rss = rss_qp(&mut world, all, ADDRESSES | TCP_PORTS).unwrap();
        let steered = rss_qp(&mut world, one, ADDRESSES | TCP_PORTS).unwrap();
        for (qpn, only) in [(rss, None), (steered, Some(2)), (numbers[1], Some(1))] {
            world.hosts[1].driver.set_netdev(mac, 1500, qpn).unwrap();
            for (src, dst, sport, dport, _, hash) in PUBLISHED {
                let mut bytes = frame(src, dst, sport, dport);
                bytes[..6].copy_from_slice(&mac.0);
                world.hosts[0].driver.write_mr(&mr, 0, &bytes);
                let send = Send {
                    opcode: wr::WR_RAW,
                    sges: &[(mr.va, bytes.len() as u32, mr.key)],
                    ..Send::default()
                };
                world.hosts[0].driver.post_send(&mut sender, &send);
                world.run();
                let expected = only.unwrap_or(hash as usize % 4);
                for (n, cq) in cqs.iter_mut().enumerate() {
                    let found = world.completions(1, cq);
                    assert_eq!(found.len(), usize::from(n == expected), "{qpn} {n}");
                    assert!(found.iter().all(|cqe| cqe.qpn.get() == numbers[n]));
                }
            }
        }
        // A queue pair of a table can't be destroyed before the table is.
        let driver = &mut world.hosts[1].driver;
        let mut expect = |opcode, handle, status: Option<Status>| {
            let found = driver.command(opcode, handle, &()).map(drop);
            assert_eq!(found, status.map_or(Ok(()), |s| Err(Error::Refused(s))));
        };
        expect(DESTROY_QP, numbers[0], Some(Status::InUse));
        expect(DESTROY_WQ, numbers[0], Some(Status::BadWq));
        expect(DESTROY_QP, rss, None);
        expect(DESTROY_RWQ_IND_TABLE, all, None);
        expect(DESTROY_QP, numbers[0], None);
        expect(DESTROY_QP, numbers[2], Some(Status::InUse));
        expect(DESTROY_QP, steered, None);
        expect(DESTROY_RWQ_IND_TABLE, one, None);
        expect(DESTROY_QP, numbers[2], None);
    }
}

#[test]
fn only_receivers_of_frames_are_accepted_in_a_table() {
    let mut world = World::new(1, 1);
    let cq = world.hosts[0].cq(6).unwrap();
    for kind in [QPT_RC, QPT_UD] {
        let qpn = world.hosts[0].qp(kind, &cq).unwrap().qpn;
        let made = world.hosts[0].driver.create_rwq_ind_table(&[qpn]);
        assert_eq!(made, Err(Error::Refused(Status::BadWq)));
    }
}
