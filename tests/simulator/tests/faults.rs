//! Pages that are not there, on either side of every kind of transfer.

use faultline_abi::admin::Counter;
use faultline_abi::qp::*;
use faultline_abi::translation::{self as tq, TqCmd};
use faultline_abi::{Status, cqe, event, wqe as wr};
use faultline_nic::{Diagnostic, DriverTimes, FaultPolicy, Nanos, NicConfig, Pitfalls, ReadyMode};
use faultline_simulation::FaultService;
use faultline_simulation::{Cq, Error, Qp, Rng, Send};
use faultline_simulator::{HostPager, Pair, World, expect_cqe, packet, pager};
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::ip::Ip;
use faultline_wire::opcode::Opcode;
use faultline_wire::packet::RoceHeader;
use faultline_wire::reth::Reth;

use crate::common::counter;

const VA: u64 = 0x7f12_3456_0000;
const PAGE: u64 = 4096;
const US: u64 = 1_000;
const MS: u64 = 1_000_000;

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| ((i + seed * 7).wrapping_mul(0x9e37_79b9) >> 11) as u8)
        .collect()
}

fn set_policy(world: &mut World, host: usize, qpn: u32, policy: u8) {
    world.hosts[host]
        .driver
        .set_fault_policy(qpn, policy)
        .unwrap();
}

/// A connection whose both sides have a region on demand of this length, beginning in the middle of a page.
struct Paged {
    world: World,
    pair: Pair,
    pagers: [HostPager; 2],
}

impl Paged {
    fn new(mut world: World, kind: u8, len: u64, frames: u32) -> Self {
        let pair = world.connect(kind, PAGE, |c| c.path_mtu = 3);
        let pagers = [0, 1].map(|host| {
            let mut pager = HostPager::new(&mut world, host, frames, 6);
            pager.register(&mut world, VA + 0x123 + host as u64 * 0x1000_0000, len);
            pager
        });
        Self {
            world,
            pair,
            pagers,
        }
    }

    fn run(&mut self) {
        let [a, b] = &mut self.pagers;
        pager::run(&mut self.world, &mut [a, b]);
    }

    /// Lets a microsecond pass.
    fn pass(&mut self) {
        let next = self.world.now() + US;
        while self.world.step(next) {}
        self.world.advance_to(next);
        for pager in &mut self.pagers {
            pager.collect(&mut self.world);
            pager.answer_due(&mut self.world);
        }
    }

    /// Runs until the pager of a host has seen a fault.
    fn run_to_fault(&mut self, host: usize) {
        while self.pagers[host].records.is_empty() {
            self.pass();
        }
    }

    /// Runs until `count` requests are done, all of them well; returns the time that it took.
    fn time(&mut self, count: usize) -> u64 {
        let start = self.world.now();
        let mut done = Vec::new();
        while done.len() < count {
            self.pass();
            done.extend(self.world.completions(0, &mut self.pair.cq[0]));
        }
        assert!(done.iter().all(|cqe| cqe.status == cqe::SUCCESS));
        self.world.now() - start
    }

    /// A request of host 0 about its region and that of host 1.
    fn post(&mut self, opcode: u8, local: (u64, u32), remote: u64) {
        let remote = self.pagers[1].sge(0, remote, 0);
        let send = Send {
            opcode,
            sges: &[self.pagers[0].sge(0, local.0, local.1)],
            remote_addr: remote.0,
            rkey: remote.2,
            compare_add: 5,
            swap: 77,
            ..Send::default()
        };
        self.world.hosts[0]
            .driver
            .post_send(&mut self.pair.qp[0], &send);
    }

    fn post_recv(&mut self, tag: u32, offset: u64, len: u32) {
        let sge = self.pagers[1].sge(0, offset, len);
        self.world.hosts[1]
            .driver
            .post_recv(&mut self.pair.qp[1], tag, &[sge]);
    }

    #[track_caller]
    fn expect(&mut self, host: usize, status: u8) {
        expect_cqe(&mut self.world, host, &mut self.pair.cq[host], status);
    }

    fn nothing(&mut self, host: usize) -> bool {
        self.world
            .completions(host, &mut self.pair.cq[host])
            .is_empty()
    }
}

#[test]
fn every_transfer_brings_its_own_pages() {
    const LEN: u32 = 20_000;
    for by_reference in [false, true] {
        for opcode in [
            wr::WR_SEND,
            wr::WR_SEND_IMM,
            wr::WR_WRITE,
            wr::WR_WRITE_IMM,
            wr::WR_READ,
            wr::WR_COMP_SWAP,
            wr::WR_FETCH_ADD,
        ] {
            let world = World::new(2, 1);
            if by_reference {
                world.hand_over_by_reference();
            }
            let mut p = Paged::new(world, QPT_RC, 1 << 20, 32);
            let atomic = matches!(opcode, wr::WR_COMP_SWAP | wr::WR_FETCH_ADD);
            let len = if atomic { 8 } else { LEN };
            // 5 stands at an aligned address of host 1.
            let remote = if atomic { 8192 - 0x123 } else { 3000 };
            let (mine, theirs) = (pattern(1, len as usize), pattern(2, len as usize));
            p.pagers[0].write(&p.world, 0, 1000, &mine);
            p.pagers[1].write(&p.world, 0, remote, &theirs);
            if atomic {
                p.pagers[1].write(&p.world, 0, remote, &5u64.to_le_bytes());
            }
            p.post_recv(9, 3000, LEN);
            p.post(opcode, (1000, len), remote);
            p.run();
            p.expect(0, cqe::SUCCESS);
            let here = p.pagers[0].read(&p.world, 0, 1000, len as usize);
            let there = p.pagers[1].read(&p.world, 0, remote, len as usize);
            match opcode {
                wr::WR_READ => assert!(here == theirs && there == theirs),
                wr::WR_COMP_SWAP => {
                    assert_eq!(here, 5u64.to_le_bytes());
                    assert_eq!(there, 77u64.to_le_bytes());
                }
                wr::WR_FETCH_ADD => {
                    assert_eq!(here, 5u64.to_le_bytes());
                    assert_eq!(there, 10u64.to_le_bytes());
                }
                _ => assert!(here == mine && there == mine, "opcode {opcode}"),
            }
            let receives = matches!(opcode, wr::WR_SEND | wr::WR_SEND_IMM | wr::WR_WRITE_IMM);
            assert_eq!(p.nothing(1), !receives);
            for host in [0, 1] {
                // proves: IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_RECV, IBV_ODP_SUPPORT_WRITE
                // proves: IBV_ODP_SUPPORT_READ, IBV_ODP_SUPPORT_ATOMIC
                assert!(counter(&mut p.world, host, Counter::page_faults) > 0);
                assert_eq!(
                    counter(&mut p.world, host, Counter::page_faults),
                    counter(&mut p.world, host, Counter::page_faults_resumed)
                );
                assert_eq!(
                    counter(&mut p.world, host, Counter::local_ack_timeout_err),
                    0,
                    "nothing waits for a timeout"
                );
            }
        }
    }
}

