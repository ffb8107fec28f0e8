//! Commands, events and registers: each refusal, events that wait for room, and the state after a
//! reset.

use faultline_abi::admin::*;
use faultline_abi::cqe;
use faultline_abi::event;
use faultline_abi::qp::*;
use faultline_abi::translation::{self as tq, TqCmd};
use faultline_abi::wqe as wr;
use faultline_abi::{Status, U16, U32, U64, doorbell, regs};
use faultline_nic::{Diagnostic, Nic, OverrunQueue};
use faultline_simulation::driver::ALL_ACCESS;
use faultline_simulation::{Bus, Error, Mr, QpConfig, RAM_BASE, Send};
use faultline_simulator::{Host, World, expect_cqe};

const PAGE: u64 = 4096;
/// DMA address where no guest has memory.
const NOWHERE: u64 = 0x10_0000;

#[track_caller]
fn expect<T: std::fmt::Debug>(result: Result<T, Error>, status: Status) {
    match (result, status) {
        (Ok(_), Status::Ok) => {}
        (Err(Error::Refused(found)), status) => assert_eq!(found, status),
        (result, _) => panic!("{result:?} instead of {status:?}"),
    }
}

fn ring(len: u64) -> RingDesc {
    RingDesc {
        addr: U64::new(RAM_BASE + (8 << 20)),
        num_pages: U32::new(len.div_ceil(PAGE) as u32),
        page_shift: 12,
        ..RingDesc::default()
    }
}

#[test]
fn queue_pairs_are_checked_field_by_field() {
    let mut world = World::new(1, 1);
    let host = &mut world.hosts[0];
    let cq = host.cq(4).unwrap();
    let page = host.driver.alloc_uctx().unwrap();
    let good = CreateQp {
        sq: ring((64 << 4) + 64),
        rq: ring((32 << 4) + 64),
        pd: U32::new(host.pd),
        send_cqn: U32::new(cq.cqn),
        recv_cqn: U32::new(cq.cqn),
        qp_type: QPT_RC,
        sq_log_depth: 4,
        sq_stride_shift: 6,
        rq_log_depth: 4,
        rq_stride_shift: 5,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: U32::new(16),
        ..CreateQp::default()
    };
    type Case<'a> = (&'a dyn Fn(&mut CreateQp), Status);
    let cases: [Case<'_>; 24] = [
        (&|_| {}, Status::Ok),
        (&|c| c.pd.set(99), Status::BadPd),
        (&|c| c.uctx.set(99), Status::BadUctx),
        (&|c| c.uctx.set(page), Status::DomainMismatch),
        (&|c| c.send_cqn.set(99), Status::BadCq),
        (&|c| c.recv_cqn.set(99), Status::BadCq),
        (&|c| c.qp_type = 0, Status::BadQpType),
        (&|c| c.qp_type = 11, Status::BadQpType),
        // Neither has a receive queue.
        (&|c| c.qp_type = QPT_XRC_INI, Status::ReservedNotZero),
        (&|c| c.qp_type = QPT_XRC_TGT, Status::ReservedNotZero),
        (&|c| c.xrcd.set(1), Status::ReservedNotZero),
        (&|c| c.flags.set(1 << 9), Status::BadParameter),
        (&|c| c.flags.set(QP_FLAG_SRQ), Status::BadSrq),
        (&|c| c.reserved0 = 1, Status::ReservedNotZero),
        (&|c| c.reserved1[7] = 1, Status::ReservedNotZero),
        (&|c| c.sq_log_depth = 16, Status::BadDepth),
        (&|c| c.rq_log_depth = 255, Status::BadDepth),
        (&|c| c.sq_stride_shift = 5, Status::BadStride),
        (&|c| c.sq_stride_shift = 11, Status::BadStride),
        (&|c| c.max_send_sge = 2, Status::BadStride),
        (&|c| c.max_inline.set(17), Status::BadStride),
        (&|c| c.max_recv_sge = 2, Status::BadStride),
        (&|c| c.sq.page_shift = 11, Status::BadRing),
        (&|c| c.rq.levels = 3, Status::BadRing),
    ];
    for (n, (change, status)) in cases.iter().enumerate() {
        let mut body = good;
        change(&mut body);
        let before = world.with_nic(0, |nic| nic.object_counts());
        let result = world.hosts[0].driver.command(CREATE_QP, 0, &body);
        let made = u32::from(*status == Status::Ok) as usize;
        expect(result, *status);
        let after = world.with_nic(0, |nic| nic.object_counts());
        assert_eq!(after.qps, before.qps + made, "case {n}");
    }
}

