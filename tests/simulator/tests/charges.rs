//! Work that a guest causes is charged where it is done, and is bounded: no command, doorbell or packet holds up the
//! other NICs of the process for much longer than a turn. The simulator checks after every call that all work is
//! charged.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use faultline_abi::admin::*;
use faultline_abi::doorbell;
use faultline_abi::qp::*;
use faultline_abi::translation::{self as tq, TqCmd};
use faultline_abi::wqe::{self as wr, BindMwWqe, RegMrWqe};
use faultline_abi::{Status, U32, U64, cqe};
use faultline_nic::TURN_WORK;
use faultline_simulation::driver::ALL_ACCESS;
use faultline_simulation::{Bus, Cq, Error, Qp, QpConfig, RAM_BASE, Send};
use faultline_simulator::{World, expect_cqe, packet};
use faultline_wire::Gid;
use faultline_wire::aeth::{Aeth, Syndrome};
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::deth::Deth;
use faultline_wire::ip::Ip;
use faultline_wire::opcode::Opcode;
use faultline_wire::packet::RoceHeader;
use zerocopy::{FromBytes, IntoBytes};

use crate::common::create_key;

/// A turn, and the work that had begun in it.
const LONGEST: u64 = 2 * TURN_WORK;
/// Limit of the work for a small thing.
const LITTLE: u64 = 4096;

fn work(world: &World) -> u64 {
    world.with_nic(0, |nic| nic.work())
}

fn destroy(world: &mut World, opcode: u16, number: u32) -> Result<(), Error> {
    let driver = &mut world.hosts[0].driver;
    driver.command(opcode, number, &[0u8; 0]).map(drop)
}

/// A connected QP of host 0 with room for many requests; only those that ask for it complete.
fn deep_qp(world: &mut World, log_depth: u8) -> (Qp, Qp, [Cq; 2]) {
    let cq = [0, 1].map(|host: usize| world.hosts[host].cq(6).unwrap());
    let config = QpConfig {
        log_depth,
        max_sge: 1,
        flags: 0,
        ..world.hosts[0].qp_config(QPT_RC, &cq[0])
    };
    let qp = world.hosts[0].driver.create_qp(&config).unwrap();
    let peer = world.hosts[1].qp(QPT_RC, &cq[1]).unwrap();
    world.connect_qps(QPT_RC, [qp.qpn, peer.qpn], |_| {});
    (qp, peer, cq)
}

/// 256 mappings of a page of 1 GiB, with 32 doorbells.
#[test]
fn a_page_as_large_as_the_region_is_written_in_few_leaves() {
    let mut world = World::new(1, 1);
    let key = create_key(&mut world.hosts[0], 0, 1 << 30);
    let map = TqCmd {
        opcode: tq::MAP,
        flags: tq::CONTIGUOUS,
        key: U32::new(key),
        count: U64::new(1),
        list: U64::new(RAM_BASE | tq::READ),
        page_shift: 30,
        ..TqCmd::default()
    };
    let before = work(&world);
    for _ in 0..32 {
        let done = world.hosts[0].driver.translate_all(&[map; 8]).unwrap();
        assert_eq!(done, [8], "without a turn of others in between");
    }
    let each = (work(&world) - before) / 256;
    assert!((512..1024).contains(&each), "{each}");
    assert!(world.longest_call() < LONGEST, "{}", world.longest_call());
}

/// Mappings of a turn each, by one doorbell.
#[test]
fn mappings_take_turns() {
    const LEAVES: u64 = 1 << 18;
    let mut world = World::new(1, 1);
    let key = create_key(&mut world.hosts[0], 0, LEAVES << 12);
    let map = |flags: u8| TqCmd {
        opcode: tq::MAP,
        flags,
        key: U32::new(key),
        count: U64::new(LEAVES),
        list: U64::new(RAM_BASE | tq::READ),
        page_shift: 12,
        ..TqCmd::default()
    };
    let done = world.hosts[0]
        .driver
        .translate_all(&[map(tq::CONTIGUOUS); 4]);
    assert_eq!(done.unwrap(), [1, 2, 3, 4]);
    assert!(
        world.longest_call() > TURN_WORK,
        "too little to show anything"
    );
    assert!(world.longest_call() < LONGEST, "{}", world.longest_call());
}