#[test]
fn records_have_the_needed_range() {
    let mut p = Paged::new(World::new(2, 1), QPT_RC, 1 << 20, 64);
    p.post(wr::WR_WRITE, (0, 10_000), 4096);
    p.run();
    p.expect(0, cqe::SUCCESS);
    let local = p.pagers[0].records[0];
    assert_eq!(local.object.get(), p.pair.qp[0].qpn);
    assert_eq!(local.fault_flags.get(), event::REQUESTER);
    let sge = p.pagers[0].sge(0, 0, 0);
    assert_eq!((local.va.get(), local.key.get()), (sge.0, sge.2));
    assert_eq!((local.bytes.get(), local.hint_bytes.get()), (1024, 10_000));
    let remote = p.pagers[1].records[0];
    let sge = p.pagers[1].sge(0, 4096, 0);
    assert_eq!(remote.fault_flags.get(), event::WRITE);
    assert_eq!((remote.va.get(), remote.key.get()), (sge.0, sge.2));
    assert_eq!(
        (remote.bytes.get(), remote.hint_bytes.get()),
        (1024, 10_000)
    );
    // With the hint taken, there is one fault on each side.
    let mut p = Paged::new(World::new(2, 1), QPT_RC, 1 << 20, 64);
    for pager in &mut p.pagers {
        pager.ahead = 1 << 20;
    }
    p.post(wr::WR_WRITE, (0, 10_000), 4096);
    p.run();
    p.expect(0, cqe::SUCCESS);
    assert_eq!(p.pagers.each_ref().map(|pager| pager.records.len()), [1, 1]);
}

/// Where addresses count from zero, the driver still hears of its own.
#[test]
fn records_of_zero_based_regions_have_their_place() {
    let mut p = Paged::new(World::new(2, 1), QPT_RC, PAGE, 64);
    let [a, b] = [0, 1].map(|host: usize| {
        let va = VA + 0x4000_0321;
        let pager = &mut p.pagers[host];
        let region = pager.register_with(&mut p.world, va, 1 << 20, ACCESS_ZERO_BASED);
        pager.sge(region, 0, 10_000)
    });
    let data = pattern(3, 10_000);
    p.pagers[0].write(&p.world, 1, 100, &data);
    let send = Send {
        opcode: wr::WR_WRITE,
        sges: &[(100, 10_000, a.2)],
        remote_addr: 4096,
        rkey: b.2,
        ..Send::default()
    };
    let driver = &mut p.world.hosts[0].driver;
    driver.post_send(&mut p.pair.qp[0], &send);
    p.run();
    p.expect(0, cqe::SUCCESS);
    assert!(p.pagers[1].read(&p.world, 1, 4096, 10_000) == data);
    let (local, remote) = (p.pagers[0].records[0], p.pagers[1].records[0]);
    assert_eq!((local.va.get(), remote.va.get()), (a.0 + 100, b.0 + 4096));
    for record in [local, remote] {
        assert_eq!(
            (record.bytes.get(), record.hint_bytes.get()),
            (1024, 10_000)
        );
    }
}

/// All kinds of transfers while pages are taken away, moved and written by the processor.
#[test]
fn memory_moves_under_traffic() {
    const REGION: u64 = 160 << 10;
    for seed in 0..24 {
        let world = World::new(2, seed);
        if seed % 2 == 0 {
            world.hand_over_between_engines();
        }
        let mut rng = Rng::new(seed);
        if seed % 4 >= 2 {
            let mut rng = Rng::new(seed + 100);
            world.lose(move |_, _| rng.chance(20));
        }
        // Fewer frames than pages, so that pages go by themselves too.
        let mut p = Paged::new(world, QPT_RC, REGION, 24);
        let mut adds = 0u64;
        for round in 0..60 {
            let opcode = [
                wr::WR_SEND,
                wr::WR_WRITE,
                wr::WR_WRITE_IMM,
                wr::WR_READ,
                wr::WR_FETCH_ADD,
            ][rng.below(5) as usize];
            let atomic = opcode == wr::WR_FETCH_ADD;
            let len = if atomic { 8 } else { 1 + rng.below(30_000) };
            let local = 8 + rng.below(REGION - len - 8);
            let remote = match atomic {
                true => 4096 - 0x123,
                false => 8192 + rng.below(REGION - len - 8192),
            };
            let data = pattern(seed * 100 + round, len as usize);
            let (source, at) = match opcode {
                wr::WR_READ => (1, remote),
                _ => (0, local),
            };
            p.pagers[source].write(&p.world, 0, at, &data);
            for host in [0, 1] {
                p.pagers[host].delay = 1 + rng.below(300_000);
                p.pagers[host].ahead = rng.below(2) * 65_536;
            }
            let expected = matches!(opcode, wr::WR_SEND | wr::WR_WRITE_IMM);
            let landing = if expected { remote } else { 0 };
            p.post_recv(round as u32, landing, len as u32);
            p.post(opcode, (local, len as u32), remote);
            // Pages go and move at every point of the transfer.
            for _ in 0..rng.below(12) {
                let until = p.world.now() + rng.below(200 * US);
                while p.world.step(until) {}
                p.world.advance_to(until);
                for pager in &mut p.pagers {
                    pager.collect(&mut p.world);
                    pager.answer_due(&mut p.world);
                }
                let host = rng.below(2) as usize;
                let page = (p.pagers[host].regions[0].va / PAGE) + rng.below(REGION / PAGE + 1);
                match rng.below(3) {
                    0 => p.pagers[host].evict(&mut p.world, 0, page),
                    1 => p.pagers[host].migrate(&mut p.world, 0, page),
                    _ => p.pagers[host].evict_all(&mut p.world, 0),
                }
            }
            p.run();
            p.expect(0, cqe::SUCCESS);
            let received = p.world.completions(1, &mut p.pair.cq[1]);
            assert_eq!(
                received.len(),
                usize::from(expected),
                "seed {seed} round {round}"
            );
            assert!(received.iter().all(|cqe| cqe.status == cqe::SUCCESS));
            if !expected {
                // The receive that was not used is used by a message that does.
                p.pagers[0].write(&p.world, 0, 0, b"x");
                p.post(wr::WR_SEND, (0, 1), 0);
                p.run();
                p.expect(0, cqe::SUCCESS);
                p.expect(1, cqe::SUCCESS);
            }
            if atomic {
                let was = p.pagers[0].read(&p.world, 0, local, 8);
                assert_eq!(was, adds.to_le_bytes(), "seed {seed} round {round}");
                adds += 5;
                let is = p.pagers[1].read(&p.world, 0, remote, 8);
                assert_eq!(is, adds.to_le_bytes(), "exactly once");
            } else if expected || opcode == wr::WR_WRITE {
                let got = p.pagers[1].read(&p.world, 0, remote, len as usize);
                assert!(got == data, "seed {seed} round {round} opcode {opcode}");
            } else {
                let got = p.pagers[0].read(&p.world, 0, local, len as usize);
                assert!(got == data, "seed {seed} round {round} READ");
            }
        }
        for pager in 0..2 {
            // Every free frame still has the contents of its last owner: the device does not access it any more.
            p.pagers[pager].evict_all(&mut p.world, 0);
            p.pagers[pager].check_free(&p.world);
        }
    }
}