#[test]
fn shared_queues_keys_and_paths_are_checked() {
    let mut world = World::new(2, 1);
    let to = world.path(1, 0).av();
    let host = &mut world.hosts[0];
    let (pd, d) = (host.pd, &mut host.driver);
    let srq = CreateSrq {
        ring: ring((32 << 4) + 64),
        pd: U32::new(pd),
        log_depth: 4,
        stride_shift: 5,
        max_sge: 1,
        ..CreateSrq::default()
    };
    let mut refuse = |change: &dyn Fn(&mut CreateSrq), status| {
        let mut body = srq;
        change(&mut body);
        expect(d.command(CREATE_SRQ, 0, &body), status);
    };
    refuse(&|_| {}, Status::Ok);
    refuse(&|c| c.pd.set(77), Status::BadPd);
    refuse(&|c| c.uctx.set(77), Status::BadUctx);
    refuse(&|c| c.limit.set(17), Status::BadAttribute);
    refuse(&|c| c.kind = 1, Status::BadXrcd);
    refuse(&|c| c.max_sge = 31, Status::BadStride);
    refuse(&|c| c.log_depth = 30, Status::BadDepth);
    refuse(&|c| c.ring.num_pages.set(0), Status::BadRing);

    let key = CreateMkey {
        pd: U32::new(pd),
        access: U32::new(ALL_ACCESS),
        iova: U64::new(0x1234),
        length: U64::new(5000),
        page_shift: 12,
        ..CreateMkey::default()
    };
    let mut refuse = |change: &dyn Fn(&mut CreateMkey), status| {
        let mut body = key;
        change(&mut body);
        expect(d.command(CREATE_MKEY, 0, &body), status);
    };
    refuse(&|_| {}, Status::Ok);
    refuse(&|c| c.pd.set(77), Status::BadPd);
    refuse(&|c| c.access.set(1 << 20), Status::BadAccess);
    refuse(&|c| c.access.set(ACCESS_REMOTE_WRITE), Status::BadAccess);
    refuse(&|c| c.access.set(ACCESS_REMOTE_ATOMIC), Status::BadAccess);
    refuse(&|c| c.iova.set(u64::MAX), Status::BadRange);
    refuse(&|c| c.page_shift = 11, Status::BadPageSize);
    refuse(&|c| c.page_shift = 31, Status::BadPageSize);
    refuse(&|c| c.flags.set(2), Status::BadParameter);
    refuse(&|c| c.reserved[17] = 1, Status::ReservedNotZero);
    let whole = |c: &mut CreateMkey| {
        c.flags.set(MKEY_PHYSICAL);
        (c.iova, c.length) = (U64::new(u64::MAX), U64::new(0));
    };
    refuse(&whole, Status::BadRange);

    let ah = CreateAh {
        pd: U32::new(pd),
        av: to,
        ..CreateAh::default()
    };
    let mut refuse = |change: &dyn Fn(&mut CreateAh), status| {
        let mut body = ah;
        change(&mut body);
        expect(d.command(CREATE_AH, 0, &body), status);
    };
    refuse(&|_| {}, Status::Ok);
    refuse(&|c| c.pd.set(77), Status::BadPd);
    refuse(&|c| c.av.sgid_index.set(5), Status::BadGid);
    refuse(&|c| c.av.sgid_index.set(1), Status::BadGid);
    refuse(&|c| c.av.dgid = [0; 16], Status::BadGid);
    refuse(&|c| c.av.port = 2, Status::BadAttribute);
    refuse(&|c| c.av.sl = 16, Status::BadAttribute);
    refuse(&|c| c.av.flow_label.set(1 << 20), Status::BadAttribute);
    refuse(&|c| c.av.reserved[0] = 1, Status::ReservedNotZero);
}

