//! Places in the fault queue: their owners, the queue pairs that wait for one, and the RNR timers of peers.

use faultline_abi::admin::{Counter, DESTROY_QP};
use faultline_abi::qp::*;
use faultline_abi::{Status, cqe, wqe as wr};
use faultline_nic::Nanos;
use faultline_simulation::FaultService;
use faultline_simulation::{Cq, CqConfig, Mr, Qp, QpConfig, Send};
use faultline_simulator::{HostPager, Pair, World, expect_cqe, pager};
use faultline_wire::aeth::{Syndrome, rnr_timer_ns};

use crate::common::counter;

const VA: u64 = 0x7f12_3456_0000;
const PAGE: u64 = 4096;
const US: u64 = 1_000;
const SEC: u64 = 1_000_000_000;

/// Entries of the device for queue pairs of host 0 that wait.
fn waits(world: &World) -> usize {
    world.with_nic(0, |nic| nic.object_counts().fault_waits)
}

/// Requesters of host 0 whose buffers are absent.
struct Requesters {
    world: World,
    pager: HostPager,
    pairs: Vec<Pair>,
}

impl Requesters {
    fn new(count: usize, max_faults: u32, log_depth: u8) -> Self {
        let mut world = World::with_config(2, 1, |config| config.limits.max_faults = max_faults);
        let mut pager = HostPager::new(&mut world, 0, 256, log_depth);
        pager.register(&mut world, VA, 1 << 20);
        let pairs = (0..count)
            .map(|_| world.connect(QPT_RC, 64, |_| {}))
            .collect();
        Self {
            world,
            pager,
            pairs,
        }
    }

    fn write(&mut self, n: usize, page: u64) {
        let pair = &mut self.pairs[n];
        let write = Send {
            opcode: wr::WR_WRITE,
            sges: &[self.pager.sge(0, page * PAGE, 8)],
            remote_addr: pair.mr[1].va,
            rkey: pair.mr[1].key,
            ..Send::default()
        };
        let driver = &mut self.world.hosts[0].driver;
        driver.post_send(&mut pair.qp[0], &write);
    }
}

/// A process creates queue pairs, lets them miss a page and destroys them, without end. The device keeps nothing of
/// them: neither of those that found no room in the fault queue, nor of those that joined a fault.
#[test]
fn queue_pairs_that_come_and_go_leave_nothing() {
    let mut r = Requesters::new(1, 64, 1);
    let cq = r.world.hosts[0].cq(4).unwrap();
    // Two faults that are never answered fill the queue of records.
    r.pager.service = FaultService::Ignore;
    let config = r.world.hosts[0].qp_config(QPT_RC, &cq);
    let config = QpConfig {
        log_depth: 2,
        ..config
    };
    let path = r.world.path(1, 77);
    let mark = r.world.hosts[0].driver.next_free();
    for n in 0..20_000u64 {
        let driver = &mut r.world.hosts[0].driver;
        driver.free_from(mark);
        let mut qp = driver.create_qp(&config).unwrap();
        driver.connect(qp.qpn, QPT_RC, &path).unwrap();
        let send = Send {
            opcode: wr::WR_SEND,
            sges: &[r.pager.sge(0, n % 3 * PAGE, 8)],
            ..Send::default()
        };
        driver.post_send(&mut qp, &send);
        assert_eq!(waits(&r.world), 1, "the queue pair waits, and no other");
        let driver = &mut r.world.hosts[0].driver;
        match n % 2 {
            0 => driver.set_state(qp.qpn, QPS_RESET).unwrap(),
            _ => driver.set_state(qp.qpn, QPS_ERR).unwrap(),
        }
        assert_eq!(waits(&r.world), 0);
        let driver = &mut r.world.hosts[0].driver;
        driver.command(DESTROY_QP, qp.qpn, &[0u8; 0]).unwrap();
    }
    assert!(counter(&mut r.world, 0, Counter::page_fault_overflow) > 6000);
    assert!(counter(&mut r.world, 0, Counter::page_faults_joined) > 6000);
    // Queue pairs that waited for room continue as before.
    r.write(0, 9);
    assert_eq!(waits(&r.world), 1);
    r.pager.service = FaultService::Repair;
    let (world, pager) = (&mut r.world, &mut r.pager);
    pager::run(world, &mut [pager]);
    expect_cqe(&mut r.world, 0, &mut r.pairs[0].cq[0], cqe::SUCCESS);
}