/// A pair of queue pairs without connection, with a page table each.
fn datagrams(world: &mut World, kind: u8) -> ([Cq; 2], [Qp; 2]) {
    let cq = [0, 1].map(|i| world.hosts[i].cq(8).unwrap());
    let qp = [0, 1].map(|i| world.hosts[i].qp(kind, &cq[i]).unwrap());
    for (host, qp) in qp.iter().enumerate() {
        world.hosts[host].driver.activate(qp.qpn, kind, 7).unwrap();
    }
    (cq, qp)
}

#[test]
fn datagrams_wait_for_their_pages_in_order() {
    for by_reference in [false, true] {
        let mut world = World::new(2, 1);
        if by_reference {
            world.hand_over_by_reference();
        }
        let (mut cq, mut qp) = datagrams(&mut world, QPT_UD);
        let mut pagers = [0, 1].map(|host| {
            let mut pager = HostPager::new(&mut world, host, 64, 6);
            pager.register(&mut world, VA + 7, 1 << 20);
            pager
        });
        let av = world.path(1, 0).av();
        let pd = world.hosts[0].pd;
        let ah = world.hosts[0].driver.create_ah(pd, av).unwrap();
        for n in 0..20u32 {
            let data = pattern(u64::from(n), 700);
            pagers[0].write(&world, 0, u64::from(n) * 5000, &data);
            let sge = pagers[1].sge(0, u64::from(n) * 6000, 2000);
            world.hosts[1].driver.post_recv(&mut qp[1], n, &[sge]);
        }
        for n in 0..20u32 {
            let send = Send {
                opcode: wr::WR_SEND,
                sges: &[pagers[0].sge(0, u64::from(n) * 5000, 700)],
                ah,
                remote_qpn: qp[1].qpn,
                qkey: 7,
                ..Send::default()
            };
            world.hosts[0].driver.post_send(&mut qp[0], &send);
        }
        let [a, b] = &mut pagers;
        pager::run(&mut world, &mut [a, b]);
        let sent = world.completions(0, &mut cq[0]);
        assert_eq!(sent.len(), 20);
        assert!(sent.iter().all(|cqe| cqe.status == cqe::SUCCESS));
        let received = world.completions(1, &mut cq[1]);
        let tags: Vec<u32> = received.iter().map(|cqe| cqe.wqe.get()).collect();
        assert_eq!(tags, (0..20).collect::<Vec<_>>());
        for n in 0..20u64 {
            let found = pagers[1].read(&world, 0, n * 6000 + 40, 700);
            assert!(found == pattern(n, 700), "datagram {n}");
        }
        assert!(counter(&mut world, 1, Counter::parked_packets) > 0);
        assert_eq!(counter(&mut world, 1, Counter::park_overflow), 0);
    }
}

#[test]
fn packets_without_room_in_the_park_are_dropped_and_counted() {
    let mut world = World::with_config(2, 1, |config| config.park_bytes = 8192);
    let (mut cq, mut qp) = datagrams(&mut world, QPT_RAW);
    let mut pager = HostPager::new(&mut world, 1, 64, 6);
    pager.register(&mut world, VA, 1 << 20);
    let mac = world.hosts[1].mac;
    world.hosts[1]
        .driver
        .set_netdev(mac, 1500, qp[1].qpn)
        .unwrap();
    let source = world.hosts[0].mr(4096).unwrap();
    let mut frame = pattern(3, 1000);
    frame[..6].copy_from_slice(&mac.0);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    world.hosts[0].driver.write_mr(&source, 0, &frame);
    for n in 0..20 {
        let sge = pager.sge(0, u64::from(n) * 4096, 1500);
        world.hosts[1].driver.post_recv(&mut qp[1], n, &[sge]);
    }
    for _ in 0..20 {
        let send = Send {
            opcode: wr::WR_RAW,
            sges: &[(source.va, 1000, source.key)],
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut qp[0], &send);
    }
    pager::run(&mut world, &mut [&mut pager]);
    let received = world.completions(1, &mut cq[1]).len() as u64;
    let lost = counter(&mut world, 1, Counter::park_overflow);
    assert_eq!(received + lost, 20);
    assert!(received >= 6 && lost > 0, "{received} received");
    for n in 0..received {
        assert!(pager.read(&world, 0, n * 4096, 1000) == frame);
    }
}

#[test]
fn unreliable_connections_park_too() {
    let mut p = Paged::new(World::new(2, 1), QPT_UC, 1 << 20, 64);
    for n in 0..10u64 {
        let data = pattern(n, 9000);
        p.pagers[0].write(&p.world, 0, n * 10_000, &data);
        p.post_recv(n as u32, n * 10_000, 9000);
        let opcode = if n.is_multiple_of(2) {
            wr::WR_SEND
        } else {
            wr::WR_WRITE_IMM
        };
        p.post(opcode, (n * 10_000, 9000), 300_000 + n * 10_000);
    }
    p.run();
    let received = p.world.completions(1, &mut p.pair.cq[1]);
    assert_eq!(received.len(), 10);
    for (n, cqe) in received.iter().enumerate() {
        let n = n as u64;
        assert_eq!((cqe.status, u64::from(cqe.wqe.get())), (cqe::SUCCESS, n));
        let at = n * 10_000 + if n.is_multiple_of(2) { 0 } else { 300_000 };
        assert!(p.pagers[1].read(&p.world, 0, at, 9000) == pattern(n, 9000));
    }
}