#[test]
fn network_interfaces_and_their_filters_are_checked() {
    let mut world = World::new(1, 1);
    let d = &mut world.hosts[0].driver;
    let netdev = SetNetdev {
        mac: [2, 0, 0, 0, 0, 1],
        mtu: U16::new(1500),
        ..SetNetdev::default()
    };
    let mut refuse = |change: &dyn Fn(&mut SetNetdev), status| {
        let mut body = netdev;
        change(&mut body);
        expect(d.command(SET_NETDEV, 0, &body), status);
    };
    refuse(&|_| {}, Status::Ok);
    refuse(&|c| c.mtu.set(67), Status::BadParameter);
    refuse(&|c| c.mtu.set(9001), Status::BadParameter);
    refuse(&|c| c.mac[0] = 1, Status::BadParameter);
    refuse(&|c| c.flags.set(8), Status::BadParameter);
    refuse(&|c| c.qpn.set(77), Status::BadQp);

    let filter = SetMacFilter {
        addr: U64::new(u64::MAX - 1),
        ..SetMacFilter::default()
    };
    let mut refuse = |change: &dyn Fn(&mut SetMacFilter), status| {
        let mut body = filter;
        change(&mut body);
        expect(d.command(SET_MAC_FILTER, 0, &body), status);
    };
    refuse(&|_| {}, Status::Ok);
    refuse(&|c| c.count.set(1), Status::DmaError);
    refuse(&|c| c.count.set(129), Status::NoResources);
    refuse(&|c| c.count.set(u32::MAX), Status::NoResources);
    refuse(&|c| c.reserved.set(1), Status::ReservedNotZero);
}

fn map(mr: &Mr) -> TqCmd {
    TqCmd {
        opcode: tq::MAP,
        flags: tq::CONTIGUOUS,
        key: U32::new(mr.key),
        iova: U64::new(mr.va & !0xfff),
        count: U64::new(1),
        list: U64::new((mr.addr & !0xfff) | tq::READ | tq::WRITE),
        page_shift: 12,
        ..TqCmd::default()
    }
}

#[test]
fn translations_are_checked_field_by_field() {
    let mut world = World::new(1, 1);
    let host = &mut world.hosts[0];
    // From the middle of a page to the middle of the third.
    let mr = host
        .driver
        .reg_mr(host.pd, 0x7000_0800, 2 * PAGE, ALL_ACCESS)
        .unwrap();
    let d = &mut host.driver;
    let list = d.alloc(PAGE).unwrap();
    let mut case = |change: &dyn Fn(&mut TqCmd), status| {
        let mut cmd = map(&mr);
        change(&mut cmd);
        expect(d.translate(&cmd), status);
    };
    case(&|_| {}, Status::Ok);
    case(&|c| c.opcode = 0, Status::BadOpcode);
    case(&|c| c.opcode = 5, Status::BadOpcode);
    case(&|c| c.opcode = tq::RESUME, Status::BadToken);
    case(&|c| c.flags = 2, Status::BadParameter);
    case(&|c| c.reserved0 = 1, Status::ReservedNotZero);
    case(&|c| c.reserved1[7] = 1, Status::ReservedNotZero);
    case(&|c| c.wait_ns.set(1), Status::ReservedNotZero);
    case(&|c| c.map_ns.set(1), Status::ReservedNotZero);
    case(&|c| c.post_ns.set(1), Status::ReservedNotZero);
    case(&|c| c.key.set(c.key.get() ^ 1), Status::BadMkey);
    case(&|c| c.key.set(0), Status::BadMkey);
    case(&|c| c.count.set(3), Status::Ok);
    case(&|c| c.count.set(4), Status::BadRange);
    case(&|c| c.count.set(0), Status::BadRange);
    case(&|c| c.count.set(u64::MAX), Status::BadRange);
    case(&|c| c.count.set(1 << 52), Status::BadRange);
    case(&|c| c.iova.set(mr.va), Status::BadPageSize);
    case(&|c| c.iova.set(0x6fff_f000), Status::BadRange);
    case(&|c| c.iova.set(0x7000_3000), Status::BadRange);
    case(&|c| c.iova.set(!0xfff), Status::BadRange);
    case(&|c| c.page_shift = 11, Status::BadPageSize);
    case(&|c| c.page_shift = 31, Status::BadPageSize);
    case(&|c| c.page_shift = 255, Status::BadPageSize);
    // A large page that contains the region: its address must be aligned, too.
    let large = |c: &mut TqCmd| {
        c.page_shift = 21;
        c.iova.set(0x7000_0000);
    };
    case(&large, Status::BadPageSize);
    let aligned = |c: &mut TqCmd| {
        large(c);
        c.list.set(RAM_BASE | tq::READ);
    };
    case(&aligned, Status::Ok);
    let listed = |addr: u64, count: u64| {
        move |c: &mut TqCmd| {
            c.flags = 0;
            (c.list, c.count) = (U64::new(addr), U64::new(count));
        }
    };
    case(&listed(list, 1), Status::Ok);
    case(&listed(list, 513), Status::BadRange);
    case(&listed(NOWHERE, 1), Status::DmaError);
    case(&listed(u64::MAX, 2), Status::DmaError);
    let gone = |length: u64, from: u64| {
        move |c: &mut TqCmd| {
            (c.opcode, c.flags) = (tq::INVALIDATE, 0);
            (c.iova, c.count) = (U64::new(from), U64::new(length));
        }
    };
    case(&gone(0, 0), Status::BadRange);
    case(&gone(2, u64::MAX), Status::BadRange);
    case(&gone(u64::MAX, 0), Status::Ok);
    case(&gone(1, u64::MAX), Status::Ok);
}

