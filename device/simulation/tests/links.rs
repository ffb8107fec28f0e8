//! Models of links: loss and other impairments, queues that overflow, and congestion control.

use std::time::Duration;

use faultline_abi::admin::Counter;
use faultline_abi::qp::QPT_RC;
use faultline_fabric::link_model::{LinkModel, LinkModelCounts};
use faultline_nic::Dcqcn;
use faultline_scenario::trigger::Direction;
use faultline_simulation::process::{NicShape, PortShape, ProcessShape, Processes};

use crate::common::{Connect, Expect, connected, exchange, octets_of, packets_of, wired};

/// Every frame passes two links that lose, double, reorder and spoil frames. Returns the effects of the links, the time, and the hash of
/// all frames.
fn over_bad_links(seed: u64) -> (Vec<LinkModelCounts>, u64, u64) {
    let bad = |seed| LinkModel {
        loss: 10_000,
        duplicate: 10_000,
        reorder: 20_000,
        corrupt: 10_000,
        delay_ns: 2000,
        seed,
        ..LinkModel::default()
    };
    let shape = |seed| ProcessShape {
        engines: 1,
        nics: vec![NicShape {
            links: [Some(bad(seed)), None],
            ..NicShape::default()
        }],
        ports: vec![PortShape {
            links: [None, Some(bad(seed + 1))],
            hold: Duration::from_millis(100),
            room: 1 << 20,
            ..PortShape::default()
        }],
        seed,
        ..ProcessShape::default()
    };
    let mut world = wired(&shape(seed), &shape(seed + 10));
    let change = |path| Connect {
        timeout: 10,
        ..path
    };
    let at = [(0, 0), (1, 0)];
    let [mut a, mut b] = connected(&mut world, at, QPT_RC, (4, 20_000), change);
    for seed in 0..60 {
        exchange(&mut world, &mut a, &b, seed);
        exchange(&mut world, &mut b, &a, seed + 100);
    }
    world.expect_legal();
    let places = [(0, Direction::Tx), (1, Direction::Rx)];
    let counts = world.all.iter().flat_map(|process| {
        places.map(|(port, direction)| process.link_counts(port, direction).unwrap())
    });
    let counts = counts.collect();
    let hash = world.all.iter().map(|process| process.watched().hash);
    let hash = hash.fold(0, |sum, hash| sum ^ hash);
    let spoilt = at.map(|at| world.counter(at, Counter::rx_icrc_errors));
    assert!(spoilt.iter().all(|count| *count > 0));
    (counts, world.now(), hash)
}

#[test]
fn data_survives_links_that_lose_double_reorder_and_spoil_frames() {
    let first = over_bad_links(3);
    for counts in &first.0 {
        for count in [
            counts.lost,
            counts.duplicated,
            counts.reordered,
            counts.corrupted,
        ] {
            assert!(count > 0, "{counts:?}");
        }
    }
    assert_eq!(over_bad_links(3), first, "a seed is one run");
    assert_ne!(over_bad_links(4).2, first.2);
}

const LEN: u64 = 64 << 10;
const WRITES: usize = 10;

/// Results of a run through a link of 1 Gb/s with a queue of 48 KB.
struct Run {
    world: Processes,
    link: LinkModelCounts,
    took: u64,
}

/// WRITEs one after the other.
fn through_a_short_queue(link: LinkModel, congestion: Option<Dcqcn>) -> Run {
    let link = LinkModel {
        rate_mbps: 1000,
        queue_bytes: 48_000,
        ..link
    };
    let mut nics = vec![NicShape::default(); 2];
    nics[0].links[0] = Some(link);
    let shape = ProcessShape {
        engines: 1,
        nics,
        ..ProcessShape::default()
    };
    let mut world =
        Processes::with_config(&shape, &|config| config.congestion = congestion).unwrap();
    let at = [(0, 0), (0, 1)];
    let [mut from, to] = connected(&mut world, at, QPT_RC, (4, LEN), |path| path);
    for seed in 0..WRITES as u64 {
        exchange(&mut world, &mut from, &to, seed);
    }
    world.expect_legal();
    let link = world.all[0].link_counts(0, Direction::Tx).unwrap();
    let took = world.now();
    Run { world, link, took }
}

impl Run {
    fn sender(&mut self, counter: Counter) -> u64 {
        self.world.counter((0, 0), counter)
    }

    fn receiver(&mut self, counter: Counter) -> u64 {
        self.world.counter((0, 1), counter)
    }
}

/// Nanoseconds of all octets at 1 Gb/s.
fn full_rate() -> u64 {
    WRITES as u64 * octets_of(LEN) * 8
}

#[test]
fn too_short_queues_lose_frames() {
    let mut run = through_a_short_queue(LinkModel::default(), None);
    let repeated = run.sender(Counter::retransmitted_packets);
    // The first packet of each retransmission was lost, too, or its NAK was sent before.
    assert_eq!((run.link.queue_full, repeated), (100, 105));
    let sent = WRITES as u64 * packets_of(LEN) + repeated;
    assert_eq!(run.sender(Counter::tx_roce_packets), sent);
    assert!(run.took > full_rate());
}

#[test]
fn a_link_that_pauses_its_sender_loses_neither_frames_nor_time() {
    let link = LinkModel {
        pause_bytes: 16_000,
        ..LinkModel::default()
    };
    let mut run = through_a_short_queue(link, None);
    assert_eq!((run.link.queue_full, run.link.pauses), (0, 40));
    assert_eq!(run.sender(Counter::retransmitted_packets), 0);
    assert_eq!(run.receiver(Counter::out_of_sequence), 0);
    assert_eq!(run.took, full_rate());
}

/// The receiver reports marks, the sender becomes slower, and the queue overflows less.
#[test]
fn a_sender_reacts_to_congestion() {
    let mut without = through_a_short_queue(LinkModel::default(), None);
    let link = LinkModel {
        ecn_bytes: 6000,
        ..LinkModel::default()
    };
    let config = Dcqcn {
        line_rate_mbps: 1000,
        ..Dcqcn::default()
    };
    let mut run = through_a_short_queue(link, Some(config));
    let [marked, cnps] =
        [Counter::np_ecn_marked_roce_packets, Counter::np_cnp_sent].map(|it| run.receiver(it));
    let handled = run.sender(Counter::rp_cnp_handled);
    let [lost, before] =
        [&mut run, &mut without].map(|it| it.sender(Counter::retransmitted_packets));
    // Marks are only for packets that are not lost.
    assert_eq!(marked, run.link.marked);
    assert_eq!((marked, cnps, handled), (234, 45, 45));
    assert_eq!((run.link.queue_full, without.link.queue_full), (50, 100));
    assert_eq!((lost, before), (54, 105));
}