#[test]
fn each_policy_has_the_documented_effect() {
    for policy in FaultPolicy::ALL {
        let mut p = Paged::new(World::new(2, 1), QPT_RC, 1 << 20, 64);
        let qpn = p.pair.qp[1].qpn;
        set_policy(&mut p.world, 1, qpn, policy.number());
        let data = pattern(5, 6000);
        p.pagers[0].write(&p.world, 0, 0, &data);
        p.post(wr::WR_WRITE, (0, 6000), 100);
        // A second one of the same host to pinned memory.
        let other = p.world.connect(QPT_RC, PAGE, |_| {});
        let [mut cq, _] = other.cq;
        let [mut qp, _] = other.qp;
        let write = Send {
            opcode: wr::WR_WRITE,
            sges: &[(other.mr[0].va, 100, other.mr[0].key)],
            remote_addr: other.mr[1].va,
            rkey: other.mr[1].key,
            ..Send::default()
        };
        // As soon as the fault is there, and before it is repaired.
        p.pagers[1].delay = 5 * MS;
        if policy != FaultPolicy::Terminate {
            p.run_to_fault(1);
        }
        p.world.hosts[0].driver.post_send(&mut qp, &write);
        let until = p.world.now() + 20 * US;
        while p.world.step(until) {}
        let passed = p.world.completions(0, &mut cq).len();
        p.run();
        let terminated = policy == FaultPolicy::Terminate;
        if terminated {
            p.expect(0, cqe::REM_OP_ERR);
            assert!(p.pagers[1].records.is_empty());
        } else {
            p.expect(0, cqe::SUCCESS);
            assert!(p.pagers[1].read(&p.world, 0, 100, 6000) == data);
        }
        let count = |world: &mut World, c| counter(world, 1, c);
        let w = &mut p.world;
        assert_eq!(
            count(w, Counter::page_fault_rnr) > 0,
            policy == FaultPolicy::Rnr
        );
        assert_eq!(
            count(w, Counter::page_fault_drops) > 0,
            policy == FaultPolicy::Drop
        );
        assert_eq!(count(w, Counter::stalls) > 0, policy == FaultPolicy::Stall);
        // Only `stall` makes others wait.
        let after = w.completions(0, &mut cq).len();
        let expected = if policy == FaultPolicy::Stall {
            (0, 1)
        } else {
            (1, 0)
        };
        assert_eq!((passed, after), expected, "{policy:?}");
        assert_eq!(counter(w, 0, Counter::local_ack_timeout_err), 0);
    }
}

#[test]
fn a_terminating_queue_pair_answers_no_read_from_memory_that_is_not_there() {
    // The pages that are there: none, and those that are looked at when the READ comes.
    for there in [0, 20] {
        let mut p = Paged::new(World::new(2, 1), QPT_RC, 1 << 20, 128);
        let qpn = p.pair.qp[1].qpn;
        set_policy(&mut p.world, 1, qpn, FAULT_POLICY_TERMINATE);
        let first = p.pagers[1].sge(0, 0, 0).0 / PAGE;
        for page in first..first + there {
            p.pagers[1].map_page(&mut p.world, 0, page, false);
        }
        p.post(wr::WR_READ, (0, 200_000), 0);
        p.run();
        p.expect(0, cqe::REM_OP_ERR);
        assert!(p.pagers[1].records.is_empty(), "{there} pages");
    }
}

#[test]
fn a_read_is_refused_without_a_fault_queue() {
    // The pages that are there: none, and those that are looked at when the READ comes.
    for there in [0, 20] {
        let mut p = Paged::new(World::new(2, 1), QPT_RC, 1 << 20, 128);
        let first = p.pagers[1].sge(0, 0, 0).0 / PAGE;
        for page in first..first + there {
            p.pagers[1].map_page(&mut p.world, 0, page, false);
        }
        p.pagers[1].close(&mut p.world);
        p.post(wr::WR_READ, (0, 200_000), 0);
        p.run();
        p.expect(0, cqe::REM_ACCESS_ERR);
    }
}

#[test]
fn a_stall_that_cannot_end_is_found() {
    let world = World::with_config(2, 1, |config| config.stall_timeout = Nanos::from_millis(5));
    let mut p = Paged::new(world, QPT_RC, 1 << 20, 64);
    let qpn = p.pair.qp[1].qpn;
    set_policy(&mut p.world, 1, qpn, FAULT_POLICY_STALL);
    p.pagers[1].service = FaultService::Ignore;
    p.world.hosts[1].driver.async_events();
    let other = p.world.connect(QPT_RC, PAGE, |_| {});
    p.post(wr::WR_WRITE, (0, 100), 100);
    p.run_to_fault(1);
    let [mut cq, _] = other.cq;
    let [mut qp, _] = other.qp;
    let write = Send {
        opcode: wr::WR_WRITE,
        sges: &[(other.mr[0].va, 100, other.mr[0].key)],
        remote_addr: other.mr[1].va,
        rkey: other.mr[1].key,
        ..Send::default()
    };
    p.world.hosts[0].driver.post_send(&mut qp, &write);
    p.world.run_for(2 * MS);
    assert!(
        p.world.completions(0, &mut cq).is_empty(),
        "the input is stopped"
    );
    p.world.run_for(4 * MS);
    expect_cqe(&mut p.world, 0, &mut cq, cqe::SUCCESS);
    assert_eq!(counter(&mut p.world, 1, Counter::stall_timeouts), 1);
    let events = p.world.hosts[1].driver.async_events();
    assert!(events.contains(&(event::STALL_TIMEOUT, qpn)), "{events:?}");
}

/// A queue pair that has stalled the ingress of all must not do so again for nine times as long.
#[test]
fn others_are_stopped_for_a_tenth_of_the_time() {
    const LIMIT: u64 = 5 * MS;
    let world = World::with_config(2, 1, |config| config.stall_timeout = Nanos(LIMIT));
    let mut p = Paged::new(world, QPT_UC, 1 << 20, 64);
    let qpn = p.pair.qp[1].qpn;
    set_policy(&mut p.world, 1, qpn, FAULT_POLICY_STALL);
    p.pagers[0].map_page(&mut p.world, 0, VA / PAGE, false);
    p.pagers[1].service = FaultService::Ignore;
    let (mut stopped, mut others, mut parts) = (0, 0, 0);
    while parts < 500 {
        p.post(wr::WR_WRITE, (0, 8), 0);
        p.world.run_for(LIMIT / 5);
        p.world.completions(0, &mut p.pair.cq[0]);
        p.world.with_nic(1, |nic| {
            stopped += u32::from(nic.is_input_stopped());
            others += u32::from(nic.is_stalled());
        });
        parts += 1;
    }
    assert!(stopped > parts * 9 / 10, "{stopped} of {parts}");
    assert!((30..=60).contains(&others), "{others} of {parts}");
}

