//! Counter sets: events of queue pairs, counted apart.

use faultline_abi::admin::Counter::{self, *};
use faultline_abi::admin::{
    ALLOC_COUNTERS, BIND_COUNTERS, BindCounters, DEALLOC_COUNTERS, DESTROY_QP,
};
use faultline_abi::qp::{QPS_ERR, QPT_RAW, QPT_RC};
use faultline_abi::wqe as wr;
use faultline_abi::{Status, U32};
use faultline_simulation::{Error, Send};
use faultline_simulator::{Pair, World};

struct Setup {
    world: World,
    pairs: [Pair; 2],
    /// A set of each host.
    sets: [u32; 2],
}

impl Setup {
    /// The first pair is counted in sets, the second is not.
    fn new() -> Self {
        let mut world = World::new(2, 1);
        let pairs = [0, 1].map(|_| world.connect(QPT_RC, 64 << 10, |_| {}));
        let sets = [0, 1].map(|i| {
            let driver = &mut world.hosts[i].driver;
            let set = driver.command(ALLOC_COUNTERS, 0, &()).unwrap().handle.get();
            driver.bind_counters(pairs[0].qp[i].qpn, set).unwrap();
            set
        });
        Self { world, pairs, sets }
    }

    fn write(&mut self, pair: usize, len: u32, rkey: u32) {
        let pair = &mut self.pairs[pair];
        let (mr, remote) = (pair.mr[0], pair.mr[1]);
        let send = Send {
            opcode: wr::WR_WRITE,
            sges: &[(mr.va, len, mr.key)],
            remote_addr: remote.va,
            rkey,
            ..Send::default()
        };
        self.world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
        self.world.run();
    }

    fn well(&mut self, pair: usize, len: u32) {
        let rkey = self.pairs[pair].mr[1].key;
        self.write(pair, len, rkey);
    }

    /// A counter of a host: in its set, and of the device.
    fn counts(&mut self, host: usize, counter: Counter) -> (u64, u64) {
        let (driver, set) = (&mut self.world.hosts[host].driver, self.sets[host]);
        let of_set = driver.counter_of(set, counter).unwrap();
        (of_set, driver.counter(counter).unwrap())
    }
}

/// Each packet is counted once, for its queue pair's set or for the device; frames are the device's.
#[test]
fn packets_go_to_the_set_of_their_queue_pair() {
    let mut s = Setup::new();
    // Four packets and an acknowledgement, then one and one.
    s.well(0, 4096);
    s.well(1, 1024);
    for (host, sent, received) in [(0, (4, 1), (1, 1)), (1, (1, 1), (4, 1))] {
        assert_eq!(s.counts(host, tx_roce_packets), sent, "host {host}");
        assert_eq!(s.counts(host, rx_roce_packets), received, "host {host}");
        let all = |(a, b): (u64, u64)| a + b;
        assert_eq!(s.counts(host, tx_packets), (0, all(sent)));
        assert_eq!(s.counts(host, rx_packets), (0, all(received)));
    }
}

#[test]
fn errors_go_to_the_set_on_both_sides() {
    let mut s = Setup::new();
    s.write(0, 8, 0);
    assert_eq!(s.counts(0, req_remote_access_errors), (1, 0));
    assert_eq!(s.counts(0, cqe_error), (1, 0));
    assert_eq!(s.counts(1, resp_remote_access_errors), (1, 0));
    s.write(1, 8, 0);
    assert_eq!(s.counts(0, req_remote_access_errors), (1, 1));
    assert_eq!(s.counts(1, resp_remote_access_errors), (1, 1));
}

/// Events that timers and commands cause belong to the queue pair as well.
#[test]
fn retransmissions_and_flushes_go_to_the_set() {
    let mut s = Setup::new();
    s.world.lose(|_, _| true);
    let qpn = s.pairs[0].qp[0].qpn;
    s.world.post_write(&mut s.pairs[0], 8);
    s.world.run();
    let (timeouts, of_device) = s.counts(0, local_ack_timeout_err);
    assert!(timeouts > 0, "{timeouts}");
    assert_eq!(of_device, 0);
    // The last time-out ends the connection.
    assert_eq!(s.counts(0, retransmitted_packets), (timeouts - 1, 0));
    let other = &mut s.pairs[1];
    let driver = &mut s.world.hosts[0].driver;
    driver.bind_counters(other.qp[0].qpn, s.sets[0]).unwrap();
    driver.bind_counters(qpn, 0).unwrap();
    driver.set_state(other.qp[0].qpn, QPS_ERR).unwrap();
    s.world.post_write(other, 8);
    s.world.run();
    assert_eq!(s.counts(0, cqe_flush_error), (1, 0));
}

