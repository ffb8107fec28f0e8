//! The model of the latency of hardware: the NIC sends nothing for as long as doorbells, DMA reads and misses of its cache of queue
//! pairs take.

use faultline_abi::cqe;
use faultline_abi::qp::QPT_RC;
use faultline_nic::{Latency, Nanos};
use faultline_simulator::{Pair, World};

const MICROSECOND: u64 = 1000;

/// Hosts whose NICs have this latency, and the number of pairs that are asked for.
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