/// The state of a fault in the device does not grow with the packets that meet it.
#[test]
fn a_requester_that_repeats_waits_once() {
    let mut p = Paged::new(World::new(2, 1), QPT_UC, 1 << 20, 64);
    let qpn = p.pair.qp[1].qpn;
    set_policy(&mut p.world, 1, qpn, FAULT_POLICY_DROP);
    p.pagers[1].service = FaultService::Ignore;
    p.pagers[0].map_page(&mut p.world, 0, VA / PAGE, false);
    for _ in 0..100 {
        p.post(wr::WR_WRITE, (0, 100), 100);
        p.world.run_for(10 * US);
        p.expect(0, cqe::SUCCESS);
        p.pagers[1].collect(&mut p.world);
    }
    assert_eq!(counter(&mut p.world, 1, Counter::page_fault_drops), 100);
    let [record] = p.pagers[1].records[..] else {
        panic!("{} records", p.pagers[1].records.len());
    };
    let waited = p.pagers[1].resume(&mut p.world, record.token.get(), Status::Ok);
    assert_eq!(waited.unwrap(), 1);
}

/// Replies are queued behind a READ that waits for its page; a peer that requests another page repeatedly gets the
/// last reply only.
#[test]
fn replies_behind_a_waiting_read_do_not_accumulate() {
    // Packets made by hand are from an unknown peer.
    let world = World::with_config(2, 1, |config| config.ready = ReadyMode::Always);
    let mut p = Paged::new(world, QPT_RC, 1 << 20, 128);
    p.pagers[1].service = FaultService::Ignore;
    let (start, _, rkey) = p.pagers[1].sge(0, 0, 0);
    for page in 0..20 {
        p.pagers[1].map_page(&mut p.world, 0, start / PAGE + page, false);
    }
    let qpn = p.pair.qp[1].qpn;
    let psn = Psn::new(p.world.hosts[1].driver.query_qp(qpn).unwrap().rq_psn.get());
    // Host 0 is silent itself: its packets are made by hand.
    p.world.lose(|from, _| from == 1);
    p.world.start_trace();
    let ask = |p: &mut Paged, opcode, psn, offset, len, payload: &[u8]| {
        let (from, to) = (&p.world.hosts[0], &p.world.hosts[1]);
        let ip = Ip::from_gids(from.gid, to.gid, 0, 0, 64);
        let mut header = RoceHeader::new(to.mac, from.mac, ip, Bth::new(opcode, qpn, psn));
        let addr = start + offset;
        header.reth = Some(Reth { addr, rkey, len });
        p.world.inject(1, packet(&header, payload));
        p.world.run_for(100 * US);
        p.pagers[1].collect(&mut p.world);
        p.pagers[1].records.last().unwrap().token.get()
    };
    const READ: u32 = 200_000;
    let read = ask(&mut p, Opcode::RcReadRequest, psn, 0, READ, &[]);
    let next = psn.add(READ.div_ceil(1024));
    for _ in 0..50 {
        let token = ask(&mut p, Opcode::RcWriteOnly, next, 500_000, 8, &[1; 8]);
        assert_ne!(token, read);
        p.pagers[1].resume(&mut p.world, token, Status::Ok).unwrap();
    }
    for page in 20..50 {
        p.pagers[1].map_page(&mut p.world, 0, start / PAGE + page, false);
    }
    p.pagers[1].resume(&mut p.world, read, Status::Ok).unwrap();
    p.world.run_for(MS);
    let trace = p.world.take_trace();
    let count = |opcode| trace.iter().filter(|(_, h)| h.bth.opcode == opcode).count();
    assert_eq!(count(Opcode::RcReadResponseLast), 1);
    assert_eq!((count(Opcode::RcAcknowledge), count(Opcode::Ready)), (1, 1));
}

/// Many queue pairs to one host, each with a request for a page of its own.
struct Crowd {
    world: World,
    pager: HostPager,
    qps: Vec<(Cq, Qp)>,
    source: faultline_simulation::Mr,
}

impl Crowd {
    fn new(mut world: World, count: usize, log_depth: u8) -> Self {
        let mut pager = HostPager::new(&mut world, 1, 256, log_depth);
        pager.register(&mut world, VA, 1 << 20);
        let source = world.hosts[0].mr(PAGE).unwrap();
        let mut qps = Vec::new();
        for _ in 0..count {
            let Pair { cq, qp, .. } = world.connect(QPT_RC, 64, |_| {});
            let ([cq, _], [qp, _]) = (cq, qp);
            qps.push((cq, qp));
        }
        Self {
            world,
            pager,
            qps,
            source,
        }
    }

    fn write(&mut self, n: usize, page: u64) {
        let (at, _, rkey) = self.pager.sge(0, page * PAGE + 8 * n as u64, 8);
        let write = Send {
            opcode: wr::WR_WRITE,
            sges: &[(self.source.va, 8, self.source.key)],
            remote_addr: at,
            rkey,
            ..Send::default()
        };
        self.world.hosts[0]
            .driver
            .post_send(&mut self.qps[n].1, &write);
    }

    fn statuses(&mut self) -> Vec<u8> {
        let world = &mut self.world;
        self.qps
            .iter_mut()
            .flat_map(|(cq, _)| world.completions(0, cq))
            .map(|cqe| cqe.status)
            .collect()
    }
}

#[test]
fn a_full_fault_queue_delays_and_loses_nothing() {
    let mut c = Crowd::new(World::new(2, 1), 100, 2);
    for n in 0..100 {
        c.write(n, n as u64);
    }
    pager::run(&mut c.world, &mut [&mut c.pager]);
    assert_eq!(c.statuses(), vec![cqe::SUCCESS; 100]);
    assert!(counter(&mut c.world, 1, Counter::page_fault_overflow) > 0);
    assert_eq!(counter(&mut c.world, 1, Counter::page_faults), 100);
    assert_eq!(counter(&mut c.world, 0, Counter::local_ack_timeout_err), 0);
}