#[test]
fn counts_of_pages_are_exact_and_freed_memory_is_not_touched() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, 4 * PAGE, |_| {});
    let b = pair.mr[1];
    let d = &mut world.hosts[1].driver;
    let invalidate = |from: u64, len: u64| TqCmd {
        opcode: tq::INVALIDATE,
        key: U32::new(b.key),
        iova: U64::new(from),
        count: U64::new(len),
        ..TqCmd::default()
    };
    // The region begins inside of its first page, so it has five.
    assert_eq!(d.translate(&invalidate(b.va + PAGE, 1)), Ok(1));
    assert_eq!(d.translate(&invalidate(b.va + PAGE, 1)), Ok(0));
    let before = d.read_mr(&b, 0, 3 * PAGE as usize);
    let a = pair.mr[0];
    let write = Send {
        opcode: wr::WR_WRITE,
        sges: &[(a.va, 2 * PAGE as u32, a.key)],
        remote_addr: b.va,
        rkey: b.key,
        ..Send::default()
    };
    world.hosts[0]
        .driver
        .write_mr(&a, 0, &[0xaa; 2 * PAGE as usize]);
    world.hosts[0].driver.post_send(&mut pair.qp[0], &write);
    world.run();
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::REM_OP_ERR);
    let d = &mut world.hosts[1].driver;
    let hole = (PAGE - b.va % PAGE) as usize..(2 * PAGE - b.va % PAGE) as usize;
    assert_eq!(
        d.read_mr(&b, 0, 3 * PAGE as usize)[hole.clone()],
        before[hole]
    );
    assert_eq!(d.translate(&invalidate(0, u64::MAX)), Ok(4));
}

/// A process breaks all of its queue pairs while the driver does not look.
#[test]
fn events_wait_for_room_and_none_is_lost() {
    let mut world = World::new(1, 1);
    let host = &mut world.hosts[0];
    let mut small = host.driver.create_eq(EQ_ASYNC, 2, 2).unwrap();
    assert_eq!(
        host.driver.poll_event(&mut small).unwrap().kind,
        event::PORT_UP
    );
    host.driver.arm_eq(&small);
    let cq = host.cq(4).unwrap();
    let qps: Vec<u32> = (0..20)
        .map(|_| {
            let config = QpConfig {
                log_depth: 1,
                ..host.qp_config(QPT_UD, &cq)
            };
            host.driver.create_qp(&config).unwrap().qpn
        })
        .collect();
    for qpn in &qps {
        host.driver.ring(0, doorbell::SQ, *qpn, 1000);
    }
    assert_eq!(world.take_interrupts(0), [2]);
    let mut found = Vec::new();
    loop {
        let host = &mut world.hosts[0];
        let before = found.len();
        while let Some(event) = host.driver.poll_event(&mut small) {
            assert_eq!(event.kind, event::QP_FATAL);
            found.push(event.object.get());
        }
        host.driver.arm_eq(&small);
        if found.len() == before {
            break;
        }
    }
    assert_eq!(found, qps);
    let status = world.hosts[0].driver.bus.read_register(regs::STATUS);
    assert_eq!(status & regs::FATAL, 0);
}