#[test]
fn a_set_exists_while_it_is_used() {
    let mut s = Setup::new();
    let (set, qpn) = (s.sets[0], s.pairs[0].qp[0].qpn);
    let driver = &mut s.world.hosts[0].driver;
    let refused = |result: Result<_, Error>| match result {
        Err(Error::Refused(status)) => status,
        other => panic!("not refused: {other:?}"),
    };
    let busy = driver.command(DEALLOC_COUNTERS, set, &()).map(drop);
    assert_eq!(refused(busy), Status::InUse);
    // Bound again, it is still used once.
    driver.bind_counters(qpn, set).unwrap();
    driver.command(DESTROY_QP, qpn, &()).unwrap();
    driver.command(DEALLOC_COUNTERS, set, &()).unwrap();
    let gone = driver.command(DEALLOC_COUNTERS, set, &()).map(drop);
    assert_eq!(refused(gone), Status::BadCounters);
    let other = s.pairs[1].qp[0].qpn;
    assert_eq!(
        refused(driver.bind_counters(other, set)),
        Status::BadCounters
    );
    assert_eq!(refused(driver.bind_counters(qpn, 0)), Status::BadQp);
    let gone = driver.counter_of(set, tx_packets).map(drop);
    assert_eq!(refused(gone), Status::BadCounters);
    let reserved = BindCounters {
        reserved: U32::new(1),
        ..BindCounters::default()
    };
    let result = driver.command(BIND_COUNTERS, other, &reserved).map(drop);
    assert_eq!(refused(result), Status::ReservedNotZero);
    let mut world = World::with_config(1, 1, |config| config.limits.max_counters = 1);
    let driver = &mut world.hosts[0].driver;
    driver.command(ALLOC_COUNTERS, 0, &()).unwrap();
    let full = driver.command(ALLOC_COUNTERS, 0, &()).map(drop);
    assert_eq!(refused(full), Status::NoResources);
}

/// Events of the frames of a raw queue pair, and of its work queues, count for it.
#[test]
fn frames_go_to_the_set_of_their_queue_pair() {
    let mut world = World::new(2, 1);
    let cq = world.hosts[1].cq(6).unwrap();
    let mut qp = world.hosts[1].qp(QPT_RAW, &cq).unwrap();
    let mr = world.hosts[1].mr(4096).unwrap();
    let mac = world.hosts[1].mac;
    let driver = &mut world.hosts[1].driver;
    driver.activate(qp.qpn, QPT_RAW, 0).unwrap();
    driver.set_netdev(mac, 1500, qp.qpn).unwrap();
    let set = driver.command(ALLOC_COUNTERS, 0, &()).unwrap().handle.get();
    driver.bind_counters(qp.qpn, set).unwrap();
    let mut frame = vec![0; 100];
    frame[..6].copy_from_slice(&mac.0);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    let counts = |world: &mut World, counter| {
        let driver = &mut world.hosts[1].driver;
        let of_set = driver.counter_of(set, counter).unwrap();
        (of_set, driver.counter(counter).unwrap())
    };
    // Nothing is posted.
    for _ in 0..3 {
        world.inject(0, frame.clone());
    }
    world.run();
    assert_eq!(counts(&mut world, rx_no_buffer), (3, 0));
    assert_eq!(counts(&mut world, rx_packets), (0, 3));
    // Too short a buffer completes with an error.
    let driver = &mut world.hosts[1].driver;
    driver.post_recv(&mut qp, 1, &[(mr.va, 99, mr.key)]);
    world.inject(0, frame);
    world.run();
    assert_eq!(counts(&mut world, cqe_error), (1, 0));
}
