//! Operations of an operator on a NIC, as the driver and the peer see them.

use faultline_abi::admin::Counter;
use faultline_abi::event;
use faultline_abi::qp::*;
use faultline_abi::{Status, cqe, wqe as wr};
use faultline_nic::{Diagnostic, Nanos, TURN_WORK};
use faultline_simulation::{Bus, Send};
use faultline_simulator::{HostPager, Pair, World, expect_cqe, pager};

use crate::common::counter;

const VA: u64 = 0x7f12_3456_0000;
const PAGE: u64 = 4096;
const US: u64 = 1_000;
const MS: u64 = 1_000_000;

#[test]
fn the_driver_reads_the_speed_of_the_link() {
    let mut world = World::new(1, 1);
    let speed = |world: &mut World| {
        let bus = &mut world.hosts[0].driver.bus;
        bus.read_register(faultline_abi::regs::LINK_SPEED)
    };
    assert_eq!(speed(&mut world), 100_000);
    world.with_nic(0, |nic| nic.set_link_speed(25_000));
    assert_eq!(speed(&mut world), 25_000);
    world.operate(0, |nic, now, _| nic.reset(now));
    assert_eq!(speed(&mut world), 25_000, "after a reset");
}

/// Host 0 writes to pages of host 1, which are absent in the beginning.
struct Faults {
    world: World,
    pager: HostPager,
    pair: Pair,
}

impl Faults {
    fn new() -> Self {
        Self::with(6, 64)
    }

    fn with(log_depth: u8, max_faults: u32) -> Self {
        let mut world = World::with_config(2, 1, |config| {
            config.fault_timeout = Nanos::from_millis(50);
            config.limits.max_faults = max_faults;
        });
        let mut pager = HostPager::new(&mut world, 1, 64, log_depth);
        pager.register(&mut world, VA, 64 * PAGE);
        pager.maps_again = true;
        let pair = world.connect(QPT_RC, 4096, |path| path.rnr_retry = 7);
        for host in 0..2 {
            world.hosts[host].driver.async_events();
        }
        Self { world, pager, pair }
    }

    fn key(&self) -> u32 {
        self.pager.regions[0].key
    }

    /// Writes 8 bytes to this page.
    fn write(&mut self, page: u64) {
        let from = self.pair.mr[0];
        let write = Send {
            opcode: wr::WR_WRITE,
            sges: &[(from.va, 8, from.key)],
            remote_addr: VA + page * PAGE,
            rkey: self.key(),
            ..Send::default()
        };
        let driver = &mut self.world.hosts[0].driver;
        driver.post_send(&mut self.pair.qp[0], &write);
    }

    fn run(&mut self) {
        let (world, pager) = (&mut self.world, &mut self.pager);
        pager::run(world, &mut [pager]);
    }

    /// Pages of the records since the last call.
    fn pages(&mut self) -> Vec<u64> {
        let records = std::mem::take(&mut self.pager.records);
        let page = |record: &event::Eqe| (record.va.get() - VA) / PAGE;
        records.iter().map(page).collect()
    }

    #[track_caller]
    fn expect(&mut self, status: u8) {
        expect_cqe(&mut self.world, 0, &mut self.pair.cq[0], status);
    }
}

/// The driver is asked again for pages that it has mapped, and the data gets to where it belongs.
#[test]
fn evicted_pages_fault_again() {
    let mut f = Faults::new();
    for page in 0..4 {
        f.write(page);
        f.run();
        f.expect(cqe::SUCCESS);
    }
    assert_eq!(f.pages(), [0, 1, 2, 3]);
    let key = f.key();
    let evict = |f: &mut Faults, va, len| f.world.operate(1, |nic, _, _| nic.evict(key, va, len));
    assert_eq!(evict(&mut f, VA + PAGE, 2 * PAGE), Ok(2));
    for page in 0..4 {
        f.write(page);
        f.run();
        f.expect(cqe::SUCCESS);
    }
    assert_eq!(f.pages(), [1, 2]);
    // All of it, and more.
    assert_eq!(evict(&mut f, VA, u64::MAX - VA), Ok(4));
    assert_eq!(evict(&mut f, VA, u64::MAX - VA), Ok(0));
    assert_eq!(evict(&mut f, VA, 0), Err(Status::BadRange));
    let pinned = f.pair.mr[1].key;
    f.world.operate(1, |nic, _, _| {
        assert_eq!(nic.evict(pinned, VA, PAGE), Err(Status::NotSupported));
        assert_eq!(nic.evict(key + 1, VA, PAGE), Err(Status::BadMkey));
    });
}