/// The requester's side has no RNR NAK to fall back on: it waits for room.
#[test]
fn a_full_fault_queue_delays_requesters_too() {
    let mut world = World::new(2, 1);
    let mut pager = HostPager::new(&mut world, 0, 256, 1);
    pager.register(&mut world, VA, 1 << 20);
    let mut pairs: Vec<Pair> = (0..40).map(|_| world.connect(QPT_RC, 64, |_| {})).collect();
    for (n, pair) in pairs.iter_mut().enumerate() {
        let write = Send {
            opcode: wr::WR_WRITE,
            sges: &[pager.sge(0, n as u64 * PAGE, 8)],
            remote_addr: pair.mr[1].va,
            rkey: pair.mr[1].key,
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut pair.qp[0], &write);
    }
    pager::run(&mut world, &mut [&mut pager]);
    for pair in &mut pairs {
        expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
    }
    assert!(counter(&mut world, 0, Counter::page_fault_overflow) > 0);
}

#[test]
fn misses_on_one_page_are_one_fault() {
    let mut c = Crowd::new(World::new(2, 1), 64, 6);
    for n in 0..64 {
        c.write(n, 3);
    }
    pager::run(&mut c.world, &mut [&mut c.pager]);
    assert_eq!(c.statuses(), vec![cqe::SUCCESS; 64]);
    assert_eq!(c.pager.records.len(), 1);
    assert!(counter(&mut c.world, 1, Counter::page_faults_joined) >= 63);
    // No requester got a long RNR timer, nor repeated its request often.
    assert!(counter(&mut c.world, 1, Counter::page_fault_rnr) <= 3 * 64);
}

#[test]
fn one_faulting_queue_pair_does_not_slow_a_hundred_others() {
    let time = |faulting: bool| {
        let mut c = Crowd::new(World::new(2, 1), 101, 6);
        c.pager.delay = 20 * MS;
        for page in 0..100 {
            c.pager.map_page(&mut c.world, 0, VA / PAGE + page, true);
        }
        let start = c.world.now();
        if faulting {
            c.write(100, 200);
        }
        for _ in 0..5 {
            for n in 0..100 {
                c.write(n, n as u64);
            }
        }
        let mut done = 0;
        while done < 500 {
            c.world.run_for(US);
            done += c
                .qps
                .iter_mut()
                .take(100)
                .map(|(cq, _)| c.world.completions(0, cq).len())
                .sum::<usize>();
        }
        let took = c.world.now() - start;
        pager::run(&mut c.world, &mut [&mut c.pager]);
        (took, c.statuses().len())
    };
    let ((alone, none), (beside, one)) = (time(false), time(true));
    assert_eq!((none, one), (0, 1));
    assert!(
        beside <= alone + alone / 20,
        "{beside} ns beside {alone} ns"
    );
}

#[test]
fn an_error_answer_ends_only_its_request() {
    // (opcode, host whose pages don't come, status there, receive's status)
    let cases = [
        (wr::WR_WRITE, 1, cqe::REM_ACCESS_ERR, None),
        (wr::WR_READ, 1, cqe::REM_ACCESS_ERR, None),
        (wr::WR_FETCH_ADD, 1, cqe::REM_ACCESS_ERR, None),
        (wr::WR_SEND, 1, cqe::REM_OP_ERR, Some(cqe::LOC_PROT_ERR)),
        (wr::WR_WRITE, 0, cqe::LOC_PROT_ERR, None),
        (wr::WR_SEND, 0, cqe::LOC_PROT_ERR, None),
        (wr::WR_READ, 0, cqe::LOC_PROT_ERR, None),
        (wr::WR_FETCH_ADD, 0, cqe::LOC_PROT_ERR, None),
    ];
    for (opcode, host, status, receive) in cases {
        for policy in [FAULT_POLICY_RNR, FAULT_POLICY_DROP, FAULT_POLICY_STALL] {
            let mut p = Paged::new(World::new(2, 1), QPT_RC, 1 << 20, 64);
            let qpn = p.pair.qp[1].qpn;
            set_policy(&mut p.world, 1, qpn, policy);
            p.pagers[host].service = FaultService::Fail;
            if receive.is_some() {
                p.post_recv(4, 4096, 8);
            }
            // A good request goes before it.
            let other = p.world.connect(QPT_RC, PAGE, |_| {});
            let remote = if opcode == wr::WR_FETCH_ADD {
                8192 - 0x123
            } else {
                4096
            };
            p.post(opcode, (0, 8), remote);
            p.run();
            p.expect(0, status);
            if let Some(status) = receive {
                p.expect(1, status);
            }
            assert_eq!(counter(&mut p.world, host, Counter::page_faults_failed), 1);
            // The region and its key are as they were: another connection uses it once the pages come.
            p.pagers[host].service = FaultService::Repair;
            let ([mut cq, _], [mut qp, _]) = (other.cq, other.qp);
            let remote = p.pagers[1].sge(0, 4096, 0);
            let again = Send {
                opcode: wr::WR_WRITE,
                sges: &[p.pagers[0].sge(0, 0, 8)],
                remote_addr: remote.0,
                rkey: remote.2,
                ..Send::default()
            };
            p.world.hosts[0].driver.post_send(&mut qp, &again);
            p.run();
            expect_cqe(&mut p.world, 0, &mut cq, cqe::SUCCESS);
        }
    }
}