/// Commands of a turn each do not keep the timers of queue pairs from running.
#[test]
fn timers_run_while_commands_wait() {
    const LEAVES: u64 = 1 << 18;
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, 4096, |_| {});
    let key = create_key(&mut world.hosts[0], 0, LEAVES << 12);
    let map = TqCmd {
        opcode: tq::MAP,
        flags: tq::CONTIGUOUS,
        key: U32::new(key),
        count: U64::new(LEAVES),
        list: U64::new(RAM_BASE | tq::READ),
        page_shift: 12,
        ..TqCmd::default()
    };
    world.lose(|from, _| from == 0);
    world.post_write(&mut pair, 8);
    world.run_for(1000);
    let timeout = world.with_nic(0, |nic| nic.next_deadline()).unwrap();
    let commands = Rc::new(Cell::new(0));
    let repeated_after = Rc::new(Cell::new(None));
    let (read, repeated) = (Rc::clone(&commands), Rc::clone(&repeated_after));
    world.race(0, move |_, bytes| {
        let is_map = TqCmd::read_from_bytes(bytes)
            .is_ok_and(|cmd| cmd.opcode == tq::MAP && cmd.key.get() == key);
        read.set(read.get() + u32::from(is_map));
    });
    world.lose(move |from, _| {
        if from == 0 && repeated.get().is_none() {
            repeated.set(Some(commands.get()));
        }
        from == 0
    });
    world.advance_to(timeout.0);
    world.hosts[0].driver.translate_all(&[map; 8]).unwrap();
    let after = repeated_after.get();
    assert!(
        after.is_some_and(|commands| (1..=2).contains(&commands)),
        "{after:?} of 8 commands came before the timer"
    );
}

#[test]
fn a_registration_with_a_large_page_costs_little() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, 4096, |_| {});
    let key = create_key(&mut world.hosts[0], MKEY_FAST_REG, 16);
    let driver = &mut world.hosts[0].driver;
    let list = driver.alloc(4096).unwrap();
    driver.bus.write(list, &RAM_BASE.to_le_bytes());
    let register = RegMrWqe {
        opcode: wr::WR_REG_MR,
        access: U32::new(ACCESS_LOCAL_WRITE),
        key: U32::new(key),
        iova: U64::new(5 << 30),
        length: U64::new(1 << 30),
        list: U64::new(list),
        num_pages: U32::new(1),
        page_shift: U32::new(30),
        ..RegMrWqe::default()
    };
    let before = work(&world);
    let driver = &mut world.hosts[0].driver;
    driver.post_raw_send(&mut pair.qp[0], register.as_bytes());
    world.run();
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
    let work = work(&world) - before;
    assert!(work < LITTLE, "{work}");
}