/// Room for one fault calls one of those that wait for it, in the order of their arrival.
#[test]
fn a_place_is_given_to_the_first_in_line() {
    const COUNT: usize = 100;
    let mut r = Requesters::new(COUNT, 4, 6);
    for n in 0..COUNT {
        r.write(n, n as u64);
    }
    assert_eq!(waits(&r.world), COUNT);
    let mut found_no_room = counter(&mut r.world, 0, Counter::page_fault_overflow);
    assert_eq!(found_no_room, COUNT as u64 - 4);
    for n in 0..COUNT {
        r.pager.collect(&mut r.world);
        let raised = (n + 4).min(COUNT);
        assert_eq!(r.pager.records.len(), raised);
        let record = r.pager.records[n];
        assert_eq!(record.va.get(), VA + n as u64 * PAGE);
        r.pager
            .map_page(&mut r.world, 0, VA / PAGE + n as u64, false);
        let waited = r.pager.resume(&mut r.world, record.token.get(), Status::Ok);
        assert_eq!(waited, Ok(1));
        r.world.run_for(10 * US);
        let now = counter(&mut r.world, 0, Counter::page_fault_overflow);
        assert!(
            now - found_no_room <= 1,
            "{} were called",
            now - found_no_room
        );
        found_no_room = now;
        assert_eq!(waits(&r.world), COUNT - n - 1);
    }
    for pair in &mut r.pairs {
        expect_cqe(&mut r.world, 0, &mut pair.cq[0], cqe::SUCCESS);
    }
}

/// Faults that time out leave places, which others wait for.
#[test]
fn faults_that_expire_make_room() {
    let mut r = Requesters::new(3, 2, 6);
    r.pager.service = FaultService::Ignore;
    for n in [0, 1] {
        r.write(n, n as u64);
    }
    r.world.run_for(SEC);
    r.pager.collect(&mut r.world);
    r.write(2, 2);
    r.world.run_for(58 * SEC);
    r.pager.collect(&mut r.world);
    assert_eq!(r.pager.records.len(), 2);
    r.world.run_for(SEC + 100 * US);
    r.pager.collect(&mut r.world);
    assert_eq!(r.pager.records.len(), 3);
    let record = r.pager.records[2];
    r.pager.map_page(&mut r.world, 0, VA / PAGE + 2, false);
    let waited = r.pager.resume(&mut r.world, record.token.get(), Status::Ok);
    assert_eq!(waited, Ok(1));
    r.world.run_for(SEC);
    for (pair, status) in
        r.pairs
            .iter_mut()
            .zip([cqe::LOC_PROT_ERR, cqe::LOC_PROT_ERR, cqe::SUCCESS])
    {
        expect_cqe(&mut r.world, 0, &mut pair.cq[0], status);
    }
}

/// XRC initiators of host 0 with a target each at host 1.
struct Targets {
    world: World,
    pager: HostPager,
    qps: Vec<(Qp, Cq)>,
    source: Mr,
}

impl Targets {
    fn new(count: usize, max_faults: u32) -> Self {
        let mut world = World::with_config(2, 1, |config| {
            config.limits.max_faults = max_faults;
            config.fault_timeout = Nanos(100 * SEC);
        });
        let pager = HostPager::new(&mut world, 1, 256, 6);
        let xrcd = world.hosts[1].driver.alloc_xrcd().unwrap();
        let mut qps = Vec::new();
        for _ in 0..count {
            let cq = world.hosts[0].cq(4).unwrap();
            let config = world.hosts[0].qp_config(QPT_XRC_INI, &cq);
            let ini = world.hosts[0].driver.create_qp(&config).unwrap();
            let tgt = world.hosts[1].driver.create_xrc_target(xrcd).unwrap();
            let path = world.path(1, tgt);
            let driver = &mut world.hosts[0].driver;
            driver.connect(ini.qpn, QPT_XRC_INI, &path).unwrap();
            let path = world.path(0, ini.qpn);
            let driver = &mut world.hosts[1].driver;
            driver.connect(tgt, QPT_XRC_TGT, &path).unwrap();
            qps.push((ini, cq));
        }
        let source = world.hosts[0].mr(PAGE).unwrap();
        Self {
            world,
            pager,
            qps,
            source,
        }
    }

    /// A process of host 1: a context, a domain, and an XRC SRQ and a region of these.
    fn process(&mut self) -> (usize, u32) {
        self.process_of(0)
    }

    /// The same of a user.
    fn process_of(&mut self, user: u32) -> (usize, u32) {
        let driver = &mut self.world.hosts[1].driver;
        let uctx = driver.alloc_uctx_for(user).unwrap();
        let pd = driver.alloc_pd_of(uctx).unwrap();
        let xrcd = 1;
        let cq = self.world.hosts[1].cq(4).unwrap();
        let driver = &mut self.world.hosts[1].driver;
        let srq = driver.create_xrc_srq(pd, xrcd, cq.cqn).unwrap();
        let region = self.pager.register_in(&mut self.world, pd, VA, 1 << 20, 0);
        (region, srq.srqn)
    }