/// The work does not grow with the number of pages.
#[test]
fn an_eviction_is_short() {
    const LEN: u64 = 1 << 30;
    let mut world = World::new(1, 1);
    let host = &mut world.hosts[0];
    let access = ACCESS_ON_DEMAND | ACCESS_LOCAL_WRITE;
    let mr = host.driver.reg_large(host.pd, VA & !(LEN - 1), LEN, access);
    let mr = mr.unwrap();
    let (removed, work) = world.operate(0, |nic, _, _| {
        let before = nic.work();
        let removed = nic.evict(mr.key, mr.va, mr.len);
        (removed, nic.work() - before)
    });
    assert_eq!(removed, Ok(LEN >> 21));
    assert!(work < TURN_WORK / 8, "{work}");
}

#[test]
fn a_held_fault_queue_shows_no_records() {
    let mut f = Faults::new();
    let hold = |f: &mut Faults, held| {
        f.world
            .operate(1, |nic, now, mem| nic.set_fault_queue_held(now, mem, held));
    };
    hold(&mut f, true);
    let key = f.key();
    for page in [9, 5, 7] {
        f.world.operate(1, |nic, now, mem| {
            nic.request_pages(now, mem, key, VA + page * PAGE, 8)
                .unwrap();
        });
    }
    f.world.run_for(10 * MS);
    f.pager.collect(&mut f.world);
    assert_eq!(f.pages(), [0_u64; 0]);
    assert_eq!(f.world.with_nic(1, |nic| nic.faults(10).len()), 3);
    hold(&mut f, false);
    f.pager.collect(&mut f.world);
    assert_eq!(f.pages(), [9, 5, 7]);
    f.run();
    assert_eq!(f.world.with_nic(1, |nic| nic.faults(10).len()), 0);
    // A record whose fault has ended is not written.
    hold(&mut f, true);
    f.write(11);
    f.run();
    f.expect(cqe::REM_ACCESS_ERR);
    hold(&mut f, false);
    f.run();
    assert_eq!(f.pages(), [0_u64; 0]);
}

/// More records are released than the queue has room for: the driver gets them as it reads, and new ones behind them.
#[test]
fn held_records_come_as_there_is_room() {
    let mut f = Faults::with(2, 64);
    let key = f.key();
    let request = |f: &mut Faults, page| {
        f.world.operate(1, |nic, now, mem| {
            nic.request_pages(now, mem, key, VA + page * PAGE, 8)
        })
    };
    f.world
        .operate(1, |nic, now, mem| nic.set_fault_queue_held(now, mem, true));
    for page in 0..11 {
        assert_eq!(request(&mut f, page), Ok(()));
    }
    f.world
        .operate(1, |nic, now, mem| nic.set_fault_queue_held(now, mem, false));
    // It would overtake those that wait.
    assert_eq!(request(&mut f, 20), Err(Status::NoResources));
    f.run();
    assert_eq!(f.pages(), (0..11).collect::<Vec<_>>());
    assert_eq!(request(&mut f, 20), Ok(()));
    f.run();
    assert_eq!(f.pages(), [20]);
}

/// Peers are told to send again later; requesters wait, and are called when there is room.
#[test]
fn a_full_fault_queue_has_no_room() {
    let mut f = Faults::new();
    f.world
        .operate(1, |nic, now, mem| nic.set_fault_queue_full(now, mem, true));
    f.write(3);
    let from = f.pager.sge(0, 40 * PAGE, 8);
    let to = f.pair.mr[0];
    let write = Send {
        opcode: wr::WR_WRITE,
        sges: &[from],
        remote_addr: to.va,
        rkey: to.key,
        ..Send::default()
    };
    let driver = &mut f.world.hosts[1].driver;
    driver.post_send(&mut f.pair.qp[1], &write);
    f.world.run_for(5 * MS);
    assert!(counter(&mut f.world, 1, Counter::page_fault_overflow) >= 2);
    assert!(counter(&mut f.world, 1, Counter::rnr_nak_sent) >= 1);
    f.run_until_now();
    assert_eq!(f.pages(), [0_u64; 0]);
    f.world
        .operate(1, |nic, now, mem| nic.set_fault_queue_full(now, mem, false));
    f.run();
    f.expect(cqe::SUCCESS);
    expect_cqe(&mut f.world, 1, &mut f.pair.cq[1], cqe::SUCCESS);
    let mut pages = f.pages();
    pages.sort_unstable();
    assert_eq!(pages, [3, 40]);
    assert_eq!(counter(&mut f.world, 1, Counter::page_fault_timeouts), 0);
}

