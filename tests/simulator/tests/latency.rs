//! The model of the latency of hardware: the NIC sends nothing for as long as doorbells, DMA reads and misses of its cache of queue
//! pairs take.

use faultline_abi::cqe;
use faultline_abi::qp::QPT_RC;
use faultline_abi::wqe as wr;
use faultline_nic::{Diagnostic, Latency, Nanos};
use faultline_simulation::Send;
use faultline_simulator::{HostPager, Pair, World, pager};

const MICROSECOND: u64 = 1000;

/// Hosts whose NICs have this latency, and `count` pairs of queue pairs.
fn pairs(latency: Latency, count: usize) -> (World, Vec<Pair>) {
    let mut world = World::with_config(2, 1, |config| config.latency = latency);
    let pairs = (0..count).map(|_| world.connect(QPT_RC, 4096, |_| {}));
    let pairs = pairs.collect();
    (world, pairs)
}

/// Virtual time of 8-byte WRITEs on these pairs, each after the completion of the one before.
fn time(latency: Latency, count: usize, order: &[usize]) -> u64 {
    let (mut world, mut pairs) = pairs(latency, count);
    let mut sum = 0;
    for pair in order {
        let pair = &mut pairs[*pair];
        let before = world.now();
        world.post_write(pair, 8);
        let done = loop {
            if let Some(done) = world.completions(0, &mut pair.cq[0]).pop() {
                break done;
            }
            assert!(world.step(u64::MAX), "the WRITE never completes");
        };
        assert_eq!(done.status, cqe::SUCCESS);
        sum += world.now() - before;
        world.run();
    }
    sum
}

/// How much longer it takes than without latency.
fn added(latency: Latency, count: usize, order: &[usize]) -> u64 {
    time(latency, count, order) - time(Latency::default(), count, order)
}

#[test]
fn each_doorbell_of_a_send_queue_takes_time() {
    let latency = Latency {
        doorbell: Nanos(3 * MICROSECOND),
        ..Latency::default()
    };
    assert_eq!(added(latency, 1, &[0]), 3 * MICROSECOND);
    assert_eq!(added(latency, 1, &[0, 0, 0, 0]), 12 * MICROSECOND);
}

#[test]
fn the_dma_reads_of_each_work_request_take_time() {
    let latency = Latency {
        pcie: Nanos(3 * MICROSECOND),
        ..Latency::default()
    };
    assert_eq!(added(latency, 1, &[0]), 3 * MICROSECOND);
    let both = Latency {
        doorbell: Nanos(2 * MICROSECOND),
        ..latency
    };
    assert_eq!(added(both, 1, &[0, 0]), 10 * MICROSECOND);
}

#[test]
fn queue_pairs_that_the_cache_does_not_have_take_time() {
    let latency = Latency {
        qp_cache_entries: 2,
        qp_cache_miss: Nanos(5 * MICROSECOND),
        ..Latency::default()
    };
    let warm = added(latency, 3, &[0, 1, 0, 1, 0, 1]);
    let cold = added(latency, 3, &[0, 1, 2, 0, 1, 2]);
    // The first two of the one, and all of the other, miss in the NIC of the responder, which answers late.
    assert_eq!((warm, cold), (2 * 5 * MICROSECOND, 6 * 5 * MICROSECOND));
    let none = Latency {
        qp_cache_entries: 0,
        ..latency
    };
    assert_eq!(added(none, 3, &[0, 1, 2, 0, 1, 2]), 0);
}

#[test]
fn the_record_of_a_fault_is_late_by_the_time_of_its_service() {
    const VA: u64 = 0x7f12_3456_0000;
    for service in [0, 2000 * MICROSECOND] {
        let mut world = World::with_config(2, 1, |config| {
            config.latency.fault_service = Nanos(service);
        });
        let mut pager = HostPager::new(&mut world, 1, 16, 4);
        pager.register(&mut world, VA, 4096);
        let mut pair = world.connect(QPT_RC, 4096, |path| path.rnr_retry = 7);
        let from = pair.mr[0];
        let write = Send {
            opcode: wr::WR_WRITE,
            sges: &[(from.va, 8, from.key)],
            remote_addr: VA,
            rkey: pager.regions[0].key,
            ..Send::default()
        };
        let began = world.now();
        let driver = &mut world.hosts[0].driver;
        driver.post_send(&mut pair.qp[0], &write);
        pager::run(&mut world, &mut [&mut pager]);
        let done = world.completions(0, &mut pair.cq[0]);
        assert_eq!(done.len(), 1);
        assert_eq!(done[0].status, cqe::SUCCESS);
        let [record] = &pager.records[..] else {
            panic!("{:?}", pager.records);
        };
        let late = record.timestamp.get() - began;
        assert!(
            (service..service + 100 * MICROSECOND).contains(&late),
            "{late}"
        );
    }
}

#[test]
fn a_requester_waits_longer_than_its_rnr_timer() {
    // Timer 14 is 1.28 ms (IBTA table 45).
    for (percent, wait) in [(0, 1280), (100, 1280), (325, 4160)] {
        let mut world = World::with_config(2, 1, |config| {
            config.latency.rnr_wait_percent = percent;
        });
        let mut pair = world.connect(QPT_RC, 4096, |path| path.min_rnr_timer = 14);
        let from = pair.mr[0];
        let send = Send {
            opcode: wr::WR_SEND,
            sges: &[(from.va, 8, from.key)],
            ..Send::default()
        };
        let driver = &mut world.hosts[0].driver;
        driver.post_send(&mut pair.qp[0], &send);
        world.run_for(20 * wait * MICROSECOND / 10);
        let all = world.take_diagnostics(0).into_iter();
        let naks = all.filter_map(|(at, diagnostic)| match diagnostic {
            Diagnostic::RnrNakReceived { delay, .. } => Some((at.0, delay.0)),
            _ => None,
        });
        let found: Vec<_> = naks.collect();
        let [(first, delay), (second, _)] = found[..] else {
            panic!("{percent}: {found:?}");
        };
        assert_eq!(delay, wait * MICROSECOND, "{percent}");
        assert!(second - first >= wait * MICROSECOND, "{percent}");
    }
}