#[test]
fn a_driver_that_never_answers_has_a_bounded_cost() {
    for (host, status) in [(1, cqe::REM_ACCESS_ERR), (0, cqe::LOC_PROT_ERR)] {
        let config = |config: &mut NicConfig| config.fault_timeout = Nanos::from_millis(50);
        let world = World::with_config(2, 1, config);
        let mut p = Paged::new(world, QPT_RC, 1 << 20, 64);
        p.pagers[host].service = FaultService::Ignore;
        let mut other = p.world.connect(QPT_RC, PAGE, |_| {});
        p.post(wr::WR_WRITE, (0, 8), 4096);
        let start = p.world.now();
        let mut done = Vec::new();
        while done.is_empty() {
            p.pass();
            done = p.world.completions(0, &mut p.pair.cq[0]);
        }
        assert_eq!(done[0].status, status);
        assert!(p.world.now() - start < 60 * MS);
        assert_eq!(counter(&mut p.world, host, Counter::page_fault_timeouts), 1);
        let write = Send {
            opcode: wr::WR_WRITE,
            sges: &[(other.mr[0].va, 8, other.mr[0].key)],
            remote_addr: other.mr[1].va,
            rkey: other.mr[1].key,
            ..Send::default()
        };
        p.world.hosts[0].driver.post_send(&mut other.qp[0], &write);
        p.world.run();
        expect_cqe(&mut p.world, 0, &mut other.cq[0], cqe::SUCCESS);
        // Too late.
        let token = p.pagers[host].records[0].token.get();
        let late = p.pagers[host].resume(&mut p.world, token, Status::Ok);
        assert_eq!(late, Err(Error::Refused(Status::BadToken)));
    }
    // Nor does a queue that is never read hold anyone for ever.
    let config = |config: &mut NicConfig| config.fault_timeout = Nanos::from_millis(50);
    let mut world = World::with_config(2, 1, config);
    let mut pager = HostPager::new(&mut world, 0, 64, 1);
    pager.register(&mut world, VA, 1 << 20);
    let mut pairs: Vec<Pair> = (0..8).map(|_| world.connect(QPT_RC, 64, |_| {})).collect();
    for (n, pair) in pairs.iter_mut().enumerate() {
        let write = Send {
            opcode: wr::WR_WRITE,
            sges: &[pager.sge(0, n as u64 * PAGE, 8)],
            remote_addr: pair.mr[1].va,
            rkey: pair.mr[1].key,
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut pair.qp[0], &write);
    }
    world.run();
    for pair in &mut pairs {
        expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::LOC_PROT_ERR);
    }
}

#[test]
fn tokens_count_once_and_maps_stay_inside() {
    let mut p = Paged::new(World::new(2, 1), QPT_RC, 1 << 20, 64);
    let refused = Err(Error::Refused(Status::BadToken));
    for token in [0, 1, u64::MAX] {
        assert_eq!(p.pagers[1].resume(&mut p.world, token, Status::Ok), refused);
    }
    p.post(wr::WR_WRITE, (0, 8), 4096);
    p.run();
    p.expect(0, cqe::SUCCESS);
    let token = p.pagers[1].records[0].token.get();
    assert_eq!(p.pagers[1].resume(&mut p.world, token, Status::Ok), refused);
    assert_eq!(
        p.pagers[1].resume(&mut p.world, token, Status::BadRange),
        refused
    );
    // A resume without the page: the fault comes again, with another token.
    p.pagers[1].evict_all(&mut p.world, 0);
    p.pagers[1].service = FaultService::Ignore;
    p.post(wr::WR_WRITE, (0, 8), 4096);
    p.world.run_for(MS);
    p.pagers[1].collect(&mut p.world);
    let tokens = |p: &Paged| {
        p.pagers[1]
            .records
            .iter()
            .map(|r| r.token.get())
            .collect::<Vec<_>>()
    };
    let seen = tokens(&p);
    p.pagers[1]
        .resume(&mut p.world, seen[1], Status::Ok)
        .unwrap();
    p.world.run_for(MS);
    p.pagers[1].collect(&mut p.world);
    assert_eq!(tokens(&p).len(), 3);
    assert!(tokens(&p)[2] > seen[1]);
    p.pagers[1].service = FaultService::Repair;
    p.run();
    p.expect(0, cqe::SUCCESS);
}

#[test]
fn a_region_may_go_while_its_pages_are_awaited() {
    for opcode in [wr::WR_WRITE, wr::WR_READ, wr::WR_SEND, wr::WR_FETCH_ADD] {
        for host in [0, 1] {
            for evict_first in [false, true] {
                let mut p = Paged::new(World::new(2, 1), QPT_RC, 1 << 20, 64);
                p.pagers[host].delay = 10 * MS;
                p.post_recv(1, 4096, 8);
                let remote = if opcode == wr::WR_FETCH_ADD {
                    8192 - 0x123
                } else {
                    4096
                };
                p.post(opcode, (0, 8), remote);
                p.run_to_fault(host);
                if evict_first {
                    p.pagers[host].evict_all(&mut p.world, 0);
                }
                p.pagers[host].deregister(&mut p.world, 0);
                p.run();
                let done = p.world.completions(0, &mut p.pair.cq[0]);
                assert_eq!(done.len(), 1);
                let expected = match (host, opcode) {
                    (0, _) => cqe::LOC_PROT_ERR,
                    (_, wr::WR_SEND) => cqe::REM_OP_ERR,
                    _ => cqe::REM_ACCESS_ERR,
                };
                assert_eq!(done[0].status, expected, "opcode {opcode} host {host}");
                // The answer to a fault of a destroyed region is refused, and has no effect.
                let token = p.pagers[host].records[0].token.get();
                let late = p.pagers[host].resume(&mut p.world, token, Status::Ok);
                assert_eq!(late, Err(Error::Refused(Status::BadToken)));
            }
        }
    }
}

/// The view of the peer when a queue pair ends during a wait, and the remaining state.
#[test]
fn queue_pairs_may_go_while_they_wait() {
    for state in [QPS_RESET, QPS_ERR] {
        for host in [0, 1] {
            let mut p = Paged::new(World::new(2, 1), QPT_RC, 1 << 20, 64);
            p.pagers[host].delay = 5 * MS;
            p.post(wr::WR_WRITE, (0, 8), 4096);
            p.run_to_fault(host);
            let qpn = p.pair.qp[host].qpn;
            p.world.hosts[host].driver.set_state(qpn, state).unwrap();
            p.run();
            assert_eq!(counter(&mut p.world, host, Counter::page_faults_resumed), 1);
            let before = (host, state);
            let done = p.world.completions(0, &mut p.pair.cq[0]);
            match before {
                (0, QPS_RESET) => assert!(done.is_empty()),
                (0, _) => assert_eq!(done[0].status, cqe::WR_FLUSH_ERR),
                _ => assert_eq!(done[0].status, cqe::RETRY_EXC_ERR),
            }
        }
    }
}

/// Packets that the requester sends for some WRITEs on absent pages, and how long that takes.
fn cost(pitfalls: Pitfalls, opcode: u8, host: usize) -> (u64, u64) {
    let world = World::with_config(2, 1, |config| {
        config.pitfalls = pitfalls;
        if pitfalls != Pitfalls::default() {
            config.ready = ReadyMode::Never;
        }
    });
    let mut p = Paged::new(world, QPT_RC, 1 << 20, 64);
    p.pagers[host].delay = 4 * MS;
    let before = counter(&mut p.world, 0, Counter::tx_roce_packets);
    p.post(opcode, (0, 8), 4096);
    // The second is posted while the first one waits.
    p.run_to_fault(host);
    for _ in 0..200 {
        p.pass();
    }
    p.post(opcode, (16, 8), 4096 + 16);
    let took = p.time(2);
    let sent = counter(&mut p.world, 0, Counter::tx_roce_packets) - before;
    (sent, took)
}