/// QPs stop in a device that has stopped, and the driver is interrupted once.
#[test]
fn an_event_queue_that_cannot_be_written_stops_the_device() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, PAGE, |c| c.timeout = 8);
    let body = CreateEq {
        ring: RingDesc {
            addr: U64::new(NOWHERE),
            num_pages: U32::new(1),
            page_shift: 12,
            ..RingDesc::default()
        },
        log_depth: 2,
        vector: U16::new(3),
        ..CreateEq::default()
    };
    let host = &mut world.hosts[0];
    let eqn = host
        .driver
        .command(CREATE_EQ, 0, &body)
        .unwrap()
        .handle
        .get();
    host.eq.eqn = eqn;
    let cq = host.cq(4).unwrap();
    let mut qp = host.qp(QPT_RC, &cq).unwrap();
    let path = world.path(1, pair.qp[1].qpn);
    let host = &mut world.hosts[0];
    host.driver.connect(qp.qpn, QPT_RC, &path).unwrap();
    host.driver.arm_cq(&cq, false);
    world.take_interrupts(0);
    // This QP gets no answers, so that its retries are exhausted.
    world.lose(|_, _| true);
    let send = Send {
        opcode: wr::WR_WRITE,
        inline: Some(b"x"),
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut qp, &send);
    world.run();
    assert_eq!(world.take_interrupts(0), [0]);
    let bus = &mut world.hosts[0].driver.bus;
    assert_ne!(bus.read_register(regs::STATUS) & regs::FATAL, 0);
    assert_eq!(bus.read_register(regs::FATAL_CODE), regs::EVENT_QUEUE);
    let taken = world.take_diagnostics(0).into_iter();
    let last: Vec<Diagnostic> = taken.map(|(_, diagnostic)| diagnostic).collect();
    let overrun = Diagnostic::Overrun {
        queue: OverrunQueue::Event,
        object: eqn,
    };
    let stop = Diagnostic::Fatal {
        cause: regs::EVENT_QUEUE,
    };
    let at = |wanted: Diagnostic| last.iter().position(|found| *found == wanted);
    assert!(at(overrun).is_some() && at(overrun) < at(stop), "{last:#?}");
    world.lose_nothing();
    world.start_trace();
    world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
    world.run();
    assert!(world.take_trace().is_empty());
}

#[test]
fn a_broken_shared_queue_is_reported() {
    let mut world = World::new(2, 1);
    let cq = [0, 1].map(|i| world.hosts[i].cq(8).unwrap());
    let host = &mut world.hosts[1];
    let srq = host.driver.create_srq(host.pd, 0, 4, 2, 0).unwrap();
    let config = QpConfig {
        srqn: Some(srq.srqn),
        ..host.qp_config(QPT_RC, &cq[1])
    };
    let responder = host.driver.create_qp(&config).unwrap();
    let mut requester = world.hosts[0].qp(QPT_RC, &cq[0]).unwrap();
    let path = world.path(1, responder.qpn);
    let connected = world.hosts[0].driver.connect(requester.qpn, QPT_RC, &path);
    connected.unwrap();
    let path = world.path(0, requester.qpn);
    let host = &mut world.hosts[1];
    host.driver.connect(responder.qpn, QPT_RC, &path).unwrap();
    host.driver.async_events();
    // More posted than the ring holds.
    host.driver.bus.store_u32(srq.record(), 1000);
    let send = Send {
        opcode: wr::WR_SEND,
        inline: Some(b"x"),
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut requester, &send);
    world.run();
    let [mut cq, _] = cq;
    expect_cqe(&mut world, 0, &mut cq, cqe::REM_OP_ERR);
    // proves: IBV_EVENT_SRQ_ERR
    assert_eq!(
        world.hosts[1].driver.async_events(),
        [
            (event::SRQ_ERROR, srq.srqn),
            (event::LAST_WQE_REACHED, responder.qpn),
            (event::QP_FATAL, responder.qpn)
        ]
    );
}