impl Faults {
    /// The driver reads what is there.
    fn run_until_now(&mut self) {
        self.pager.collect(&mut self.world);
    }
}

/// Switches of the fault queue belong to the operator.
#[test]
fn a_reset_leaves_the_switches_and_drops_the_records() {
    let f = Faults::new();
    let key = f.key();
    f.world.operate(1, |nic, now, mem| {
        nic.set_fault_queue_held(now, mem, true);
        nic.request_pages(now, mem, key, VA, 8).unwrap();
        nic.set_lookup(Nanos(77));
        nic.pause_ingress(now, Nanos::from_millis(1));
        assert!(nic.is_stalled());
        nic.reset(now);
        assert!(!nic.is_input_stopped());
        assert_eq!(nic.config().lookup, Nanos(77));
        assert_eq!(nic.next_deadline(), None);
    });
    let mut f = Faults { ..f };
    f.run();
    assert_eq!(f.pages(), [0_u64; 0]);
}

#[test]
fn a_paused_ingress_takes_no_frames_until_the_end() {
    let mut f = Faults::new();
    let pause = |f: &mut Faults, ms| {
        f.world.operate(1, |nic, now, _| {
            nic.pause_ingress(now, Nanos::from_millis(ms))
        });
    };
    let stalled = |f: &Faults| f.world.with_nic(1, |nic| nic.is_stalled());
    f.world.post_write(&mut f.pair, 8);
    // On the wire already: it waits in front of the NIC.
    pause(&mut f, 2);
    assert!(stalled(&f));
    f.world.run_for(MS);
    // A storm: the pause is extended before its end. A shorter one changes nothing.
    pause(&mut f, 3);
    pause(&mut f, 1);
    f.world.run_for(2 * MS);
    assert!(stalled(&f));
    assert_eq!(f.world.completions(0, &mut f.pair.cq[0]).len(), 0);
    f.world.run_for(MS + 100 * US);
    assert!(!stalled(&f));
    f.expect(cqe::SUCCESS);
    // It has no debt: the share of time that fault policy `stall` has is for guests.
    pause(&mut f, 1);
    assert!(stalled(&f));
    f.world.run();
    assert!(!stalled(&f));
}

#[test]
fn a_queue_pair_fails() {
    let mut f = Faults::new();
    let qpn = f.pair.qp[0].qpn;
    let mr = f.pair.mr[0];
    let driver = &mut f.world.hosts[0].driver;
    driver.post_recv(&mut f.pair.qp[0], 5, &[(mr.va, 64, mr.key)]);
    f.world.operate(0, |nic, now, mem| {
        assert_eq!(nic.fail_queue_pair(now, mem, qpn + 100), Err(Status::BadQp));
        assert_eq!(nic.fail_queue_pair(now, mem, qpn), Ok(()));
        assert_eq!(nic.fail_queue_pair(now, mem, qpn), Err(Status::WrongState));
    });
    f.world.run();
    let driver = &mut f.world.hosts[0].driver;
    assert_eq!(driver.async_events(), [(event::QP_FATAL, qpn)]);
    assert_eq!(driver.query_qp(qpn).unwrap().state, QPS_ERR);
    let cqe = expect_cqe(&mut f.world, 0, &mut f.pair.cq[0], cqe::WR_FLUSH_ERR);
    assert_eq!(cqe.wqe.get(), 5);
    // The peer finds out.
    let mr = f.pair.mr[1];
    let send = Send {
        opcode: wr::WR_SEND,
        sges: &[(mr.va, 8, mr.key)],
        ..Send::default()
    };
    let driver = &mut f.world.hosts[1].driver;
    driver.post_send(&mut f.pair.qp[1], &send);
    f.world.run();
    expect_cqe(&mut f.world, 1, &mut f.pair.cq[1], cqe::RETRY_EXC_ERR);
}