    fn post(&mut self, n: usize, opcode: u8, (region, srqn): (usize, u32), page: u64) {
        let (at, _, rkey) = self.pager.sge(region, page * PAGE, 8);
        let send = Send {
            opcode,
            sges: &[(self.source.va, 8, self.source.key)],
            remote_addr: at,
            rkey,
            remote_qpn: srqn,
            ..Send::default()
        };
        let driver = &mut self.world.hosts[0].driver;
        driver.post_send(&mut self.qps[n].0, &send);
    }
}

/// A target belongs to no process: the process whose memory is missing takes the places, and no more than its share.
#[test]
fn no_context_takes_the_share_of_others_by_targets() {
    for opcode in [wr::WR_WRITE, wr::WR_READ] {
        let mut t = Targets::new(18, 16);
        let (greedy, other) = (t.process(), t.process());
        t.pager.service = FaultService::Ignore;
        for n in 0..16 {
            t.post(n, opcode, greedy, n as u64);
        }
        t.world.run_for(100 * US);
        let faults = |t: &mut Targets| counter(&mut t.world, 1, Counter::page_faults);
        assert_eq!(faults(&mut t), 8, "opcode {opcode}");
        for n in 16..18 {
            t.post(n, opcode, other, n as u64);
        }
        t.world.run_for(100 * US);
        assert_eq!(faults(&mut t), 10);
        // The pages of the other process come, those of the first do not.
        t.pager.collect(&mut t.world);
        for record in t.pager.records.clone() {
            if record.key.get() == t.pager.regions[other.0].key {
                let page = record.va.get() / PAGE;
                t.pager.map_page(&mut t.world, other.0, page, true);
                let token = record.token.get();
                t.pager.resume(&mut t.world, token, Status::Ok).unwrap();
            }
        }
        t.world.run_for(SEC);
        for (n, (_, cq)) in t.qps.iter_mut().enumerate() {
            let done = t.world.completions(0, cq);
            let expected = usize::from(n >= 16);
            assert_eq!(done.len(), expected, "opcode {opcode}, queue pair {n}");
            assert!(done.iter().all(|cqe| cqe.status == cqe::SUCCESS));
        }
    }
}

/// A user opens a context more than its process needs, a dozen of times: together they leave room for other users.
#[test]
fn no_user_takes_the_share_of_others() {
    const PLACES: u32 = 64;
    const EACH: usize = 6;
    const CONTEXTS: usize = 12;
    let mut t = Targets::new(EACH * (CONTEXTS + 1), PLACES);
    t.pager.service = FaultService::Ignore;
    let faults = |t: &mut Targets| counter(&mut t.world, 1, Counter::page_faults);
    let mut number = 0;
    let mut access = |t: &mut Targets, user: u32| {
        let process = t.process_of(user);
        for page in 0..EACH as u64 {
            t.post(number, wr::WR_WRITE, process, page);
            number += 1;
        }
        t.world.run_for(100 * US);
    };
    for _ in 0..CONTEXTS {
        access(&mut t, 1000);
    }
    assert_eq!(faults(&mut t), 48, "three quarters of {PLACES}");
    access(&mut t, 1001);
    assert_eq!(faults(&mut t), 48 + EACH as u64);
}

/// Peers whose requests find no room repeat them, and more rarely the longer the repairs take.
#[test]
fn requests_without_a_place_do_not_flood() {
    let mut t = Targets::new(16, 16);
    let process = t.process();
    t.pager.service = FaultService::Ignore;
    for n in 0..16 {
        t.post(n, wr::WR_WRITE, process, n as u64);
    }
    t.world.run_for(SEC);
    assert_eq!(counter(&mut t.world, 1, Counter::page_faults), 8);
    let refused = counter(&mut t.world, 1, Counter::rnr_nak_sent);
    // Each time as long as it has taken already, up to 40 ms.
    assert!((16 * 25..16 * 60).contains(&refused), "{refused}");
}