/// A QP to which many windows are bound is destroyed in turns, independent of other objects.
#[test]
fn windows_are_freed_in_turns_when_their_queue_pair_goes() {
    const WINDOWS: u32 = 20_000;
    const LOG_DEPTH: u8 = 12;
    let mut world = World::new(2, 1);
    let (pd, access) = (world.hosts[0].pd, ALL_ACCESS | ACCESS_MW_BIND);
    let region = world.hosts[0].driver.reg_mr(pd, 0x9000_0000, 4096, access);
    let region = region.unwrap();
    let windows: Vec<u32> = (0..WINDOWS)
        .map(|_| create_key(&mut world.hosts[0], MKEY_WINDOW_2, 0))
        .collect();
    let bind = |window: u32, flags: u8| BindMwWqe {
        opcode: wr::WR_BIND_MW,
        flags,
        rkey: U32::new(window),
        lkey: U32::new(region.key),
        access: U32::new(ACCESS_REMOTE_READ),
        addr: U64::new(region.va),
        length: U64::new(64),
        ..BindMwWqe::default()
    };
    let (mut many, _many_peer, mut cq) = deep_qp(&mut world, LOG_DEPTH);
    let (mut few, _few_peer, mut few_cq) = deep_qp(&mut world, 4);
    let few_window = create_key(&mut world.hosts[0], MKEY_WINDOW_2, 0);
    let driver = &mut world.hosts[0].driver;
    driver.post_raw_send(&mut few, bind(few_window, wr::WR_FLAG_SIGNALED).as_bytes());
    world.run();
    expect_cqe(&mut world, 0, &mut few_cq[0], cqe::SUCCESS);
    for part in windows.chunks((1 << LOG_DEPTH) - 1) {
        for (n, window) in part.iter().enumerate() {
            let flags = match n + 1 == part.len() {
                true => wr::WR_FLAG_SIGNALED,
                false => 0,
            };
            let driver = &mut world.hosts[0].driver;
            driver.post_raw_send(&mut many, bind(*window, flags).as_bytes());
        }
        world.run();
        expect_cqe(&mut world, 0, &mut cq[0], cqe::SUCCESS);
    }
    // One window among many others.
    let before = work(&world);
    destroy(&mut world, DESTROY_QP, few.qpn).unwrap();
    let little = work(&world) - before;
    assert!(little < LITTLE, "{little}");
    assert_eq!(
        destroy(&mut world, DESTROY_MKEY, region.key),
        Err(Error::Refused(Status::InUse))
    );
    let before = work(&world);
    destroy(&mut world, DESTROY_QP, many.qpn).unwrap();
    let all = work(&world) - before;
    assert!(all > LONGEST, "{all}: too little to show anything");
    assert!(world.longest_call() < LONGEST, "{}", world.longest_call());
    // All of them are free, and so is the region.
    let (mut other, _other_peer, mut other_cq) = deep_qp(&mut world, 4);
    for window in [windows[0], windows[windows.len() - 1], few_window] {
        let driver = &mut world.hosts[0].driver;
        driver.post_raw_send(&mut other, bind(window, wr::WR_FLAG_SIGNALED).as_bytes());
        world.run();
        expect_cqe(&mut world, 0, &mut other_cq[0], cqe::SUCCESS);
    }
    destroy(&mut world, DESTROY_QP, other.qpn).unwrap();
    destroy(&mut world, DESTROY_MKEY, region.key).unwrap();
}