#[test]
fn requests_are_dammed_only_on_request() {
    let damming = Pitfalls {
        damming: true,
        ..Pitfalls::default()
    };
    let (_, healthy) = cost(Pitfalls::default(), wr::WR_WRITE, 1);
    let (_, dammed) = cost(damming, wr::WR_WRITE, 1);
    // Repair takes 4 ms. The transport's timeout is 67 ms.
    assert!(healthy < 5 * MS, "{healthy} ns");
    assert!(dammed > 60 * MS, "{dammed} ns");
}

#[test]
fn floods_happen_only_on_request() {
    let flood = Pitfalls {
        flood: true,
        ..Pitfalls::default()
    };
    let (healthy, _) = cost(Pitfalls::default(), wr::WR_READ, 0);
    let (flooding, _) = cost(flood, wr::WR_READ, 0);
    assert!(healthy <= 4, "{healthy} packets");
    assert!(flooding > 50, "{flooding} packets");
}

/// Retries are paced: without a notice too, their number grows with the logarithm of the time.
#[test]
fn retries_are_paced() {
    let world = World::with_config(2, 1, |config| config.ready = ReadyMode::Never);
    let mut p = Paged::new(world, QPT_RC, 1 << 20, 64);
    p.pagers[1].delay = 100 * MS;
    p.post(wr::WR_WRITE, (0, 8), 4096);
    p.run();
    p.expect(0, cqe::SUCCESS);
    let naks = counter(&mut p.world, 1, Counter::page_fault_rnr);
    assert!((2..=14).contains(&naks), "{naks} RNR NAKs in 100 ms");
}

#[test]
fn a_repaired_page_is_used_at_once() {
    let mut p = Paged::new(World::new(2, 1), QPT_RC, 1 << 20, 64);
    p.pagers[1].delay = 3 * MS;
    p.pagers[0].map_page(&mut p.world, 0, (VA + 0x123) / PAGE, false);
    p.post(wr::WR_WRITE, (0, 8), 4096);
    let took = p.time(1);
    assert_eq!(counter(&mut p.world, 1, Counter::ready_notices), 1);
    // The RNR timer would have had the better part of a millisecond to go.
    assert!(took < 3 * MS + 50 * US, "{took} ns");
}

#[test]
fn an_adapter_without_paging_is_reported() {
    let mut world = World::with_config(1, 1, |config| config.on_demand = false);
    let host = &mut world.hosts[0];
    let refused = host
        .driver
        .reg_mr(host.pd, VA, PAGE, ACCESS_LOCAL_WRITE | ACCESS_ON_DEMAND);
    assert!(matches!(refused, Err(Error::Refused(Status::NotSupported))));
    assert!(
        host.driver
            .reg_mr(host.pd, VA, PAGE, ACCESS_LOCAL_WRITE)
            .is_ok()
    );
}

#[test]
fn look_ups_take_the_time_that_they_are_said_to_take() {
    let time = |lookup: u64| {
        let world = World::with_config(2, 1, |config| config.lookup = Nanos(lookup));
        let mut p = Paged::new(world, QPT_RC, 1 << 20, 64);
        for page in 0..17 {
            for (host, pager) in p.pagers.iter_mut().enumerate() {
                let first = (VA + 0x123 + host as u64 * 0x1000_0000) / PAGE;
                pager.map_page(&mut p.world, 0, first + page, true);
            }
        }
        p.post(wr::WR_WRITE, (0, 60_000), 0);
        p.time(1)
    };
    let (fast, slow) = (time(0), time(100_000));
    // 15 pages on each side, a look-up each at least; one side looks up while the other sends.
    assert!(slow > fast + 14 * 100_000, "{slow} ns after {fast} ns");
}

/// The answers to faults that a host's NIC has reported, with the time of each report.
fn answers(world: &World, host: usize) -> Vec<(u64, Diagnostic)> {
    let all = world.take_diagnostics(host).into_iter();
    let is_answer = |diagnostic: &Diagnostic| {
        matches!(
            diagnostic,
            Diagnostic::FaultResumed { .. } | Diagnostic::FaultFailed { .. }
        )
    };
    all.filter(|(_, diagnostic)| is_answer(diagnostic))
        .map(|(at, diagnostic)| (at.0, diagnostic))
        .collect()
}

#[test]
fn an_answer_is_reported_with_the_times_of_the_driver() {
    let mut paged = Paged::new(World::new(2, 1), QPT_RC, 4 * PAGE, 64);
    paged.pagers[1].service = FaultService::Ignore;
    paged.post(wr::WR_WRITE, (0, 8), 0);
    paged.run_to_fault(1);
    let token = paged.pagers[1].records[0].token;
    let raised = paged.world.now();
    let resume = |status: Status| TqCmd {
        opcode: tq::RESUME,
        token,
        resume_status: (status as u16).into(),
        wait_ns: 11.into(),
        map_ns: u32::MAX.into(),
        post_ns: 13.into(),
        ..TqCmd::default()
    };
    paged.world.run_for(5 * US);
    assert_eq!(answers(&paged.world, 1), []);
    let driver = &mut paged.world.hosts[1].driver;
    driver.translate(&resume(Status::Ok)).unwrap();
    let found = answers(&paged.world, 1);
    let [
        (
            at,
            Diagnostic::FaultResumed {
                token: resumed,
                raised: since,
                waiters,
                record_ns: 0,
                driver,
            },
        ),
    ] = found[..]
    else {
        panic!("{found:?}");
    };
    assert_eq!((resumed, waiters), (token.get(), 1));
    assert!(since.0 <= raised && at >= raised + 5 * US, "{found:?}");
    let times = DriverTimes {
        wait_ns: 11,
        map_ns: u32::MAX,
        post_ns: 13,
    };
    assert_eq!(driver, times);
    // The page was not mapped, so it is asked for again.
    paged.pagers[1].records.clear();
    paged.run_to_fault(1);
    let token = paged.pagers[1].records[0].token;
    let failed = TqCmd {
        token,
        ..resume(Status::BadRange)
    };
    paged.world.hosts[1].driver.translate(&failed).unwrap();
    let found = answers(&paged.world, 1);
    assert!(
        matches!(found[..], [(_, Diagnostic::FaultFailed { token: failed, .. })] if failed == token.get()),
        "{found:?}"
    );
}