#[test]
fn a_reset_keeps_only_the_identity() {
    let mut world = World::new(2, 1);
    let pair = world.connect(QPT_RC, PAGE, |_| {});
    world.hosts[0].driver.alloc_uctx().unwrap();
    let counts = |nic: &mut Nic| {
        let n = nic.object_counts();
        n.pds + n.mkeys + n.cqs + n.qps + n.srqs + n.ahs + n.uctxs
    };
    assert!(world.with_nic(0, counts) >= 5);
    let version = world.with_nic(0, |nic| nic.doorbell_pages_version());
    let mac = world.hosts[0].driver.bus.read_register(regs::MAC);
    let bus = &mut world.hosts[0].driver.bus;
    bus.write_register(regs::CONTROL, regs::RESET);
    for register in [regs::STATUS, regs::ADMIN_SQ_BASE, regs::ADMIN_LOG_DEPTH] {
        let expected = if register == regs::STATUS {
            regs::LINK_UP
        } else {
            0
        };
        assert_eq!(bus.read_register(register), expected, "{register:#x}");
    }
    assert_eq!(bus.read_register(regs::MAC), mac);
    assert_eq!(world.with_nic(0, counts), 0);
    assert_ne!(
        world.with_nic(0, |nic| nic.doorbell_pages_version()),
        version
    );
    assert_eq!(world.with_nic(0, |nic| nic.doorbell_pages().count()), 0);
    // Doorbells and packets to destroyed objects have no effect.
    let bus = &mut world.hosts[0].driver.bus;
    let bell = doorbell::Doorbell {
        kind: doorbell::SQ,
        object: pair.qp[0].qpn,
        value: 1,
    };
    bus.doorbell(0, bell);
    // A driver starts it again.
    let again = faultline_simulation::Driver::new(world.hosts[0].driver.bus.clone());
    assert_eq!(again.unwrap().alloc_pd(), Ok(1));
}

#[test]
fn registers_keep_their_halves_and_refuse_invalid_writes() {
    let mut world = World::new(1, 1);
    let Host { driver, .. } = &mut world.hosts[0];
    let bus = &mut driver.bus;
    let errors = |bus: &mut faultline_simulator::SimBus, offset: u32, value: u32| {
        bus.write_register(offset, value);
    };
    // The rings don't move under a device that runs.
    let before = bus.read_register(regs::ADMIN_SQ_BASE);
    errors(bus, regs::ADMIN_SQ_BASE, 0x1000);
    errors(bus, regs::TRANSLATION_LOG_DEPTH, 1);
    errors(bus, regs::CAPS, 1);
    errors(bus, regs::CONTROL, 1 << 5);
    errors(bus, 0xfffc, 1);
    assert_eq!(bus.read_register(regs::ADMIN_SQ_BASE), before);
    assert_eq!(driver.counter(Counter::register_errors), Ok(5));
    let bus = &mut driver.bus;
    bus.write_register(regs::CONTROL, 0);
    bus.write_register(regs::ADMIN_SQ_BASE, 0x1000);
    bus.write_register(regs::ADMIN_SQ_BASE + 4, 0x55);
    bus.write_register(regs::ADMIN_SQ_BASE, 0x2000);
    assert_eq!(bus.read_register(regs::ADMIN_SQ_BASE + 4), 0x55);
    assert_eq!(bus.read_register(regs::ADMIN_SQ_BASE), 0x2000);
    // Unaligned, or past the end of the address space.
    for (low, high) in [(0x2040, 0), (0xffff_f000, 0xffff_ffff)] {
        bus.write_register(regs::ADMIN_LOG_DEPTH, 3);
        bus.write_register(regs::TRANSLATION_LOG_DEPTH, 3);
        bus.write_register(regs::ADMIN_SQ_BASE, low);
        bus.write_register(regs::ADMIN_SQ_BASE + 4, high);
        bus.write_register(regs::CONTROL, regs::ENABLE);
        assert_eq!(bus.read_register(regs::FATAL_CODE), regs::BAD_RINGS);
        bus.write_register(regs::CONTROL, regs::RESET);
    }
}