#[test]
fn a_completion_queue_overruns() {
    let mut f = Faults::new();
    let (qpn, cqn) = (f.pair.qp[0].qpn, f.pair.cq[0].cqn);
    f.world.operate(0, |nic, now, mem| {
        assert_eq!(nic.overrun_cq(now, mem, cqn + 100), Err(Status::BadCq));
        assert_eq!(nic.overrun_cq(now, mem, cqn), Ok(()));
        assert_eq!(nic.overrun_cq(now, mem, cqn), Err(Status::WrongState));
    });
    let events = |f: &mut Faults| f.world.hosts[0].driver.async_events();
    assert_eq!(events(&mut f), [(event::CQ_ERROR, cqn)]);
    f.world.post_write(&mut f.pair, 8);
    f.world.run();
    assert_eq!(f.world.completions(0, &mut f.pair.cq[0]).len(), 0);
    assert_eq!(events(&mut f), [(event::QP_FATAL, qpn)]);
}

#[test]
fn an_overrun_event_queue_stops_the_device() {
    let f = Faults::new();
    let eqn = f.world.hosts[0].eq.eqn;
    f.world.operate(0, |nic, now, mem| {
        assert_eq!(nic.overrun_eq(now, mem, eqn + 100), Err(Status::BadEq));
        assert!(nic.is_running());
        assert_eq!(nic.overrun_eq(now, mem, eqn), Ok(()));
        assert!(!nic.is_running());
        let all = std::iter::from_fn(|| nic.poll_diagnostic());
        let last = all.last().map(|(_, diagnostic)| diagnostic);
        let cause = faultline_abi::regs::EVENT_QUEUE;
        assert_eq!(last, Some(Diagnostic::Fatal { cause }));
    });
}

#[test]
fn pages_are_requested_for_no_packet() {
    let mut f = Faults::new();
    let key = f.key();
    let request = |f: &mut Faults, va, len| {
        f.world
            .operate(1, |nic, now, mem| nic.request_pages(now, mem, key, va, len))
    };
    assert_eq!(request(&mut f, VA + 3 * PAGE, 2 * PAGE), Ok(()));
    // Outstanding already.
    assert_eq!(request(&mut f, VA + 4 * PAGE, 8), Ok(()));
    let waits = |f: &Faults| f.world.with_nic(1, |nic| nic.object_counts().fault_waits);
    assert_eq!(waits(&f), 0);
    f.pager.collect(&mut f.world);
    let [record] = f.pager.records[..] else {
        panic!("{:?}", f.pager.records)
    };
    assert_eq!((record.object.get(), record.key.get()), (0, key));
    assert_eq!(
        (record.va.get(), record.bytes.get()),
        (VA + 3 * PAGE, 2 * PAGE as u32)
    );
    assert_eq!(record.fault_flags.get(), 0);
    // A packet joins it.
    f.write(4);
    f.run();
    f.expect(cqe::SUCCESS);
    f.pages();
    // A read has mapped the first one: a write to it may fault, but nothing else is left.
    assert_eq!(f.world.with_nic(1, |nic| nic.faults(10).len()), 0);
    for (va, len) in [
        (VA, 0),
        (VA - 1, 8),
        (VA + 63 * PAGE, PAGE + 1),
        (VA, u64::MAX),
    ] {
        assert_eq!(request(&mut f, va, len), Err(Status::BadRange));
    }
    let pinned = f.pair.mr[1];
    f.world.operate(1, |nic, now, mem| {
        let refused = nic.request_pages(now, mem, pinned.key, pinned.va, 8);
        assert_eq!(refused, Err(Status::NotSupported));
    });
    // Without an answer it ends at the time limit, as all faults do.
    f.pager.service = faultline_simulation::FaultService::Ignore;
    assert_eq!(request(&mut f, VA + 50 * PAGE, 8), Ok(()));
    f.run();
    assert_eq!(counter(&mut f.world, 1, Counter::page_fault_timeouts), 1);
}

#[test]
fn a_lookup_takes_the_configured_time() {
    let mut f = Faults::new();
    let time = |f: &mut Faults| {
        let begin = f.world.now();
        f.world.post_write(&mut f.pair, 8);
        while f.world.completions(0, &mut f.pair.cq[0]).is_empty() {
            assert!(f.world.step(u64::MAX));
        }
        f.world.now() - begin
    };
    f.world
        .operate(1, |nic, _, _| nic.set_lookup(Nanos::from_millis(2)));
    assert!(time(&mut f) >= 2 * MS);
    // In the translation cache now.
    assert!(time(&mut f) < MS);
}