/// Packets that wait in the device for the pages of one process leave room for those of others.
#[test]
fn no_context_takes_the_memory_for_packets_that_wait() {
    let mut world = World::with_config(2, 1, |config| config.park_bytes = 32 << 10);
    let mut pager = HostPager::new(&mut world, 1, 256, 6);
    pager.service = FaultService::Ignore;
    let cq = world.hosts[0].cq(8).unwrap();
    let mut sender = world.hosts[0].qp(QPT_UD, &cq).unwrap();
    let driver = &mut world.hosts[0].driver;
    driver.activate(sender.qpn, QPT_UD, 7).unwrap();
    let source = world.hosts[0].mr(PAGE).unwrap();
    let (pd, av) = (world.hosts[0].pd, world.path(1, 0).av());
    let ah = world.hosts[0].driver.create_ah(pd, av).unwrap();
    let mut ends = [(); 2].map(|()| {
        let eqn = world.hosts[1].eq.eqn;
        let driver = &mut world.hosts[1].driver;
        let uctx = driver.alloc_uctx().unwrap();
        let pd = driver.alloc_pd_of(uctx).unwrap();
        let cq = CqConfig {
            log_depth: 6,
            eqn,
            uctx,
        };
        let cq = driver.create_cq(cq).unwrap();
        let config = QpConfig {
            uctx,
            pd,
            ..world.hosts[1].qp_config(QPT_UD, &cq)
        };
        let driver = &mut world.hosts[1].driver;
        let qp = driver.create_qp(&config).unwrap();
        driver.activate(qp.qpn, QPT_UD, 7).unwrap();
        let region = pager.register_in(&mut world, pd, VA, 1 << 20, 0);
        (qp, cq, region)
    });
    for (n, count) in [(0, 60), (1, 6)] {
        let (qp, _, region) = &mut ends[n];
        for page in 0..count {
            let sge = pager.sge(*region, u64::from(page) * PAGE, 2000);
            world.hosts[1].driver.post_recv(qp, page, &[sge]);
        }
        for _ in 0..count {
            let send = Send {
                opcode: wr::WR_SEND,
                sges: &[(source.va, 1000, source.key)],
                ah,
                remote_qpn: qp.qpn,
                qkey: 7,
                ..Send::default()
            };
            world.hosts[0].driver.post_send(&mut sender, &send);
        }
        world.run_for(100 * US);
    }
    let parked = counter(&mut world, 1, Counter::parked_packets);
    let lost = counter(&mut world, 1, Counter::park_overflow);
    assert_eq!((parked + lost, lost > 40), (66, true), "{parked} parked");
    // Only the pages of the second come.
    while world.completions(1, &mut ends[1].1).len() < 6 {
        pager.collect(&mut world);
        let mut records = std::mem::take(&mut pager.records);
        records.retain(|record| record.key.get() == pager.regions[ends[1].2].key);
        assert!(!records.is_empty(), "packets were lost");
        let last = VA / PAGE + 5;
        for page in VA / PAGE..=last {
            pager.map_page(&mut world, ends[1].2, page, true);
        }
        for record in records {
            let token = record.token.get();
            pager.resume(&mut world, token, Status::Ok).unwrap();
        }
        world.run_for(100 * US);
    }
    assert!(world.completions(1, &mut ends[0].1).is_empty());
}

/// How long peers are told to wait does not follow the slowest page of all.
#[test]
fn one_slow_page_does_not_slow_the_others() {
    for same_process in [true, false] {
        let mut t = Targets::new(2, 16);
        let slow = t.process();
        let other = match same_process {
            true => slow,
            false => t.process(),
        };
        let pages = if same_process { 1 } else { 50 };
        let timers = |t: &mut Targets| -> Vec<u64> {
            let trace = t.world.take_trace().into_iter();
            let syndromes = trace.filter_map(|(_, header)| header.aeth);
            syndromes
                .filter_map(|aeth| match aeth.syndrome {
                    Syndrome::RnrNak { timer } => Some(rnr_timer_ns(timer)),
                    _ => None,
                })
                .collect()
        };
        t.world.start_trace();
        for page in 0..pages {
            t.pager.delay = 50 * SEC / pages;
            t.post(0, wr::WR_WRITE, slow, page);
            pager::run(&mut t.world, &mut [&mut t.pager]);
        }
        let longest = timers(&mut t).into_iter().max();
        assert!(longest > Some(30_000 * US), "{longest:?}");
        t.pager.delay = 10 * US;
        t.post(1, wr::WR_WRITE, other, 100);
        pager::run(&mut t.world, &mut [&mut t.pager]);
        let told = timers(&mut t);
        assert!(!told.is_empty());
        assert!(told.iter().all(|ns| *ns < 300 * US), "{told:?}");
        for (_, cq) in &mut t.qps {
            let done = t.world.completions(0, cq);
            assert!(done.iter().all(|cqe| cqe.status == cqe::SUCCESS));
        }
    }
}