#[test]
fn command_rings_without_memory_stop_the_device() {
    for (base, kind) in [
        (regs::ADMIN_SQ_BASE, doorbell::ADMIN),
        (regs::ADMIN_CQ_BASE, doorbell::ADMIN),
        (regs::TRANSLATION_SQ_BASE, doorbell::TRANSLATION),
        (regs::TRANSLATION_CQ_BASE, doorbell::TRANSLATION),
    ] {
        let mut world = World::new(1, 1);
        let bus = &mut world.hosts[0].driver.bus;
        bus.write_register(regs::CONTROL, 0);
        for ring in [
            regs::ADMIN_SQ_BASE,
            regs::ADMIN_CQ_BASE,
            regs::TRANSLATION_SQ_BASE,
            regs::TRANSLATION_CQ_BASE,
        ] {
            let addr = if ring == base { NOWHERE } else { RAM_BASE };
            bus.write_register(ring, addr as u32);
        }
        bus.write_register(regs::ADMIN_LOG_DEPTH, 3);
        bus.write_register(regs::TRANSLATION_LOG_DEPTH, 3);
        bus.write_register(regs::CONTROL, regs::ENABLE);
        assert_eq!(
            bus.read_register(regs::STATUS) & (regs::FATAL | regs::ENABLED),
            regs::ENABLED
        );
        // Far out of range: refused, not fatal.
        let ring = |value| doorbell::Doorbell {
            kind,
            object: 0,
            value,
        };
        bus.doorbell(0, ring(9));
        assert_eq!(bus.read_register(regs::FATAL_CODE), regs::NONE);
        bus.doorbell(0, ring(1));
        assert_eq!(bus.read_register(regs::FATAL_CODE), regs::RING_DMA);
    }
}

#[test]
fn a_port_that_was_asked_for_survives_a_new_path() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, PAGE, |_| {});
    let qpn = pair.qp[0].qpn;
    let av = world.path(1, 0).av();
    let send = Send {
        opcode: wr::WR_WRITE,
        inline: Some(b"x"),
        remote_addr: pair.mr[1].va,
        rkey: pair.mr[1].key,
        ..Send::default()
    };
    let mut port = |world: &mut World| {
        world.start_trace();
        world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
        world.run();
        expect_cqe(world, 0, &mut pair.cq[0], cqe::SUCCESS);
        world.take_trace()[0].1.udp_src_port
    };
    let derived = port(&mut world);
    let modify = |world: &mut World, mask: u32, state, udp_sport| {
        let attr = QpAttr {
            mask: U32::new(mask | QP_ATTR_STATE),
            state,
            av,
            udp_sport: U16::new(udp_sport),
            ..QpAttr::default()
        };
        world.hosts[0].driver.modify_qp(qpn, &attr).unwrap();
    };
    modify(&mut world, QP_ATTR_UDP_SPORT, QPS_RTS, 0xd123);
    assert_eq!(port(&mut world), 0xd123);
    modify(&mut world, 0, QPS_SQD, 0);
    modify(&mut world, QP_ATTR_AV, QPS_SQD, 0);
    modify(&mut world, 0, QPS_RTS, 0);
    assert_eq!(port(&mut world), 0xd123);
    modify(&mut world, QP_ATTR_UDP_SPORT, QPS_RTS, 0);
    assert_eq!(port(&mut world), derived);
}

#[test]
fn a_queue_pair_that_goes_takes_its_timer_along() {
    let mut world = World::new(2, 1);
    world.lose(|_, _| true);
    for _ in 0..20 {
        let mut pair = world.connect(QPT_RC, PAGE, |c| c.timeout = 31);
        let send = Send {
            opcode: wr::WR_WRITE,
            inline: Some(b"x"),
            ..Send::default()
        };
        let driver = &mut world.hosts[0].driver;
        driver.post_send(&mut pair.qp[0], &send);
        driver.command(DESTROY_QP, pair.qp[0].qpn, &()).unwrap();
    }
    assert_eq!(world.with_nic(0, |nic| nic.object_counts().timers), 0);
}

#[test]
fn a_user_context_has_the_process_that_the_driver_names() {
    let mut world = World::new(1, 1);
    let driver = &mut world.hosts[0].driver;
    let named = AllocUctx {
        pid: U32::new(4242),
        comm: *b"perf\xff\0\0\0\0\0\0\0\0\0\0\0",
        ..AllocUctx::default()
    };
    let page = driver.command(ALLOC_UCTX, 0, &named).unwrap().handle.get();
    // A driver of an earlier version says nothing.
    let other = driver.alloc_uctx().unwrap();
    let process = |page| world.with_nic(0, |nic| nic.process_of(page));
    assert_eq!(process(page), Some((4242, named.comm)));
    assert_eq!(process(other), Some((0, [0; 16])));
    assert_eq!(process(0), None);
    let driver = &mut world.hosts[0].driver;
    driver.command(DEALLOC_UCTX, page, &()).unwrap();
    assert_eq!(world.with_nic(0, |nic| nic.process_of(page)), None);
}