/// Time that this thread has had on a processor. The time of a clock has that of other threads in it on a busy machine.
fn processor_time() -> Duration {
    // The kernel brings the count up to date when the thread leaves the processor.
    std::thread::sleep(Duration::from_nanos(1));
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Requests without packets behind one that is not acknowledged, and a peer that acknowledges the same again and again.
/// Returns the work for an acknowledgement, and the time.
fn acknowledge_behind(log_depth: u8) -> (u64, Duration) {
    const ACKS: u64 = 200;
    let mut world = World::new(2, 1);
    let window = create_key(&mut world.hosts[0], MKEY_WINDOW_1, 0);
    let bind = BindMwWqe {
        opcode: wr::WR_BIND_MW,
        rkey: U32::new(window),
        ..BindMwWqe::default()
    };
    let (from, to) = (
        world.hosts[0].mr(4096).unwrap(),
        world.hosts[1].mr(4096).unwrap(),
    );
    let (mut qp, _peer, mut cq) = deep_qp(&mut world, log_depth);
    world.lose(|from, _| from == 0);
    let write = Send {
        opcode: wr::WR_WRITE,
        sges: &[(from.va, 8, from.key)],
        remote_addr: to.va,
        rkey: to.key,
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut qp, &write);
    for n in 1..1u32 << log_depth {
        let flags = match n + 1 == 1 << log_depth {
            true => wr::WR_FLAG_SIGNALED,
            false => 0,
        };
        let bind = BindMwWqe { flags, ..bind };
        let driver = &mut world.hosts[0].driver;
        driver.post_raw_send(&mut qp, bind.as_bytes());
    }
    world.run_for(100_000);
    assert!(world.completions(0, &mut cq[0]).is_empty());
    let (here, there) = (&world.hosts[0], &world.hosts[1]);
    let ip = Ip::from_gids(there.gid, here.gid, 0, 0, 64);
    let bth = Bth::new(Opcode::RcAcknowledge, qp.qpn, Psn::new(0).prev());
    let ack = RoceHeader {
        aeth: Some(Aeth {
            syndrome: Syndrome::ACK,
            msn: 0,
        }),
        ..RoceHeader::new(here.mac, there.mac, ip, bth)
    };
    let before = work(&world);
    let round = || {
        for _ in 0..ACKS {
            world.inject(1, packet(&ack, &[]));
        }
        let start = processor_time();
        world.run_for(10_000);
        processor_time() - start
    };
    const ROUNDS: u64 = 5;
    let shortest = std::iter::repeat_with(round).take(ROUNDS as usize).min();
    let each = (work(&world) - before) / (ROUNDS * ACKS);
    assert!(world.completions(0, &mut cq[0]).is_empty());
    // A true one ends them all.
    world.lose_nothing();
    world.run();
    expect_cqe(&mut world, 0, &mut cq[0], cqe::SUCCESS);
    assert!(world.longest_call() < LONGEST, "{}", world.longest_call());
    (each, shortest.unwrap_or_default())
}

#[test]
fn acknowledgements_do_not_search_the_requests() {
    let (work, few) = acknowledge_behind(2);
    assert!(work < 512, "{work}");
    let (work, many) = acknowledge_behind(15);
    assert!(work < 512, "{work}");
    assert!(
        many < few * 4,
        "{many:?} behind many requests, {few:?} behind few"
    );
}

#[test]
fn requests_of_a_resized_shared_queue_count() {
    const POSTED: u32 = 1 << 13;
    let mut world = World::new(1, 1);
    let host = &mut world.hosts[0];
    let mut srq = host.driver.create_srq(host.pd, 0, 13, 1, 0).unwrap();
    for tag in 0..POSTED {
        host.driver.post_srq_recv(&mut srq, tag, &[]);
    }
    let before = work(&world);
    world.hosts[0].driver.resize_srq(&mut srq, 14).unwrap();
    let work = work(&world) - before;
    assert!(work >= u64::from(POSTED) * 8, "{work}");
}

/// Objects of a context are counted, not searched.
#[test]
fn the_end_of_a_context_does_not_depend_on_others() {
    let mut world = World::new(1, 1);
    let driver = &mut world.hosts[0].driver;
    let xrcd = driver.alloc_xrcd().unwrap();
    for _ in 0..5000 {
        driver.create_xrc_target(xrcd).unwrap();
    }
    let page = driver.alloc_uctx().unwrap();
    let eqn = world.hosts[0].eq.eqn;
    let config = faultline_simulation::driver::CqConfig {
        log_depth: 4,
        eqn,
        uctx: page,
    };
    let host = &mut world.hosts[0];
    let cq = host.driver.create_cq(config).unwrap();
    let srq = host.driver.create_srq(host.pd, page, 4, 1, 0).unwrap();
    let config = QpConfig {
        uctx: page,
        ..host.qp_config(QPT_RC, &cq)
    };
    let qp = host.driver.create_qp(&config).unwrap();
    for (opcode, number) in [
        (DESTROY_QP, qp.qpn),
        (DESTROY_SRQ, srq.srqn),
        (DESTROY_CQ, cq.cqn),
    ] {
        let in_use = destroy(&mut world, DEALLOC_UCTX, page);
        assert_eq!(in_use, Err(Error::Refused(Status::InUse)));
        destroy(&mut world, opcode, number).unwrap();
    }
    let before = work(&world);
    destroy(&mut world, DEALLOC_UCTX, page).unwrap();
    let work = work(&world) - before;
    assert!(work < LITTLE, "{work}");
}

/// A large page table is freed in turns; the next command finds the memory given back.
#[test]
fn page_tables_are_freed_in_turns() {
    const LEAVES: u64 = 1 << 18;
    const COMMANDS: u64 = 33;
    let mut world = World::new(1, 1);
    let held = |world: &World| world.with_nic(0, |nic| nic.held_memory());
    let before = held(&world);
    let key = create_key(&mut world.hosts[0], 0, (COMMANDS * LEAVES) << 12);
    for n in 0..COMMANDS {
        let map = TqCmd {
            opcode: tq::MAP,
            flags: tq::CONTIGUOUS,
            key: U32::new(key),
            iova: U64::new((n * LEAVES) << 12),
            count: U64::new(LEAVES),
            list: U64::new(RAM_BASE | tq::READ),
            page_shift: 12,
            ..TqCmd::default()
        };
        world.hosts[0].driver.translate(&map).unwrap();
    }
    assert!(held(&world) > before + (64 << 20));
    let start = work(&world);
    destroy(&mut world, DESTROY_MKEY, key).unwrap();
    world.hosts[0].driver.alloc_pd().unwrap();
    assert_eq!(held(&world), before);
    let work = work(&world) - start;
    assert!(work > LONGEST, "{work}: too little to show anything");
    assert!(world.longest_call() < LONGEST, "{}", world.longest_call());
}

/// Completion queues that all use the same memory: nothing completes on them.
/// One datagram to a group breaks all of its members, each of which flushes a long queue: in turns.
#[test]
fn members_of_a_group_fail_in_turns() {
    const MEMBERS: usize = 64;
    const LOG_DEPTH: u8 = 10;
    const QKEY: u32 = 7;
    let group = Gid::from_ipv4([239, 1, 2, 3]);
    let mut world = World::new(2, 1);
    let mut cq = world.hosts[0].cq(17).unwrap();
    let config = QpConfig {
        log_depth: LOG_DEPTH,
        max_sge: 1,
        ..world.hosts[0].qp_config(QPT_UD, &cq)
    };
    // All of them have their rings in the same place.
    let place = world.hosts[0].driver.next_free();
    let mut members = [(); MEMBERS].map(|()| {
        let driver = &mut world.hosts[0].driver;
        driver.free_from(place);
        let qp = driver.create_qp(&config).unwrap();
        driver.activate(qp.qpn, QPT_UD, QKEY).unwrap();
        driver.attach_mcast(qp.qpn, group).unwrap();
        qp
    });
    for tag in 0..1 << LOG_DEPTH {
        // No such key.
        let sge = (0x1000, 4096, 0xdead_0000);
        let driver = &mut world.hosts[0].driver;
        driver.post_recv(&mut members[0], tag, &[sge]);
    }
    let mac = group.multicast_mac().unwrap();
    let ip = Ip::from_gids(world.hosts[1].gid, group, 0, 0, 64);
    let bth = Bth::new(Opcode::UdSendOnly, 0xff_ffff, Psn::new(0));
    let deth = Deth {
        qkey: QKEY,
        src_qp: 2,
    };
    let datagram = RoceHeader {
        deth: Some(deth),
        ..RoceHeader::new(mac, world.hosts[1].mac, ip, bth)
    };
    let before = work(&world);
    world.inject(1, packet(&datagram, &[1; 64]));
    world.run();
    let work = work(&world) - before;
    assert!(work > 2 * LONGEST, "{work}: too little to show anything");
    assert!(world.longest_call() < LONGEST, "{}", world.longest_call());
    let failed = world.completions(0, &mut cq);
    assert_eq!(failed.len(), MEMBERS << LOG_DEPTH);
}

/// A device is reset at once, however large its page tables are: others free them.
#[test]
fn a_reset_frees_no_page_tables() {
    const LEAVES: u64 = 1 << 18;
    const MAPS: u64 = 128;
    let mut world = World::new(1, 1);
    let key = create_key(&mut world.hosts[0], 0, (MAPS * LEAVES) << 12);
    for part in 0..MAPS {
        let map = TqCmd {
            opcode: tq::MAP,
            flags: tq::CONTIGUOUS,
            key: U32::new(key),
            iova: U64::new((part * LEAVES) << 12),
            count: U64::new(LEAVES),
            list: U64::new(RAM_BASE | tq::READ),
            page_shift: 12,
            ..TqCmd::default()
        };
        world.hosts[0].driver.translate(&map).unwrap();
    }
    let (resets, frees) = world.with_nic(0, |nic| {
        assert!(nic.held_memory() > 256 << 20);
        let start = processor_time();
        nic.reset(faultline_nic::Instant(0));
        let resets = processor_time() - start;
        let start = processor_time();
        let remains = nic.take_remains();
        assert!(remains.is_some());
        drop(remains);
        (resets, processor_time() - start)
    });
    assert!(resets * 8 < frees, "{resets:?}, {frees:?}");
}

fn poor_cq(world: &mut World, eqn: u32, memory: u64) -> u32 {
    let create = CreateCq {
        ring: RingDesc {
            addr: U64::new(memory),
            num_pages: U32::new(1),
            page_shift: 12,
            ..RingDesc::default()
        },
        eqn: U32::new(eqn),
        ..CreateCq::default()
    };
    let driver = &mut world.hosts[0].driver;
    driver.command(CREATE_CQ, 0, &create).unwrap().handle.get()
}

/// An index that can't be makes a notice at once.
fn provoke_notice(world: &mut World, cqn: u32) {
    let driver = &mut world.hosts[0].driver;
    driver.ring(0, doorbell::CQ_ARM, cqn, 0x7777_0000);
}

#[test]
fn destroyed_completion_queues_wait_for_nothing() {
    let mut world = World::new(1, 1);
    let mut eq = world.hosts[0].driver.create_eq(0, 2, 1).unwrap();
    let memory = world.hosts[0].driver.alloc(4096).unwrap();
    let waiting = |world: &World| world.with_nic(0, |nic| nic.waiting_notices());
    let last = poor_cq(&mut world, eq.eqn, memory);
    provoke_notice(&mut world, last);
    provoke_notice(&mut world, last);
    provoke_notice(&mut world, last);
    assert_eq!(waiting(&world), 1);
    for _ in 0..1000 {
        let cqn = poor_cq(&mut world, eq.eqn, memory);
        provoke_notice(&mut world, cqn);
        assert_eq!(waiting(&world), 2);
        destroy(&mut world, DESTROY_CQ, cqn).unwrap();
        assert_eq!(waiting(&world), 1);
    }
    // The remaining one gets the resource for which it waits.
    let driver = &mut world.hosts[0].driver;
    for _ in 0..2 {
        assert_eq!(driver.poll_event(&mut eq).unwrap().object.get(), last);
    }
    driver.arm_eq(&eq);
    assert_eq!(driver.poll_event(&mut eq).unwrap().object.get(), last);
    assert!(driver.poll_event(&mut eq).is_none());
    assert_eq!(waiting(&world), 0);
}

/// Notices that have waited for room go out in turns.
#[test]
fn notices_that_waited_take_turns() {
    const CQS: u32 = 20_000;
    const LOG_DEPTH: u8 = 15;
    let mut world = World::new(1, 1);
    let mut eq = world.hosts[0].driver.create_eq(0, 2, LOG_DEPTH).unwrap();
    let memory = world.hosts[0].driver.alloc(4096).unwrap();
    let filler = poor_cq(&mut world, eq.eqn, memory);
    for _ in 0..1 << LOG_DEPTH {
        provoke_notice(&mut world, filler);
    }
    let cqs: Vec<u32> = (0..CQS)
        .map(|_| {
            let cqn = poor_cq(&mut world, eq.eqn, memory);
            provoke_notice(&mut world, cqn);
            cqn
        })
        .collect();
    let driver = &mut world.hosts[0].driver;
    let read = std::iter::from_fn(|| driver.poll_event(&mut eq)).count();
    assert_eq!(read, 1 << LOG_DEPTH);
    let before = work(&world);
    world.hosts[0].driver.arm_eq(&eq);
    world.run();
    let work = work(&world) - before;
    assert!(work > LONGEST, "{work}: too little to show anything");
    assert!(world.longest_call() < LONGEST, "{}", world.longest_call());
    let driver = &mut world.hosts[0].driver;
    let told: Vec<u32> = std::iter::from_fn(|| driver.poll_event(&mut eq))
        .map(|event| event.object.get())
        .collect();
    assert!(told == cqs, "{} of {}", told.len(), cqs.len());
}

/// Memory for repeated answers to READs and atomics is part of the same budget as queue pairs.
#[test]
fn answers_that_are_kept_have_a_limit() {
    let mut world = World::with_config(2, 1, |config| config.table_bytes = 64 << 10);
    let held = |world: &World| world.with_nic(0, |nic| nic.held_memory());
    let cq = world.hosts[0].cq(4).unwrap();
    let before = held(&world);
    let qps: Vec<u32> = (0..40)
        .map(|_| world.hosts[0].qp(QPT_RC, &cq).unwrap().qpn)
        .collect();
    let mut made = 0;
    let refused = loop {
        let idle = held(&world);
        let path = world.path(1, 77);
        match world.hosts[0].driver.connect(qps[made], QPT_RC, &path) {
            // Eight of each, and their requests.
            Ok(()) => assert!(held(&world) >= idle + 8 * (40 + 48)),
            Err(error) => break error,
        }
        made += 1;
    };
    assert_eq!(refused, Error::Refused(Status::NoResources));
    assert!(made > 4 && held(&world) <= 64 << 10);
    // RESET gives it back.
    let driver = &mut world.hosts[0].driver;
    driver.set_state(qps[0], QPS_RESET).unwrap();
    let path = world.path(1, 77);
    let driver = &mut world.hosts[0].driver;
    driver.connect(qps[0], QPT_RC, &path).unwrap();
    let full = held(&world);
    assert!(full > 60 << 10, "{full}");
    for qpn in qps {
        destroy(&mut world, DESTROY_QP, qpn).unwrap();
    }
    assert_eq!(held(&world), before);
}

/// All queue pairs that there are may wait for one page: they are called in turns when it comes, or never will.
#[test]
fn those_that_wait_for_a_page_are_called_in_turns() {
    const QPS: u32 = 20_000;
    for destroyed in [true, false] {
        let mut world = World::new(1, 1);
        let driver = &mut world.hosts[0].driver;
        let mut faults = driver.create_eq(EQ_FAULTS, 2, 4).unwrap();
        let cq = world.hosts[0].cq(15).unwrap();
        let key = {
            let host = &mut world.hosts[0];
            let create = CreateMkey {
                pd: U32::new(host.pd),
                access: U32::new(ACCESS_LOCAL_WRITE | ACCESS_ON_DEMAND),
                iova: U64::new(0x10_0000),
                length: U64::new(4096),
                page_shift: 12,
                ..CreateMkey::default()
            };
            let answer = host.driver.command(CREATE_MKEY, 0, &create).unwrap();
            answer.handle.get()
        };
        let config = QpConfig {
            log_depth: 0,
            max_sge: 1,
            ..world.hosts[0].qp_config(QPT_RAW, &cq)
        };
        let send = Send {
            opcode: wr::WR_RAW,
            sges: &[(0x10_0000, 64, key)],
            ..Send::default()
        };
        // All of them have their rings in the same place.
        for _ in 0..QPS {
            let driver = &mut world.hosts[0].driver;
            let place = driver.next_free();
            let mut qp = driver.create_qp(&config).unwrap();
            driver.free_from(place);
            driver.activate(qp.qpn, QPT_RAW, 0).unwrap();
            driver.post_send(&mut qp, &send);
        }
        let driver = &mut world.hosts[0].driver;
        let fault = driver.poll_event(&mut faults).unwrap();
        assert!(driver.poll_event(&mut faults).is_none());
        let before = work(&world);
        if destroyed {
            destroy(&mut world, DESTROY_MKEY, key).unwrap();
        } else {
            let resume = TqCmd {
                opcode: tq::RESUME,
                token: U64::new(fault.token.get()),
                resume_status: faultline_abi::U16::new(Status::DmaError as u16),
                ..TqCmd::default()
            };
            let waited = world.hosts[0].driver.translate(&resume);
            assert_eq!(waited, Ok(QPS));
        }
        world.run();
        let work = work(&world) - before;
        assert!(work > LONGEST, "{work}: too little to show anything");
        assert!(world.longest_call() < LONGEST, "{}", world.longest_call());
        let mut cq = cq;
        let failed = world.completions(0, &mut cq);
        assert!(failed.iter().all(|cqe| cqe.status == cqe::LOC_PROT_ERR));
        assert_eq!(failed.len() as u32, QPS);
    }
}
